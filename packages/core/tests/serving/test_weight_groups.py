"""New weights through a process group, of which this process is rank 0 and the engine's worker rank 1."""

import asyncio
import itertools
import socket
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from reroll.api import EngineContext, EngineError, RerollError, TensorSpec, WeightBucket, WeightGroup, WorkerSpec
from reroll.models.digest import state_digest
from reroll.models.process_groups import Member, flatten, kind, listen, receive, specs
from reroll.serving.local.engine import LocalEngine, LocalEngineConfig
from reroll.workers.process import ProcessWorker

numbers = itertools.count()


class Processes:
    """The least that a placement does."""

    async def start(self, spec: WorkerSpec):
        return await ProcessWorker.start(spec)


@pytest.fixture(scope="module")
def engine_and_run(models, tmp_path_factory):
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(90)

    log = tmp_path_factory.mktemp("logs") / "engine.log"
    context = EngineContext("engine", models["qwen3"], 0, Processes(), log)
    engine = run(LocalEngine.start(LocalEngineConfig(eos_token_ids=()), context))
    yield engine, run
    run(engine.close())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@dataclass
class Stream:
    """Sends what it is asked for, out of `tensors`."""

    group: WeightGroup
    member: Member
    tensors: dict
    buckets: list
    flattened: bool
    version: int = 1
    left: bool = False

    async def send(self, number):
        tensors = [self.tensors[spec.name].contiguous() for spec in self.buckets[number]]
        await asyncio.to_thread(self.member.broadcast, [flatten(tensors)] if self.flattened else tensors)

    async def send_in_order(self, *numbers):
        for number in numbers:
            await self.send(number)

    async def leave(self):
        if not self.left:
            self.left = True
            await asyncio.to_thread(self.member.leave)


@asynccontextmanager
async def stream_to(engine, tensors, flattened=True, parts=3):
    group, store = listen(f"weights-{next(numbers)}", 2, "gloo", 30)
    member, _ = await asyncio.gather(asyncio.to_thread(Member, group, 0, store), engine.join_weight_group(group))
    del store
    found = specs(tensors)
    stream = Stream(group, member, tensors, [found[part::parts] for part in range(parts)], flattened)
    try:
        yield stream
    finally:
        await asyncio.gather(stream.leave(), engine.leave_weight_group(group.name))


@pytest.fixture
def state(lab, other_weights):
    return lab.plain_model(other_weights).state_dict()


async def generated(engine, tokens):
    goal = (await engine.health())["generated_tokens"] + tokens
    while (await engine.health())["generated_tokens"] < goal:
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("flattened", [True, False])
@pytest.mark.parametrize("parts", [1, 3])
def test_tensors_come_while_the_engine_generates(flattened, parts, engine_and_run, lab, state):
    engine, run = engine_and_run

    async def use():
        version = await engine.weight_version()
        changed = {name: tensor + version for name, tensor in state.items()}
        before = await engine.weights_digest()
        running = asyncio.create_task(engine.generate(lab.request("a", lab.prompt(3), max_new_tokens=250)))
        await generated(engine, 6)
        async with stream_to(engine, changed, flattened, parts) as stream:
            await engine.stage_stream(stream)
        assert await engine.weights_digest() == before
        await engine.commit_weights(version + 1, recompute=True)
        assert await engine.weights_digest() == state_digest(changed.items())
        assert [span.version - version for span in (await running).weight_versions] == [0, 1]

    run(use())


def test_one_group_carries_many_publications(engine_and_run, state):
    engine, run = engine_and_run

    async def use():
        version = await engine.weight_version()
        async with stream_to(engine, state) as stream:
            for number in range(1, 4):
                stream.tensors = {name: tensor + number for name, tensor in state.items()}
                await engine.stage_stream(stream)
                await engine.commit_weights(version + number)
                assert await engine.weights_digest() == state_digest(stream.tensors.items())

    run(use())


def wrong_shape(spec):
    return replace(spec, shape=(*spec.shape, 2))


def wrong_type(spec):
    return replace(spec, dtype="bfloat16")


def wrong_name(spec):
    return replace(spec, name="lm_head.bias")


def no_type(spec):
    return replace(spec, dtype="Tensor")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (wrong_shape, r"process group 'weights-\d+' holds 'model.* as float32 .*2\], but the served model has float32"),
        (wrong_type, "as bfloat16"),
        (wrong_name, "holds 'lm_head.bias', which the served model does not have"),
        (no_type, "dtype 'Tensor', which torch does not have"),
    ],
)
def test_a_bucket_that_does_not_fit_is_refused_before_it_comes(change, message, engine_and_run, state):
    engine, run = engine_and_run

    async def use():
        version, digest = await engine.weight_version(), await engine.weights_digest()
        async with stream_to(engine, state) as stream:
            stream.buckets[2] = [change(stream.buckets[2][0])]
            with pytest.raises(EngineError, match=message):
                await asyncio.gather(
                    *(engine.receive_bucket(stream.group.name, bucket, True) for bucket in stream.buckets),
                    stream.send_in_order(0, 1),
                )
        # What came before is dropped.
        with pytest.raises(EngineError, match="weights are not complete"):
            await engine.commit_weights(version + 1)
        assert (await engine.weight_version(), await engine.weights_digest()) == (version, digest)

    run(use())


def test_a_sender_that_waits_gets_an_error_when_the_engine_leaves(engine_and_run, state):
    engine, run = engine_and_run

    async def use():
        async with stream_to(engine, state) as stream:
            sending = asyncio.create_task(stream.send(0))
            await engine.leave_weight_group(stream.group.name)
            with pytest.raises(
                RerollError,
                match=r"group 'weights-\d+' .* a broadcast failed: .*(closed|reset) by peer",
            ):
                await sending
        async with stream_to(engine, state) as stream:
            await engine.stage_stream(stream)
        await engine.commit_weights(await engine.weight_version() + 1)

    run(use())


def test_an_engine_that_waits_gets_an_error_when_the_sender_leaves(engine_and_run, state):
    engine, run = engine_and_run

    async def use():
        async with stream_to(engine, state) as stream:
            waiting = asyncio.create_task(engine.receive_bucket(stream.group.name, stream.buckets[0], True))
            await engine.health()
            await stream.leave()
            with pytest.raises(EngineError, match="a broadcast failed"):
                await waiting

    run(use())


def test_what_was_not_joined_cannot_be_received_from_and_can_be_left(engine_and_run, state):
    engine, run = engine_and_run

    async def use():
        with pytest.raises(EngineError, match="'nowhere' was not joined, or was left"):
            await engine.receive_bucket("nowhere", specs(state), True)
        await engine.leave_weight_group("nowhere")
        group, store = listen("closed", 2, "gloo", 1)
        del store
        with pytest.raises(EngineError, match="process group 'closed' .* rank 1 could not join"):
            await engine.join_weight_group(group)

    run(use())


@pytest.mark.parametrize("there", ["nobody", "a silent listener", "a trainer that does not join"])
def test_a_join_holds_up_nothing_and_ends_when_the_group_is_left(there, engine_and_run, other_weights):
    engine, run = engine_and_run
    file = other_weights / "model.safetensors"

    async def use():
        version = await engine.weight_version()
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            group = WeightGroup(f"waited-{next(numbers)}", *listener.getsockname(), 2, "gloo", 600)
            if there == "a silent listener":
                listener.listen()
            store = None
            if there == "a trainer that does not join":
                group, store = listen(group.name, 2, "gloo", 600)
            joining = asyncio.create_task(engine.join_weight_group(group))
            await engine.stage_weights([WeightBucket(str(file), tuple(load_file(file)), file.stat().st_size)])
            await engine.commit_weights(version + 1)
            with pytest.raises(EngineError, match="was joined before, or is being joined; leave it first"):
                await engine.join_weight_group(group)
            assert not joining.done()
            await engine.leave_weight_group(group.name)
            with pytest.raises(EngineError, match="rank 1 could not join: the group was left"):
                await joining
            del store

    run(use())


def test_a_group_is_met_late_and_joined_again_after_a_failure(engine_and_run, state):
    engine, run = engine_and_run
    name = f"weights-{next(numbers)}"

    async def use():
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            with pytest.raises(EngineError, match="rank 0 was not reached within 0.2 s: .*refused"):
                await engine.join_weight_group(WeightGroup(name, *listener.getsockname(), 2, "gloo", 0.2))
        group, store = listen(name, 2, "gloo", 30)
        joining = asyncio.create_task(engine.join_weight_group(group))
        await engine.health()
        member = await asyncio.to_thread(Member, group, 0, store)
        await joining
        stream = Stream(group, member, state, [specs(state)], True)
        await engine.stage_stream(stream)
        await engine.commit_weights(await engine.weight_version() + 1)
        await asyncio.gather(stream.leave(), engine.leave_weight_group(name))
        with pytest.raises(EngineError, match="'no such host' is no address"):
            await engine.join_weight_group(WeightGroup(name, "no such host", 1, 2, "gloo", 30))

    run(use())


def test_a_bucket_that_comes_after_a_commit_is_no_part_of_the_next_one(engine_and_run, state, other_weights):
    engine, run = engine_and_run
    file = other_weights / "model.safetensors"

    async def use():
        version = await engine.weight_version()
        async with stream_to(engine, state) as stream:
            receiving = asyncio.create_task(engine.receive_bucket(stream.group.name, stream.buckets[0], True))
            await engine.stage_weights([WeightBucket(str(file), tuple(load_file(file)), file.stat().st_size)])
            await engine.commit_weights(version + 1)
            digest = await engine.weights_digest()
            await stream.send(0)
            with pytest.raises(EngineError, match="committed or dropped while further tensors"):
                await receiving
            with pytest.raises(EngineError, match="weights are not complete"):
                await engine.commit_weights(version + 2)
        assert (await engine.weight_version(), await engine.weights_digest()) == (version + 1, digest)

    run(use())


def test_groups_leave_nothing_behind(engine_and_run, state):
    engine, run = engine_and_run
    process = Path("/proc") / str(engine.worker.process.pid)

    def held():
        return len(list((process / "fd").iterdir())), len(list((process / "task").iterdir()))

    async def use():
        found = []
        for number in range(10):
            async with stream_to(engine, state) as stream:
                if number % 2:
                    await engine.stage_stream(stream)
                else:  # one that fails
                    sending = asyncio.create_task(stream.send(0))
                    await engine.leave_weight_group(stream.group.name)
                    await asyncio.gather(sending, return_exceptions=True)
            # Threads end, and close what they had, just after they have answered.
            samples = [held()]
            for _ in range(20):
                await asyncio.sleep(0.01)
                samples.append(held())
            found.append(tuple(map(min, zip(*samples, strict=True))))
        # What is made once when it is first needed, or is still being closed, is no leak; what every group leaves is.
        kept = [last - first for first, last in zip(found[1], found[-1], strict=True)]
        assert max(kept) < 4, found

    run(use())


class Copies:
    """Stands for the group: what rank 0 broadcast comes out on the other side."""

    device = torch.device("cpu")

    def __init__(self, sent):
        self.sent = sent

    def broadcast(self, tensors):
        for tensor, sent in zip(tensors, self.sent, strict=True):
            assert (tensor.dtype, tensor.shape) == (sent.dtype, sent.shape)
            tensor.copy_(sent)


TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8]
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@given(st.lists(st.tuples(st.sampled_from(TYPES), shapes), min_size=1, max_size=6), st.integers(0, 99))
def test_flattened_bytes_are_the_tensors(kinds, seed):
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        f"{number}": torch.randint(0, 2, shape, generator=generator).to(dtype) * 3
        for number, (dtype, shape) in enumerate(kinds)
    }
    flat = flatten(list(tensors.values()))
    raw = b"".join(bytes(tensor.reshape(-1).view(torch.uint8).tolist()) for tensor in tensors.values())
    assert bytes(flat.tolist()) == raw
    received = receive(Copies([flat]), specs(tensors), True)
    assert received.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert received[name].dtype == tensor.dtype and torch.equal(received[name], tensor)
    assert specs(tensors) == [TensorSpec(name, kind(t.dtype), tuple(t.shape)) for name, t in tensors.items()]
