"""The controller's side with real worker processes."""

import asyncio
import os
import signal
import subprocess
import sys
import threading

import pytest
from safetensors.torch import save_file

from reroll.api import EngineContext, EngineError, WeightBucket, WorkerDied, WorkerSpec
from reroll.models.digest import state_digest
from reroll.serving.local.engine import LocalEngine, LocalEngineConfig
from reroll.workers.process import ProcessWorker


class Processes:
    """The least that a placement does."""

    async def start(self, spec: WorkerSpec):
        return await ProcessWorker.start(spec)


@pytest.fixture(scope="module")
def engines(models, tmp_path_factory):
    """Two engines, started together since that takes seconds, and a function that runs coroutines beside them."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(90)

    async def start(number):
        log = tmp_path_factory.mktemp("logs") / f"{number}.log"
        context = EngineContext(f"engine-{number}", models["qwen3"], 7, Processes(), log)
        return await LocalEngine.start(LocalEngineConfig(eos_token_ids=()), context)

    async def both():
        return await asyncio.gather(start(0), start(1))

    first, second = run(both())
    yield first, second, run
    for engine in (first, second):
        run(engine.close())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def generated(engine, tokens):
    """Waits until the engine has generated `tokens` more."""
    goal = (await engine.health())["generated_tokens"] + tokens
    while (await engine.health())["generated_tokens"] < goal:
        await asyncio.sleep(0.002)


def test_a_collection_is_equal_to_the_bit_in_two_processes(engines, lab):
    first, second, run = engines
    requests = [
        lab.request(f"{n:02}", lab.prompt(3 + n % 7, n), max_new_tokens=4 + n * 5 % 40, top_k=50, seed=n)
        for n in range(24)
    ]

    async def use(engine):
        before = (await engine.health())["steps"]
        done = await asyncio.gather(*(engine.generate(given) for given in requests))
        # All joined in one step: nothing but the longest response decides how many there are.
        assert (await engine.health())["steps"] - before == max(given.sampling.max_new_tokens for given in requests)
        return [(c.request_id, c.output_ids, c.logprobs, c.weight_versions, c.finish_reason, c.seed) for c in done]

    found = run(use(first))
    assert found == run(use(second)) == run(use(first))
    assert [row[0] for row in found] == [given.request_id for given in requests]
    assert {row[3][0].version for row in found} == {7}
    assert (first.address, second.address) == ("local:engine-0", "local:engine-1")


def test_cancelling_aborts_in_the_worker(engines, lab):
    engine, _, run = engines

    async def use():
        before = (await engine.health())["generated_tokens"]
        long = [
            asyncio.create_task(engine.generate(lab.request(name, lab.prompt(3), max_new_tokens=250))) for name in "ab"
        ]
        await generated(engine, 6)
        long[0].cancel()
        unsent = asyncio.create_task(engine.generate(lab.request("c", lab.prompt(3), max_new_tokens=250)))
        await asyncio.sleep(0)
        unsent.cancel()
        assert len((await long[1]).output_ids) == 250
        with pytest.raises(asyncio.CancelledError):
            await long[0]
        again = await engine.generate(lab.request("a", lab.prompt(3), max_new_tokens=2))
        assert len(again.output_ids) == 2
        return (await engine.health())["generated_tokens"] - before

    assert 250 < run(use()) < 500


def test_a_refusal_reaches_its_own_caller_alone(engines, lab):
    engine, _, run = engines

    async def use():
        return await asyncio.gather(
            engine.generate(lab.request("a", lab.prompt(3), max_new_tokens=3)),
            engine.generate(lab.request("b", [], max_new_tokens=3)),
            return_exceptions=True,
        )

    good, bad = run(use())
    assert len(good.output_ids) == 3
    assert isinstance(bad, EngineError) and "input_ids is empty" in str(bad)


def test_publication_with_the_contracts_calls(engines, other_weights, lab, tmp_path):
    engine, _, run = engines
    state = lab.plain_model(other_weights).state_dict()
    path = tmp_path / "all.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)

    async def use():
        old = await engine.weight_version()
        running = asyncio.create_task(engine.generate(lab.request("a", lab.prompt(3), max_new_tokens=250)))
        await generated(engine, 6)
        await engine.pause("retract")
        await engine.flush_cache()
        with pytest.raises(EngineError, match="weights are not complete"):
            await engine.commit_weights(old + 1)
        assert await engine.weight_version() == old
        await engine.stage_weights([WeightBucket(str(path), tuple(state), path.stat().st_size)])
        cost = await engine.commit_weights(old + 1)
        assert cost.pause_seconds > 0 and cost.recompute_seconds == 0
        assert await engine.weight_version() == old + 1
        assert await engine.weights_digest() == state_digest(state.items())
        await engine.abort("unknown")
        await engine.stage_weights([WeightBucket(str(path), tuple(state), path.stat().st_size)])
        await engine.resume()
        await generated(engine, 6)
        assert (await engine.commit_weights(old + 2, recompute=True)).recompute_seconds > 0
        return [span.version - old for span in (await running).weight_versions]

    assert run(use()) == [0, 1, 2]


def test_a_dead_worker_fails_who_waits(engines, lab):
    _, engine, run = engines

    async def use():
        running = asyncio.create_task(engine.generate(lab.request("a", lab.prompt(3), max_new_tokens=250)))
        await engine.health()
        os.kill(engine.worker.process.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied, match="engine-1"):
            await running

    run(use())


def test_the_controllers_side_loads_no_torch():
    code = "import sys, reroll.serving.local.engine; print({'torch', 'transformers', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_options_are_documented_and_closed():
    with pytest.raises(ValueError, match="speed"):
        LocalEngineConfig(speed=3)
    with pytest.raises(ValueError, match="max_running_requests"):
        LocalEngineConfig(max_running_requests=0)
