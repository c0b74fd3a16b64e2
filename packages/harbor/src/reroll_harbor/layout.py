"""Task directories in Harbor's layout, read without Harbor."""

from __future__ import annotations

import hashlib
import math
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reroll.api import TaskError, one_line

CONFIG = "task.toml"
INSTRUCTION = "instruction.md"
TEST = Path("tests", "test.sh")
CANARY = re.compile(r"\s*(?:#.*canary.*|<!--.*canary.*-->\s*)", re.IGNORECASE)
"""A comment that marks the text as part of a benchmark; no model is to see it."""
LEVELS = 2
"""So deep are task directories looked for in a data set."""
BLOCK = 1 << 20


@dataclass(frozen=True)
class TaskDirectory:
    """What a trial follows from.

    Attributes:
        path: absolute.
        name: what task.toml says, or the directory's name.
        source: the data set that task.toml names, None where it names none.
        agent_timeout, verifier_timeout: seconds; None where task.toml leaves them to Harbor.
    """

    path: Path
    name: str
    source: str | None
    instruction: str
    agent_timeout: float | None
    verifier_timeout: float | None


def find_tasks(path: Path) -> list[Path]:
    """Task directories in `path`, which may be one itself; in order of their names. TaskError where there is none."""
    if not path.is_dir():
        found = "is no directory" if path.exists() else "does not exist"
        raise TaskError(f"{path.absolute()} {found}: give a task directory, or a directory of them")
    if _looks_like_task(path):
        return [path]
    try:
        found_tasks = list(_within(path, LEVELS))
    except OSError as error:
        raise TaskError(f"{path.absolute()} cannot be read: {error}") from None
    if not found_tasks:
        raise TaskError(f"{path.absolute()} holds no directory with a {CONFIG}, up to {LEVELS} levels deep")
    return found_tasks


def _within(path: Path, levels: int) -> Iterator[Path]:
    for child in sorted(path.iterdir()):
        if child.name.startswith(".") or not child.is_dir():
            continue
        if child.is_symlink() and path.resolve().is_relative_to(child.resolve()):
            raise TaskError(f"{child.absolute()} is a link to a directory above it: remove it")
        if _looks_like_task(child):
            yield child
        elif levels > 1:
            yield from _within(child, levels - 1)


def _looks_like_task(path: Path) -> bool:
    """A directory with an instruction and without a task.toml is a broken task, and not to be passed over."""
    return (path / CONFIG).exists() or (path / INSTRUCTION).exists()


def read_task(path: Path) -> TaskDirectory:
    """The task in a directory. TaskError names file, key and value of what is wrong, or of what the harness `harbor`
    does not run."""
    config = read_config(path)
    agent, verifier, environment = (_table(config, name, path) for name in ("agent", "verifier", "environment"))
    _check_supported(path, config, environment)
    if not environment.get("docker_image") and not (path / "environment").is_dir():
        raise TaskError(f"{path}: has neither a directory environment nor [environment] docker_image in {CONFIG}")
    if not (path / TEST).is_file() and not _brings_tests(path, verifier):
        raise TaskError(f"{path}: has no {TEST.as_posix()}, which says what a trial is rewarded for")
    source = config.get("source")
    return TaskDirectory(
        path=path.resolve(),
        name=task_name(path, config),
        source=source if isinstance(source, str) and source else None,
        instruction=_instruction(path),
        agent_timeout=_seconds(agent, "agent", path),
        verifier_timeout=_seconds(verifier, "verifier", path),
    )


def read_config(path: Path) -> dict[str, Any]:
    """What task.toml says; TaskError where it cannot be read."""
    try:
        return tomllib.loads(_text(path / CONFIG))
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"{path / CONFIG}: {one_line(str(error))}") from None
    except RecursionError:
        raise TaskError(f"{path / CONFIG}: is nested too deeply") from None


def task_name(path: Path, config: Mapping[str, Any]) -> str:
    """`name` in [task], or the directory's name."""
    name = _table(config, "task", path).get("name")
    if name is None:
        return path.resolve().name
    if not isinstance(name, str) or not name.strip():
        raise TaskError(f"{path / CONFIG}: [task] name = {name!r:.60} is no name")
    return name


def _check_supported(path: Path, config: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
    """What the layout knows and the harness does not run, told before anything is started."""
    system = environment.get("os", "linux")
    refused = {
        "[[steps]] (a task of several steps)": bool(config.get("steps")),
        f"[environment] os = {system!r:.60}": not (isinstance(system, str) and system.lower() == "linux"),
        "[environment] mcp_servers": bool(environment.get("mcp_servers")),
        "[environment] skills_dir": bool(environment.get("skills_dir")),
        "trajectory.json (a conversation to go on from)": (path / "trajectory.json").exists(),
    }
    for what, is_there in refused.items():
        if is_there:
            raise TaskError(f"{path}: has {what}, which the harness 'harbor' does not run; leave the task out")


def _brings_tests(path: Path, verifier: Mapping[str, Any]) -> bool:
    """Whether the verifier has an image of its own, in which the tests are."""
    environment = verifier.get("environment")
    if isinstance(environment, Mapping) and environment.get("docker_image"):
        return True
    separate = verifier.get("environment_mode") == "separate" or environment is not None
    return separate and any((path / "tests" / name).is_file() for name in ("Dockerfile", "docker-compose.yaml"))


def _instruction(path: Path) -> str:
    """The instruction without the canary comments at its beginning."""
    lines = _text(path / INSTRUCTION).split("\n")
    first = next((index for index, line in enumerate(lines) if line.strip() and not CANARY.fullmatch(line)), len(lines))
    said = "\n".join(lines[first:])
    if not said:
        raise TaskError(f"{path / INSTRUCTION}: says nothing")
    return said


def _table(config: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    table = config.get(name, {})
    if not isinstance(table, Mapping):
        raise TaskError(f"{path / CONFIG}: {name} = {table!r:.60} is no table: write [{name}]")
    return table


def _seconds(table: Mapping[str, Any], name: str, path: Path) -> float | None:
    value = table.get("timeout_sec")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise TaskError(f"{path / CONFIG}: [{name}] timeout_sec = {value!r:.60} is no number of seconds above 0")
    return float(value)


def _text(path: Path) -> str:
    if not path.is_file():
        raise TaskError(f"{path.absolute()} {'is no file' if path.exists() else 'does not exist'}")
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise TaskError(f"{path.absolute()} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise TaskError(f"{path.absolute()} is no text in UTF-8: {error}") from None


def digest_of(path: Path) -> str:
    """SHA-256 over names, contents and modes of all files in a task directory. TaskError for what cannot be a part of
    one: links that lead out of it or nowhere, and what is no file."""
    digest = hashlib.sha256()
    try:
        for name, entry in _entries(path):
            mode = entry.lstat().st_mode
            if stat.S_ISLNK(mode):
                _check_link(entry, path)
                kind, size = "link", len(os.readlink(entry))
            elif stat.S_ISREG(mode):
                kind, size = "program" if mode & stat.S_IXUSR else "file", entry.stat().st_size
            else:
                raise TaskError(f"{entry}: is neither a file nor a directory nor a link: remove it")
            digest.update(f"{len(name.encode())} {name} {kind} {size}\n".encode())
            if kind == "link":
                digest.update(os.readlink(entry).encode())
                continue
            with entry.open("rb") as file:
                while block := file.read(BLOCK):
                    digest.update(block)
    except OSError as error:
        raise TaskError(f"{path.absolute()} cannot be read: {error}") from None
    except UnicodeEncodeError:
        raise TaskError(f"{path.absolute()} has a file whose name is no text: rename it") from None
    return digest.hexdigest()


def _entries(path: Path) -> Iterator[tuple[str, Path]]:
    """Relative name and path of all that is no directory, links to directories included; in order."""

    def unreadable(error: OSError) -> None:
        raise error

    found: list[tuple[str, Path]] = []
    for folder, folders, files in os.walk(path, onerror=unreadable):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in [*files, *links]:
            entry = Path(folder, name)
            found.append((entry.relative_to(path).as_posix(), entry))
    yield from sorted(found)


def _check_link(link: Path, root: Path) -> None:
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError):  # RuntimeError: of links in a circle, before Python 3.13
        raise TaskError(f"{link}: is a link that leads nowhere: remove it") from None
    if not target.is_relative_to(root.resolve()):
        raise TaskError(f"{link}: is a link out of the task: put a copy in its place")
    if target.is_dir() and link.parent.resolve().is_relative_to(target):
        raise TaskError(f"{link}: is a link to a directory above it: remove it")
