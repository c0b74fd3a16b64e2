"""An environment whose commands run in a folder of the host: no sandbox, and for these tests alone.

What the layout has at the root of an environment's file system (`/app`, `/tests`, `/logs`) is in the folder, and paths
in commands are rewritten to it.
"""

import asyncio
import os
import re
import shutil
import signal
import tempfile
from pathlib import Path

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities

ROOTED = re.compile(r"(?<![\w./])/(app|tests|logs|tmp|solution)(?=[/\s'\"]|$)")
there: dict[str, Path] = {}
"""Environments that are started and not stopped yet: session → folder."""
started: list[str] = []


class HostEnvironment(BaseEnvironment):
    def __init__(self, *args, fault=None, **kwargs):
        self.fault = fault
        super().__init__(*args, **kwargs)

    @staticmethod
    def type():
        return "host-folder"

    @classmethod
    def preflight(cls, kwargs=None):
        if (kwargs or {}).get("fault") == "preflight":
            raise SystemExit("no folder can be made on this host")

    @property
    def capabilities(self):
        return EnvironmentCapabilities()

    def _validate_definition(self):
        return

    async def start(self, force_build):
        if self.fault == "start":
            raise RuntimeError("no image of that name")
        folder = Path(tempfile.mkdtemp(prefix="host-environment-"))
        for name in ("app", "tests", "logs/agent", "logs/verifier", "logs/artifacts", "tmp", "solution"):
            (folder / name).mkdir(parents=True)
        there[self.session_id] = folder
        started.append(self.session_id)

    async def stop(self, delete):
        folder = there.pop(self.session_id, None)
        if folder is not None:
            await asyncio.sleep(0.05)  # of a real one that takes its time, during which a cancellation may come again
            shutil.rmtree(folder)
        if self.fault == "stop":
            raise OSError("the folder is busy")

    def _at(self, path):
        return there[self.session_id] / str(path).lstrip("/")

    async def upload_file(self, source_path, target_path):
        self._at(target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source_path, self._at(target_path))

    async def upload_dir(self, source_dir, target_dir):
        shutil.copytree(source_dir, self._at(target_dir), dirs_exist_ok=True)
        for path in self._at(target_dir).rglob("*.sh"):
            path.write_text(self._rooted(path.read_text()))

    async def download_file(self, source_path, target_path):
        shutil.copy(self._at(source_path), target_path)

    async def download_dir(self, source_dir, target_dir):
        shutil.copytree(self._at(source_dir), target_dir, dirs_exist_ok=True)

    def _rooted(self, text):
        return ROOTED.sub(lambda match: f"{there[self.session_id]}/{match[1]}", text)

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None):
        if self.fault == "exec" and "break" in command:
            raise ConnectionError("the environment is gone")
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            self._rooted(command),
            cwd=self._at(cwd or "/app"),
            env={**os.environ, **(self._merge_env(env) or {})},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(), timeout_sec)
        except TimeoutError:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds") from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return ExecResult(stdout=output.decode(), stderr=errors.decode(), return_code=process.returncode)
