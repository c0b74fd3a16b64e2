"""Transports that go through files: in shared memory, or on disk."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from pydantic import Field

from reroll.api import Config, Engine, RerollError, Transport, WeightBucket, WeightSource
from reroll.publication.folders import make_folder, remove_stale_folders


class FileTransportConfig(Config):
    update_weight_buffer_size: int = Field(512 * 1024**2, gt=0)
    """Bytes of tensors in one file; bounds what an engine holds beside the staged model."""
    directory: Path | None = None
    """Where the files stand while engines read them; every engine must see it. By default the temporary folder, or
    /dev/shm for `shared_memory`."""


class DiskTransport(Transport):
    """The trainer writes safetensors files, engines read them, then they are removed.

    Works wherever trainer and engines share a file system.
    """

    name = "disk"
    Config = FileTransportConfig
    default_directory: Path | None = None

    def __init__(self, config: object = None) -> None:
        super().__init__(config)
        self._folders: list[Path] = []
        self._buckets: list[WeightBucket] = []

    async def begin(self, source: WeightSource, version: int) -> int:
        parent = self.config.directory or self.default_directory or Path(tempfile.gettempdir())
        folder = parent
        try:
            parent.mkdir(parents=True, exist_ok=True)
            remove_stale_folders(parent)
            folder = make_folder(parent, version)
            self._folders.append(folder)
            self._buckets = await source.export_weights(folder, self.config.update_weight_buffer_size)
        except RerollError:
            raise
        except Exception as error:  # of the file system, or of the library that writes the files
            raise RerollError(f"weights of version {version} could not be written to {folder}: {error}") from error
        return sum(bucket.num_bytes for bucket in self._buckets)

    async def stage(self, engine: Engine) -> None:
        await engine.stage_weights(self._buckets)

    async def finish(self) -> None:
        self._buckets = []
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        # One that a trainer was still writing to is tried again next time.
        self._folders = [folder for folder in self._folders if folder.exists()]


class SharedMemoryTransport(DiskTransport):
    """The same through memory that all processes of one machine share."""

    name = "shared_memory"
    default_directory = Path("/dev/shm")

    async def begin(self, source: WeightSource, version: int) -> int:
        if self.config.directory is None and not Path("/dev/shm").is_dir():
            raise RerollError('this machine has no /dev/shm: set serving.transport = "disk"')
        try:
            return await super().begin(source, version)
        except Exception as error:
            folder = self.config.directory or self.default_directory
            with suppress(OSError):
                free = shutil.disk_usage(folder).free
                error.add_note(f'{folder} has {free:,} bytes free; if that is too little: serving.transport = "disk"')
            raise
