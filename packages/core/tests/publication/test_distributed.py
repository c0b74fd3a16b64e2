"""Weights through process groups: real ranks, real engines, gloo on loopback."""

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from distributed_cases import setting_of
from training_cases import samples_of

from reroll.api import Engine, EngineError, GenerationRequest, RerollError, SamplingParams, TensorSpec, WorkerDied
from reroll.publication import distributed, publisher
from reroll.publication.barrier import Barrier
from reroll.publication.distributed import DistributedTransport, DistributedTransportConfig
from reroll.publication.engine_drain import EngineDrain
from reroll.publication.refresh import Refresh
from reroll.serving.local.engine import LocalEngine

MODES = [Barrier, EngineDrain, Refresh]


class Deferred(LocalEngine):
    """Takes weights when they are committed, as a server does that cannot hold two sets."""

    stream = None
    refuse = 0

    async def stage_stream(self, stream):
        self.stream = stream

    async def commit_weights(self, version, recompute=False):
        await super().stage_stream(self.stream)
        if self.refuse:
            self.refuse -= 1
            raise EngineError("no room for the weights")
        return await super().commit_weights(version, recompute)


class Troubled(LocalEngine):
    """Has `trouble` with the second bucket that comes, once, while the trainer sends it."""

    trouble = None
    received = 0

    async def receive_bucket(self, name, bucket, flattened):
        self.received += 1
        if self.trouble is not None and self.received == 2:
            trouble, self.trouble = self.trouble, None
            bucket = await trouble(self, bucket)
        await super().receive_bucket(name, bucket, flattened)


def request(name, tokens):
    return GenerationRequest(name, [5, 6, 7], SamplingParams(max_new_tokens=tokens, seed=3))


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [
        (LocalEngine, 1),
        (LocalEngine, 2),
        (Deferred, 1),
        pytest.param(Deferred, 2, marks=pytest.mark.slow),
    ],
)
def test_every_mode_brings_both_engines_to_the_trainers_weights(kind, ranks, tiny_model, tmp_path):
    async def scenario():
        async with setting_of(tmp_path, tiny_model, ranks, kind=kind) as setting:
            seen, trainer = set(), setting.trainer
            for mode in MODES:
                for sync in ("flattened", "per_tensor"):
                    publishing = setting.publisher(mode, weight_sync_mode=sync)
                    for seed in range(2):
                        (steps,) = [await trainer.train(samples_of(16, seed=seed))]
                        assert len(steps) == 1
                        running = asyncio.create_task(setting.engines[0].generate(request("r", 200)))
                        if mode is not Refresh:
                            await running
                        report = await publishing.publish(trainer.version)
                        digest = await trainer.weights_digest()
                        assert await setting.digests() == {digest} and report.attempts == 1
                        assert report.num_bytes == sum(tensor["bytes"] for tensor in await sizes(trainer))
                        seen.add(digest)
                        await running
                    assert len(setting.groups) == 2, "one group for each engine lasts"
                    await publishing.transport.close()
                    for engine in setting.engines:
                        for group in setting.groups:
                            with pytest.raises(EngineError, match="was not joined, or was left"):
                                await engine.receive_bucket(group, [], True)
                    setting.groups.clear()
            assert len(seen) == 12 and setting.warnings == []

    asyncio.run(scenario())


async def sizes(trainer):
    layout = await trainer.weight_layout(10**9)
    return [{"bytes": spec.num_bytes} for bucket in layout for spec in bucket]


def test_a_bucket_is_gathered_once_for_all_engines_and_never_after_a_step(tiny_model, tmp_path):
    async def scenario():
        async with setting_of(tmp_path, tiny_model, ranks=2) as setting:
            trainer, gathered = setting.trainer, []
            together = trainer._together

            async def counting(method, *arguments):
                if method == "gather_bucket":
                    gathered.append(arguments[0])
                return await together(method, *arguments)

            trainer._together = counting
            layout = await trainer.weight_layout(20_000)
            publishing = setting.publisher(Barrier)
            await publishing.publish(trainer.version)  # in which one engine may still join while another is sent to
            for _ in range(2):
                gathered.clear()
                await publishing.publish(trainer.version)
                assert gathered == layout, "in lockstep, and anew in each publication"
            (engine, _), (group, _) = setting.engines, setting.groups

            async def send():
                gathered.clear()
                receiving = engine.receive_bucket(group, layout[0], True)
                await asyncio.gather(receiving, trainer.send_bucket(group, layout[0], True))
                return len(gathered)

            assert [await send(), await send()] == [1, 0]
            await trainer.train(samples_of(16))
            assert [await send(), await send()] == [1, 0]
            await trainer.drop_bucket()
            with pytest.raises(RerollError, match="no bucket is kept"):
                await trainer.workers[0].call("send_bucket", group)

    asyncio.run(scenario())


async def refused(engine, bucket):
    return [replace(bucket[0], shape=(*bucket[0].shape, 2)), *bucket[1:]]


async def silent(engine, bucket):
    os.kill(engine.worker.process.pid, signal.SIGSTOP)
    return bucket


@pytest.mark.parametrize(("mode", "sync"), [*((mode, "flattened") for mode in MODES), (Barrier, "per_tensor")])
def test_a_refused_bucket_costs_an_attempt(mode, sync, tiny_model, tmp_path):
    async def scenario():
        async with setting_of(tmp_path, tiny_model, kind=Troubled) as setting:
            second = setting.engines[1]
            publishing = setting.publisher(mode, weight_sync_mode=sync)
            second.trouble = refused
            await setting.trainer.train(samples_of(16))
            report = await publishing.publish(1)
            assert report.attempts == 2 and "holds 'model." in setting.warnings[0]
            assert await setting.digests() == {await setting.trainer.weights_digest()}
            assert set(setting.groups.left) <= set(setting.groups) and len(setting.groups) > 2
            await setting.trainer.train(samples_of(16))
            groups = [*setting.groups]
            assert (await publishing.publish(2)).attempts == 1
            assert groups == setting.groups, "the new groups last"

    asyncio.run(scenario())


@pytest.mark.slow
def test_an_engine_that_stops_answering_is_loaded_through_a_new_group_once_it_goes_on(
    tiny_model, tmp_path, monkeypatch
):
    monkeypatch.setattr(publisher, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(distributed, "LEAVE_SECONDS", 1.0)

    async def scenario():
        async with setting_of(tmp_path, tiny_model, kind=Troubled) as setting:
            second = setting.engines[1]
            publishing = setting.publisher(Barrier, timeout=5.0)
            second.trouble = silent
            setting.fails = lambda: os.kill(second.worker.process.pid, signal.SIGCONT)
            await setting.trainer.train(samples_of(16))
            report = await publishing.publish(1)
            assert report.attempts == 2
            assert setting.warnings[0].endswith(f"Until it succeeds, no requests go to {second.address}.")
            assert await setting.digests() == {await setting.trainer.weights_digest()}

    asyncio.run(scenario())


def test_an_engine_that_is_killed_in_a_broadcast_ends_the_publication_and_not_the_trainer(tiny_model, tmp_path):
    async def killed(engine, bucket):
        # Stopped first, so that the trainer's broadcast is under way when the process goes.
        await silent(engine, bucket)
        asyncio.get_running_loop().call_later(0.2, engine.worker.kill)
        return bucket

    async def scenario():
        async with setting_of(tmp_path, tiny_model, kind=Troubled) as setting:
            first, second = setting.engines
            second.trouble = killed
            await setting.trainer.train(samples_of(16))
            with pytest.raises(WorkerDied, match="'engine-1' was killed by SIGKILL"):
                await setting.publisher(Barrier).publish(1)
            assert len(await setting.trainer.train(samples_of(16))) == 1
            assert await first.weight_version() == 0
            setting.engines.pop()
            await setting.publisher(Barrier).publish(2)
            assert await setting.digests() == {await setting.trainer.weights_digest()}

    asyncio.run(scenario())


def test_a_failed_commit_that_takes_the_stream_makes_a_new_group(tiny_model, tmp_path):
    async def scenario():
        async with setting_of(tmp_path, tiny_model, engines=1, kind=Deferred) as setting:
            setting.engines[0].refuse = 1
            await setting.trainer.train(samples_of(16))
            assert (await setting.publisher(Barrier).publish(1)).attempts == 2
            assert setting.groups.left == setting.groups[:1] and len(setting.groups) == 2
            assert await setting.digests() == {await setting.trainer.weights_digest()}

    asyncio.run(scenario())


def test_an_engine_under_a_new_address_gets_a_new_group(tiny_model, tmp_path):
    async def scenario():
        async with setting_of(tmp_path, tiny_model, engines=1) as setting:
            (engine,) = setting.engines
            publishing = setting.publisher(Barrier)
            await publishing.publish(1)
            engine.address = "local:started-again"
            await publishing.publish(2)
            assert len(setting.groups) == 2 and setting.groups.left == setting.groups[:1]
            assert await setting.digests() == {await setting.trainer.weights_digest()}

    asyncio.run(scenario())


def test_failed_rounds_leave_nothing_behind_in_the_trainer(tiny_model, tmp_path):
    async def scenario():
        async with setting_of(tmp_path, tiny_model, engines=1, kind=Troubled) as setting:
            (engine,) = setting.engines
            process = Path("/proc") / str(setting.trainer.workers[0].process.pid)
            publishing, found = setting.publisher(Barrier), []
            for version in range(1, 5):
                engine.received, engine.trouble = 0, refused
                assert (await publishing.publish(version)).attempts == 2
                found.append((len(list((process / "fd").iterdir())), len(list((process / "task").iterdir()))))
            assert len(set(found[1:])) == 1, found
            assert len(setting.groups) == 5 and len(setting.groups.left) == 4

    asyncio.run(scenario())


def test_a_failure_to_leave_is_noted_with_what_failed_first(monkeypatch):
    monkeypatch.setattr(distributed, "LEAVE_SECONDS", 0.0)

    class Source:
        weight_device = "cpu"
        left = 0

        async def weight_layout(self, bucket_bytes):
            return [[TensorSpec("a", "bfloat16", (2, 3)), TensorSpec("b", "bool", (5,))]]

        async def host_group(self, name, world_size, backend, timeout):
            assert (world_size, backend, timeout) == (3, "gloo", 0.01)
            return name_only(name)

        async def join_group(self, name):
            await asyncio.sleep(0)

        async def leave_group(self, name):
            self.left += 1
            await asyncio.Event().wait()

    class Refuses(Engine):
        name = address = "refuses"
        weight_ranks = 2

        async def join_weight_group(self, group):
            raise EngineError("no")

        async def leave_weight_group(self, name):
            raise EngineError("nor this")

    def name_only(name):
        return type("Group", (), {"name": name})()

    async def scenario():
        transport = DistributedTransport(DistributedTransportConfig(timeout=0.01))
        source = Source()
        assert await transport.begin(source, 1) == 17
        with pytest.raises(EngineError, match="^no") as found:
            await transport.stage(Refuses())
        notes = " ".join(found.value.__notes__)
        assert "the trainer does not answer" in notes and "nor this" in notes and source.left == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "name",
    ["float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "int64", "int8", "uint8", "bool", "complex64"],
)
def test_bytes_of_a_type_are_told_without_torch(name):
    assert TensorSpec("a", name, (3, 2)).num_bytes == torch.empty(3, 2, dtype=getattr(torch, name)).nbytes


class Elsewhere(Engine):
    name = "elsewhere"


def test_what_cannot_work_is_told_before_the_run():
    config = DistributedTransportConfig(backend="nccl")
    (reason,) = DistributedTransport.problems(DistributedTransportConfig(), Elsewhere, "auto")
    assert reason == "engine 'elsewhere' takes no weights from process groups: use another transport"
    (reason,) = DistributedTransport.problems(config, LocalEngine, "cpu")
    assert 'trainer.device is "cpu"' in reason
    assert DistributedTransport.problems(config, LocalEngine, "auto") == []


def test_nccl_needs_devices_on_both_sides(tiny_model, tmp_path):
    async def scenario():
        async with setting_of(tmp_path, tiny_model, engines=1) as setting:
            with pytest.raises(RerollError, match='the trainer has them on cpu and engine .* on cpu: use "gloo"'):
                await setting.publisher(Barrier, backend="nccl").publish(1)

    asyncio.run(scenario())
