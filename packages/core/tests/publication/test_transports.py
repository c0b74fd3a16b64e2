"""The files that weights pass through: where they are, that they go, and whose leftovers are removed."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reroll.api import (
    CommitCost,
    Engine,
    EngineError,
    RerollError,
    WeightBucket,
)
from reroll.publication import folders
from reroll.publication.barrier import Barrier
from reroll.publication.publisher import Publisher
from reroll.publication.transports import DiskTransport, FileTransportConfig, SharedMemoryTransport
from reroll.rollouts.admission import GroupAdmission
from reroll.serving.router import LeastOutstandingTokensRouter


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
    address = "reader"
    read = None
    version = 0

    async def stage_weights(self, buckets):
        self.read = [(bucket.names, Path(bucket.path).read_bytes()) for bucket in buckets]

    async def commit_weights(self, version, recompute=False):
        self.version = version
        return CommitCost()

    async def weight_version(self):
        return self.version

    async def flush_cache(self):
        pass


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


@pytest.fixture
def gone():
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def left_by(parent, pid, version=3, space=None, suffix="abc_123x"):
    """A folder as a process that was killed leaves it."""
    folder = parent / f"reroll-weights-{version}-{space or folders.process_space()}-{pid}-{suffix}"
    folder.mkdir()
    (folder / "bucket-0.safetensors").write_bytes(b"x" * 10)
    return folder


def begin_and_finish(directory, cls=DiskTransport):
    async def scenario():
        transport = disk(directory, cls)
        await transport.begin(Trainer(), 1)
        await transport.finish()

    asyncio.run(scenario())


@pytest.mark.parametrize("cls", [DiskTransport, SharedMemoryTransport])
def test_what_a_killed_run_left_is_removed(tmp_path, gone, cls):
    left_by(tmp_path, gone)
    left_by(tmp_path, gone, version=12, suffix="other")
    begin_and_finish(tmp_path, cls)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_leaves_a_folder_that_the_next_run_removes(tmp_path):
    code = """
import os, sys
from pathlib import Path
from reroll.publication.folders import make_folder
print(make_folder(Path(sys.argv[1]), 5), flush=True)
sys.stdin.read()
os._exit(1)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    folder = Path(process.stdout.readline().strip())
    begin_and_finish(tmp_path)
    assert folder.is_dir(), "its process lives"
    process.communicate()
    begin_and_finish(tmp_path)
    assert not folder.exists()


def test_what_belongs_to_others_stays(tmp_path, gone, monkeypatch):
    stay = [
        left_by(tmp_path, os.getpid()),
        left_by(tmp_path, os.getppid()),
        left_by(tmp_path, gone, space="0badcafe"),
        left_by(tmp_path, 10**30),
        tmp_path / "reroll-weights-of-mine",
        tmp_path / f"reroll-weights-3-{folders.process_space()}-{gone}-a-file",
        tmp_path / f"reroll-weights-3-{folders.process_space()}-{gone}-link",
    ]
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    elsewhere.mkdir()
    stay[-3].mkdir()
    stay[-2].touch()
    stay[-1].symlink_to(elsewhere)
    begin_and_finish(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(stay)
    assert elsewhere.is_dir()


def test_another_users_leftovers_stay(tmp_path, gone, monkeypatch):
    folder = left_by(tmp_path, gone)
    other = os.getuid() + 1
    monkeypatch.setattr("os.getuid", lambda: other)
    begin_and_finish(tmp_path)
    assert folder.is_dir()


def test_a_process_of_another_user_counts_as_alive(monkeypatch):
    def kill(pid, signal):
        raise PermissionError

    monkeypatch.setattr("os.kill", kill)
    assert folders._lives(12345)


def test_two_publications_never_share_a_folder(tmp_path):
    async def scenario():
        trainer, transports = Trainer(), [disk(tmp_path), disk(tmp_path)]
        for transport in transports:
            await transport.begin(trainer, 1)
            await transport.begin(trainer, 1)
        assert len({folder for folder, _ in trainer.asked}) == 4
        await transports[0].finish()
        assert len(list(tmp_path.iterdir())) == 2, "the other one's"
        await transports[1].finish()
        assert list(tmp_path.iterdir()) == []

    asyncio.run(scenario())


def test_a_folder_that_was_written_to_while_it_was_removed_goes_the_next_time(tmp_path, monkeypatch):
    async def scenario():
        transport = disk(tmp_path)
        await transport.begin(Trainer(), 1)
        with monkeypatch.context() as patch:
            patch.setattr("shutil.rmtree", lambda *_, **__: None)
            await transport.finish()
        await transport.begin(Trainer(), 2)
        await transport.finish()
        assert list(tmp_path.iterdir()) == []

    asyncio.run(scenario())


def test_a_publication_that_fails_leaves_no_files(tmp_path):
    class Full(Reader):
        address = "full"

        async def stage_weights(self, buckets):
            raise EngineError("no room for the weights")

    async def scenario():
        engine, trainer = Full(), Trainer()
        with pytest.raises(EngineError, match="no room"):
            await publisher(engine, trainer, tmp_path).publish(1)
        assert len({folder for folder, _ in trainer.asked}) == 2
        assert list(tmp_path.iterdir()) == []

    asyncio.run(scenario())


def test_an_export_that_fails_once_is_written_again(tmp_path):
    class Unlucky(Trainer):
        async def export_weights(self, directory, bucket_bytes):
            self.error = None if self.asked else OSError(28, "No space left on device")
            return await super().export_weights(directory, bucket_bytes)

    async def scenario():
        engine = Reader()
        report = await publisher(engine, Unlucky(), tmp_path).publish(1)
        assert (report.attempts, report.num_bytes, engine.version) == (2, 3, 1)
        assert len(engine.read) == 2
        assert list(tmp_path.iterdir()) == []

    asyncio.run(scenario())


def publisher(engine, trainer, directory):
    return Publisher(
        mode=Barrier(),
        transport=disk(directory),
        source=trainer,
        engines=[engine],
        router=LeastOutstandingTokensRouter([engine]),
        admission=GroupAdmission(),
        timeout=20.0,
    )
