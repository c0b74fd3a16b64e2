"""`reroll logs`: what a run says."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from reroll.cli.target import RunArgument, output_of

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_SECONDS = 0.25
BLOCK = 1 << 16


def logs(
    target: RunArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    worker: Annotated[
        str | None, typer.Option(help="The log of one of its processes instead, such as engine-0.")
    ] = None,
    lines: Annotated[int | None, typer.Option("--lines", "-n", min=0, help="Only the last so many lines.")] = None,
) -> None:
    """Print what a run has said, and with --follow what it says from now on."""
    from reroll.launch.standing import standing_of
    from reroll.plugins import installed_plugins

    output, plugins = output_of(target), installed_plugins()
    standing_of(output, plugins)  # is it a run?
    path = log_of(output, worker)
    with path.open("rb") as file:
        if lines is not None:
            file.seek(start_of_last(file, lines))
        _print(file, (lambda: standing_of(output, plugins).ended) if follow else None)


def log_of(output: Path, worker: str | None) -> Path:
    """RerollError says which logs there are."""
    from reroll.api import RerollError
    from reroll.launch.folder import LAUNCH, LOG

    if worker is None:
        for path in (output / LAUNCH / LOG, output / "run.log"):
            if path.exists():
                return path
        raise RerollError(f"{output} has no log yet")
    known = {path.stem: path for path in sorted((output / "logs").glob("*.log"))}
    if worker not in known:
        raise RerollError(f"{output / 'logs'} has no log of {worker!r}; there are: {', '.join(known) or 'none'}")
    return known[worker]


def start_of_last(file: BinaryIO, lines: int) -> int:
    """Where the last so many lines begin; a last line that has no end yet counts as one."""
    at, tail = file.seek(0, 2), b""
    while at and tail.count(b"\n") <= lines:
        begin = max(0, at - BLOCK)
        file.seek(begin)
        tail = file.read(at - begin) + tail
        at = begin
    kept = tail.splitlines(keepends=True)
    return at + sum(map(len, kept[: max(0, len(kept) - lines)]))


def _print(file: BinaryIO, ended: Callable[[], bool] | None) -> None:
    while True:
        over = ended is None or ended()  # asked before reading: what is said until then is read
        while block := file.read(BLOCK):
            sys.stdout.buffer.write(block)
        sys.stdout.buffer.flush()
        if over:
            return
        time.sleep(LOOK_SECONDS)
