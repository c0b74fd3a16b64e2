"""TOML in and out: the file, `--set SECTION.KEY=VALUE`, and where a key stands."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from reroll.api import Problem, RunFileError

Table = dict[str, Any]


def read_toml(path: Path) -> tuple[Table, str]:
    """The parsed file and its text; RunFileError names file and line."""
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise RunFileError(
            [Problem("run file", f"cannot read {path}: {reason}", "give the path of a TOML file")]
        ) from None
    try:
        return tomllib.loads(text), text
    except RecursionError:
        raise RunFileError([Problem("TOML", "tables are nested too deeply", file=str(path))]) from None
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line = int(found[1]) if found else None
        message = re.sub(r" \(at .*\)$", "", str(error))
        problem = Problem("TOML", message, "strings need quotes, tables look like [section]", str(path), line)
        raise RunFileError([problem]) from None


def parse_override(text: str) -> tuple[list[str], Any]:
    """`section.key=value` with a TOML value → path and value; RunFileError says what is wrong."""
    key, separator, value = text.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not separator or len(path) < 2 or not all(re.fullmatch(r"[A-Za-z0-9_-]+", part) for part in path):
        raise RunFileError(
            [Problem(f"--set {text}", "is not of the form SECTION.KEY=VALUE", "e.g. --set trainer.lr=1e-6")]
        )
    try:
        parsed = tomllib.loads(f"value = {value}")
        if set(parsed) != {"value"}:
            raise ValueError("more than one value")
        return path, parsed["value"]
    except (ValueError, RecursionError):
        remedy = f"""strings need TOML quotes that the shell leaves alone: --set '{key}="{value.strip()}"'"""
        raise RunFileError([Problem(f"--set {key}", f"{value!r} is not a TOML value", remedy)]) from None


def apply_override(table: Table, path: list[str], value: Any) -> None:
    """Sets `path` in `table`; a repeated assignment overwrites."""
    for depth, part in enumerate(path[:-1]):
        inner = table.setdefault(part, {})
        if isinstance(inner, str):
            # a component selected by its bare name: options join it
            inner = table[part] = {"name": inner}
        if not isinstance(inner, dict):
            reached = ".".join(path[: depth + 1])
            raise RunFileError([Problem(f"--set {'.'.join(path)}", f"{reached} is {inner!r}, not a table")])
        table = inner
    table[path[-1]] = value


def line_of(text: str, key: str) -> int | None:
    """The line, counted from 1, on which dotted `key` is set in TOML `text`; None if it is not seen.

    Reads headers and `key =` at the start of lines, which is how run files are written.
    """
    wanted = re.sub(r"\[\d+\]", "", key).split(".")
    index = [int(number) for number in re.findall(r"\[(\d+)\]", key)]
    table: list[str] = []
    counts: dict[str, int] = {}
    best: tuple[int, int] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[{1,2}\s*([^\]\[]+?)\s*\]{1,2}", line)
        assigned = re.match(r"\s*([A-Za-z0-9_\-.\"]+)\s*=", line)
        if header:
            table = [part.strip().strip('"') for part in header[1].split(".")]
            if line.lstrip().startswith("[["):
                counts[header[1]] = counts.get(header[1], -1) + 1
            path = table
        elif assigned:
            path = [*table, *(part.strip('"') for part in assigned[1].split("."))]
        else:
            continue
        item = counts.get(".".join(table))
        if item is not None and index and item != index[0]:
            continue
        common = len(path) if path == wanted[: len(path)] else 0
        if common and (best is None or common > best[0]):
            best = (common, number)
    return best[1] if best else None
