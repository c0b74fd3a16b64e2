"""What only devices show of SGLang: NCCL, tensor parallelism on them, seeds, memory that is given back, and servers
that a run launches there. `hatch run test-gpu` with REROLL_SGLANG_PYTHON set to the python of SGLang as published."""

import asyncio
import tomllib
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import tomli_w
import torch
from driving import run_and_watch
from real_sglang import MODEL, python, settings

from reroll.api import GenerationRequest, SamplingParams, WeightBucket
from reroll.placement.local import LocalPlacement
from reroll.serving.sglang.engine import SGLangEngine, SGLangEngineConfig
from reroll.serving.sglang.server import LaunchedServer

DEVICES = torch.cuda.device_count()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CONFIG = Path(__file__).parents[4] / "configs" / "sglang-cpu.toml"
BUCKETS = [WeightBucket(str(MODEL / "model.safetensors"), ("x",), 1)]


@asynccontextmanager
async def launched(folder, *options, ranks=1):
    """An engine on a server that reroll launches on CUDA devices, in float32."""
    placement = LocalPlacement()
    given = settings(
        placement,
        folder / "engine.log",
        arguments=("--model-path", str(MODEL), "--weight-version", "0", "--mem-fraction-static", "0.2", *options),
        environment={},
        python=python(),
        ranks=ranks,
        device="cuda",
        startup_timeout=600.0,
    )
    engine = SGLangEngine(SGLangEngineConfig(), LaunchedServer(given))
    try:
        await engine._begin()
        yield engine
    finally:
        await engine.close()
        await placement.close()


async def respond(engine, name, seed, **sampling):
    params = SamplingParams(max_new_tokens=16, seed=seed, **sampling)
    return await engine.generate(GenerationRequest(name, [305, 51, 43, 52], params))


def run_on_devices(run_file, output, tp_size, num_engines):
    """Four asynchronous steps of servers that the run launches; weights go through NCCL."""
    if tp_size * num_engines + 1 > DEVICES:
        pytest.skip(f"needs {tp_size * num_engines + 1} CUDA devices, and there are {DEVICES}")
    table = tomllib.loads(CONFIG.read_text())
    table["sglang"] = {"mem_fraction_static": 0.2, "tp_size": tp_size}
    transport = {"name": "distributed", "backend": "nccl"}
    table["serving"] |= {"python": python(), "num_engines": num_engines, "transport": transport}
    table["serving"]["check_weight_update_equal"] = True
    table["trainer"] |= {"device": "cuda", "num_ranks": 1}
    table["rollout"] |= {"num_rollout": 4, "group_filters": []}
    seen = run_and_watch(run_file(tomli_w.dumps(table)), output)
    assert seen.summary.steps == 4
    assert seen.summary.ledger["failed"] == seen.summary.engine_restarts == 0
    assert len(set(seen.engine_weights)) == 5


@pytest.fixture
def run_file(tmp_path):
    def write(text):
        (tmp_path / "run.toml").write_text(text)
        return tmp_path / "run.toml"

    return write


def test_a_run_launches_two_servers_and_sends_weights_through_nccl(run_file, tmp_path):
    run_on_devices(run_file, tmp_path / "out", tp_size=1, num_engines=2)


def test_two_ranks_of_one_server_take_weights_through_nccl(run_file, tmp_path):
    run_on_devices(run_file, tmp_path / "out", tp_size=2, num_engines=1)


def test_trap_10_every_sample_has_a_seed_of_its_own_in_deterministic_inference(tmp_path):
    async def body():
        async with launched(tmp_path, "--enable-deterministic-inference") as engine:
            found = await asyncio.gather(*(respond(engine, f"request-{seed}", seed) for seed in range(8)))
            again = await asyncio.gather(*(respond(engine, f"again-{seed}", seed) for seed in range(8)))
            assert [one.output_ids for one in found] == [one.output_ids for one in again]
            assert len({tuple(one.output_ids) for one in found}) > 1

    asyncio.run(body())


def test_memory_is_given_back_and_a_load_brings_the_weights_again(tmp_path):
    async def body():
        async with launched(tmp_path, "--enable-memory-saver") as engine:
            before, wanted = await engine.weights_digest(), await respond(engine, "one", 1, temperature=0.0)
            taken = torch.cuda.mem_get_info()[0]
            await engine.flush_cache()
            await engine.release_memory()
            assert torch.cuda.mem_get_info()[0] > taken
            await engine.resume_memory(weights_only=True)
            await engine.stage_weights(BUCKETS)
            await engine.commit_weights(1)
            await engine.resume_memory()
            assert await engine.weights_digest() == before
            assert (await respond(engine, "two", 2, temperature=0.0)).output_ids == wanted.output_ids

    asyncio.run(body())
