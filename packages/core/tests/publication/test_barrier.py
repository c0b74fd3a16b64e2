"""The barrier: nothing in flight while weights change, and the run goes on whatever happens. The files under it."""

import asyncio
from pathlib import Path

import pytest

from reroll.api import (
    Engine,
    EngineError,
    GenerationRequest,
    PublicationContext,
    RerollError,
    SamplingParams,
    Transport,
    WeightBucket,
)
from reroll.publication.barrier import Barrier
from reroll.publication.publisher import Publisher
from reroll.publication.transports import DiskTransport, FileTransportConfig, SharedMemoryTransport
from reroll.rollouts.admission import GroupAdmission
from reroll.serving.router import LeastLoadedRouter


class Weights(Engine):
    """An engine that has weights and nothing else. Everything that happens is noted in the shared log."""

    name = "weights"

    def __init__(self, address, log, trouble):
        super().__init__()
        self.address = address
        self.log = log
        self.trouble = trouble
        self.version = 0
        self.staged = None

    async def generate(self, request):
        await asyncio.Event().wait()

    async def stage_weights(self, buckets):
        self.staged = list(buckets)

    async def commit_weights(self, version):
        self.version = version

    async def flush_cache(self):
        await self.trouble("flush", self.address)
        self.log.append(f"flush {self.address}")


class Carrier(Transport):
    """A transport without files."""

    name = "carrier"

    def __init__(self, log, trouble):
        super().__init__()
        self.log = log
        self.trouble = trouble
        self.finished = 0

    async def begin(self, source, version):
        await self.trouble("begin", None)
        self.log.append(f"begin {version} of {source}")
        return 1234

    async def stage(self, engine):
        await self.trouble("stage", engine.address)
        await engine.stage_weights([])
        self.log.append(f"stage {engine.address}")

    async def commit(self, engine, version):
        await self.trouble("commit", engine.address)
        await super().commit(engine, version)
        self.log.append(f"commit {engine.address}")

    async def finish(self):
        self.finished += 1
        self.log.append("finish")
        await self.trouble("finish", None)


class Gate(GroupAdmission):
    def __init__(self, log):
        super().__init__()
        self.log = log

    def close(self):
        super().close()
        self.log.append("close")

    def open(self):
        super().open()
        self.log.append("open")


class Setting:
    """Two engines, and what may go wrong: `fail` raises at (stage, engine), `hold` waits there until it is set."""

    def __init__(self, timeout=20.0):
        self.log = []
        self.fail = {}
        self.hold = {}
        self.engines = [Weights(address, self.log, self.trouble) for address in ("first", "second")]
        self.transport = Carrier(self.log, self.trouble)
        self.admission = Gate(self.log)
        self.router = LeastLoadedRouter(self.engines)
        self.timeout = timeout

    async def trouble(self, stage, address):
        await asyncio.sleep(0)
        if held := self.hold.get((stage, address)):
            await held.wait()
        if error := self.fail.get((stage, address)):
            raise error

    def publish(self, version=7):
        publisher = Publisher(
            Barrier(), self.transport, "trainer", self.engines, self.router, self.admission, self.timeout
        )
        return publisher.publish(version)

    async def enters(self):
        """Whether a group can enter now."""
        async with asyncio.timeout(2), self.admission.admit():
            return True


def run(scenario, **options):
    async def main():
        async with asyncio.timeout(20):
            await scenario(Setting(**options))

    asyncio.run(main())


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_publication_stages_on_all_engines_then_commits_on_all_and_the_gate_opens_last():
    async def scenario(setting):
        report = await setting.publish()
        log = setting.log
        assert log[:2] == ["close", "begin 7 of trainer"]
        assert sorted(log[2:4]) == ["stage first", "stage second"]
        assert sorted(log[4:6]) == ["commit first", "commit second"]
        assert sorted(log[6:8]) == ["flush first", "flush second"]
        assert log[8:] == ["finish", "open"]
        assert [engine.version for engine in setting.engines] == [7, 7]
        assert (report.version, report.mode, report.num_bytes) == (7, "barrier", 1234)
        assert report.engines == ["first", "second"]
        assert await setting.enters()

    run(scenario)


def test_two_publications_follow_each_other():
    async def scenario(setting):
        await setting.publish(1)
        await setting.publish(2)
        assert [engine.version for engine in setting.engines] == [2, 2]
        assert setting.transport.finished == 2

    run(scenario)


def test_nothing_is_exported_or_staged_before_the_last_group_has_left():
    async def scenario(setting):
        leave = asyncio.Event()

        async def group():
            async with setting.admission.admit():
                await leave.wait()
                setting.log.append("left")

        inside = asyncio.create_task(group())
        await settle()
        publishing = asyncio.create_task(setting.publish())
        await settle()
        assert setting.log == ["close"]
        leave.set()
        await publishing
        await inside
        assert setting.log[:3] == ["close", "left", "begin 7 of trainer"]

    run(scenario)


def test_a_group_that_comes_during_a_publication_enters_after_it_on_new_weights():
    async def scenario(setting):
        setting.hold["stage", "first"] = asyncio.Event()
        publishing = asyncio.create_task(setting.publish())
        await settle()
        seen = []

        async def group():
            async with setting.admission.admit():
                seen.extend(engine.version for engine in setting.engines)

        coming = asyncio.create_task(group())
        await settle()
        assert seen == []
        setting.hold["stage", "first"].set()
        await publishing
        await coming
        assert seen == [7, 7]

    run(scenario)


def test_no_engine_serves_new_weights_before_all_hold_them():
    async def scenario(setting):
        setting.hold["stage", "second"] = asyncio.Event()
        publishing = asyncio.create_task(setting.publish())
        await settle()
        assert setting.log == ["close", "begin 7 of trainer", "stage first"]
        assert [engine.version for engine in setting.engines] == [0, 0]
        setting.hold["stage", "second"].set()
        await publishing
        assert [engine.version for engine in setting.engines] == [7, 7]

    run(scenario)


def test_no_cache_is_dropped_before_all_engines_serve_new_weights():
    async def scenario(setting):
        setting.hold["commit", "first"] = asyncio.Event()
        publishing = asyncio.create_task(setting.publish())
        await settle()
        assert setting.log[-1] == "commit second"
        setting.hold["commit", "first"].set()
        await publishing

    run(scenario)


def test_engines_stage_at_the_same_time():
    async def scenario(setting):
        setting.hold["stage", "first"] = asyncio.Event()
        publishing = asyncio.create_task(setting.publish())
        await settle()
        assert "stage second" in setting.log
        setting.hold["stage", "first"].set()
        await publishing

    run(scenario)


def test_the_report_counts_what_was_running_when_it_began():
    async def scenario(setting):
        requests = [
            asyncio.create_task(setting.router.generate(name, GenerationRequest(name, [1], SamplingParams())))
            for name in "abc"
        ]
        await settle()
        assert (await setting.publish()).in_flight == 3
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        assert (await setting.publish()).in_flight == 0

    run(scenario)


FAILURES = [("begin", None), *((stage, of) for stage in ("stage", "commit", "flush") for of in ("first", "second"))]


@pytest.mark.parametrize("place", FAILURES)
def test_a_failure_at_any_stage_is_raised_itself_with_the_gate_open_and_the_transport_finished(place):
    async def scenario(setting):
        error = setting.fail[place] = EngineError("no room for the weights")
        with pytest.raises(EngineError) as caught:
            await setting.publish()
        assert caught.value is error
        assert setting.transport.finished == 1
        assert setting.log.index("finish") > setting.log.index("close")
        assert await setting.enters()

    run(scenario)


@pytest.mark.parametrize("of", ["first", "second"])
def test_a_failure_to_stage_leaves_every_engine_on_the_old_version(of):
    async def scenario(setting):
        setting.fail["stage", of] = EngineError("no room for the weights")
        with pytest.raises(EngineError):
            await setting.publish()
        assert [engine.version for engine in setting.engines] == [0, 0]

    run(scenario)


def test_a_publication_after_a_failed_one_succeeds():
    async def scenario(setting):
        setting.fail["stage", "first"] = EngineError("no room for the weights")
        with pytest.raises(EngineError):
            await setting.publish(1)
        setting.fail.clear()
        await setting.publish(2)
        assert [engine.version for engine in setting.engines] == [2, 2]

    run(scenario)


def test_the_gate_opens_even_where_the_transport_cannot_finish():
    async def scenario(setting):
        setting.fail["finish", None] = OSError("the folder is gone")
        with pytest.raises(OSError, match="the folder is gone"):
            await setting.publish()
        assert await setting.enters()

    run(scenario)


@pytest.mark.parametrize("place", FAILURES)
def test_a_publication_over_its_time_names_the_setting(place):
    async def scenario(setting):
        setting.hold[place] = asyncio.Event()
        with pytest.raises(RerollError, match=r"version 7 took longer than 0.05 s; raise serving.publication_timeout"):
            await setting.publish()
        assert setting.transport.finished == 1
        assert await setting.enters()

    run(scenario, timeout=0.05)


def test_the_time_counts_from_the_start_and_not_from_when_the_last_group_left():
    async def scenario(setting):
        async with setting.admission.admit():
            with pytest.raises(RerollError, match="serving.publication_timeout"):
                await setting.publish()
        assert setting.log == ["close", "finish", "open"]
        assert await setting.enters()

    run(scenario, timeout=0.05)


def test_a_timeout_of_something_else_is_not_told_as_the_publications_own():
    async def scenario(setting):
        error = setting.fail["stage", "first"] = TimeoutError("connection timed out")
        with pytest.raises(TimeoutError) as caught:
            await setting.publish()
        assert caught.value is error

    run(scenario)


def test_a_cancelled_publication_opens_the_gate_and_finishes():
    async def scenario(setting):
        setting.hold["stage", "first"] = asyncio.Event()
        publishing = asyncio.create_task(setting.publish())
        await settle()
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        assert setting.log[-2:] == ["finish", "open"]

    run(scenario)


class Trainer:
    """A weight source that writes two files, or fails after the first."""

    def __init__(self, error=None):
        self.error = error
        self.asked = []

    async def export_weights(self, directory, bucket_bytes):
        self.asked.append((directory, bucket_bytes))
        buckets = []
        for number in range(2):
            path = directory / f"bucket-{number}.safetensors"
            path.write_bytes(b"x" * (number + 1))
            buckets.append(WeightBucket(str(path), (f"layer.{number}",), number + 1))
            if self.error:
                raise self.error
        return buckets


class Reader(Engine):
    """Reads what it stages."""

    name = "reader"
    read = None

    async def stage_weights(self, buckets):
        self.read = [(bucket.names, Path(bucket.path).read_bytes()) for bucket in buckets]


def disk(directory, cls=DiskTransport, **options):
    return cls(FileTransportConfig(directory=directory, **options))


@pytest.mark.parametrize("cls", [DiskTransport, SharedMemoryTransport])
def test_files_are_below_the_given_directory_while_engines_read_them_and_gone_afterwards(tmp_path, cls):
    async def scenario():
        transport, trainer, engines = (
            disk(directory, cls, update_weight_buffer_size=99),
            Trainer(),
            [Reader(), Reader()],
        )
        assert await transport.begin(trainer, 3) == 3
        ((folder, bucket_bytes),) = trainer.asked
        assert (folder.parent, bucket_bytes) == (directory, 99)
        assert folder.name.startswith("reroll-weights-3-")
        for engine in engines:
            await transport.stage(engine)
        assert [engine.read for engine in engines] == [[(("layer.0",), b"x"), (("layer.1",), b"xx")]] * 2
        await transport.finish()
        assert list(directory.iterdir()) == []

    directory = tmp_path / "made" / "for it"
    asyncio.run(scenario())


def test_the_directory_itself_and_what_others_have_in_it_stays(tmp_path):
    async def scenario():
        transport = disk(tmp_path)
        for version in (1, 2):
            await transport.begin(Trainer(), version)
            await transport.finish()

    (tmp_path / "mine.txt").touch()
    asyncio.run(scenario())
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_without_a_directory_files_go_to_the_temporary_folder(tmp_path, monkeypatch):
    async def scenario():
        transport, trainer = DiskTransport(), Trainer()
        await transport.begin(trainer, 1)
        ((folder, _),) = trainer.asked
        assert folder.parent == tmp_path
        await transport.finish()

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    asyncio.run(scenario())
    assert list(tmp_path.iterdir()) == []


def test_finishing_without_a_beginning_or_twice_does_nothing(tmp_path):
    async def scenario():
        transport = disk(tmp_path)
        await transport.finish()
        await transport.begin(Trainer(), 1)
        await transport.finish()
        await transport.finish()

    asyncio.run(scenario())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "raised"), [(OSError(28, "No space left on device"), RerollError), (EngineError("stopped"), EngineError)]
)
def test_finish_removes_what_a_failed_beginning_left(tmp_path, error, raised):
    async def scenario():
        transport, engine = disk(tmp_path), Reader()
        with pytest.raises(raised, match=error.args[-1]):
            await transport.begin(Trainer(error), 1)
        await transport.finish()
        assert list(tmp_path.iterdir()) == []
        await transport.begin(Trainer(), 2)
        await transport.stage(engine)
        assert len(engine.read) == 2, "the next publication is whole"
        await transport.finish()

    asyncio.run(scenario())


def test_a_full_disk_names_version_and_folder(tmp_path):
    async def scenario():
        with pytest.raises(
            RerollError, match=rf"weights of version 5 could not be written to {tmp_path}.*No space left"
        ):
            await disk(tmp_path).begin(Trainer(OSError(28, "No space left on device")), 5)

    asyncio.run(scenario())


@pytest.mark.parametrize("cls", [DiskTransport, SharedMemoryTransport])
def test_a_directory_that_cannot_be_made_is_an_error_for_the_user_that_names_it(tmp_path, cls):
    taken = tmp_path / "taken"
    taken.touch()

    async def scenario():
        transport = disk(taken / "below", cls)
        with pytest.raises(RerollError, match=str(taken)):
            await transport.begin(Trainer(), 1)
        await transport.finish()

    asyncio.run(scenario())


def test_the_barrier_removes_the_files_of_a_publication_that_failed(tmp_path):
    class Full(Reader):
        address = "full"

        async def stage_weights(self, buckets):
            raise EngineError("no room for the weights")

    async def scenario():
        engine = Full()
        context = PublicationContext(
            version=1,
            engines=[engine],
            router=LeastLoadedRouter([engine]),
            admission=GroupAdmission(),
            transport=disk(tmp_path),
            source=Trainer(),
            timeout=20.0,
        )
        with pytest.raises(EngineError, match="no room"):
            await Barrier().publish(context)
        assert list(tmp_path.iterdir()) == []

    asyncio.run(scenario())
