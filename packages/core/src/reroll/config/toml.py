"""TOML in and out: the file, `--set SECTION.KEY=VALUE`, `--option KEY=VALUE`, and where a key stands."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from reroll.api import Problem, RerollError, RunFileError
from reroll.config.problems import shown
from reroll.config.secrets import VARIABLES, is_secret, secret_name, secret_shape

Table = dict[str, Any]
QUOTING = "strings need TOML quotes that the shell leaves alone"


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
    """`section.key=value` with a TOML value → path and value; RunFileError says what is wrong. A part of the path may
    name an item of a list, counted from 0: `eval.sets[0].temperature`."""
    key, separator, value = text.partition("=")
    text, given = _shown_assignment(text)
    path = [part.strip() for part in key.split(".")]
    if not separator or len(path) < 2 or not all(re.fullmatch(r"[A-Za-z0-9_-]+(\[\d+\])?", part) for part in path):
        raise RunFileError(
            [Problem(f"--set {text}", "is not of the form SECTION.KEY=VALUE", "e.g. --set trainer.lr=1e-6")]
        )
    try:
        return path, _parsed_value(value)
    except (ValueError, RecursionError):
        remedy = f"""{QUOTING}: --set '{key}="{given}"'"""
        raise RunFileError([Problem(f"--set {key}", f"{given!r} is not a TOML value", remedy)]) from None


def parse_option(text: str) -> tuple[str, Any]:
    """`KEY=VALUE` of `--option`, with a TOML value → key and value; RerollError says what is wrong."""
    key, separator, value = text.partition("=")
    text, given = _shown_assignment(text)
    if not separator or not re.fullmatch(r"[A-Za-z0-9_-]+", key.strip()):
        raise RerollError(f"--option {text}: is not of the form KEY=VALUE; e.g. --option limit=3")
    try:
        return key.strip(), _parsed_value(value)
    except (ValueError, RecursionError):
        remedy = f"""{QUOTING}: --option '{key.strip()}="{given}"'"""
        raise RerollError(f"--option {key.strip()}: {given!r} is not a TOML value; {remedy}") from None


def _parsed_value(text: str) -> Any:
    """ValueError or RecursionError for what is not one TOML value."""
    parsed = tomllib.loads(f"value = {text}")
    if set(parsed) != {"value"}:
        raise ValueError("more than one value")
    return parsed["value"]


def _shown_assignment(text: str) -> tuple[str, str]:
    """`KEY=VALUE` and its value, as an error may repeat them."""
    key, _, value = text.partition("=")
    # What is no TOML is not taken apart, and nothing else would keep a secret in it from being repeated.
    inside = re.findall(r"[\w-]+(?=\s*=)", value)
    if VARIABLES in text:
        inside = [f"{VARIABLES}.{name}" for name in inside]
    if is_secret(key.strip(), value) or any(map(secret_name, inside)) or secret_shape(text):
        return f"{'(hidden)' if secret_shape(key) else key}=(hidden)", "(hidden)"
    return text, value.strip()


def apply_override(table: Table, path: list[str], value: Any) -> None:
    """Sets `path` in `table`; a repeated assignment overwrites."""
    for depth, part in enumerate(path, 1):
        holder, place = _place(table, part, path, ".".join(path[:depth]))
        if depth == len(path):
            holder[place] = value
            return
        inner = holder.setdefault(place, {}) if isinstance(holder, dict) else holder[place]
        if isinstance(inner, str):
            # a component selected by its bare name: options join it
            inner = holder[place] = {"name": inner}
        if not isinstance(inner, dict):
            reached = ".".join(path[:depth])
            what = f"{reached} is {shown(reached, inner)}, not a table"
            raise RunFileError([Problem(f"--set {'.'.join(path)}", what)])
        table = inner


def _place(table: Table, part: str, path: list[str], reached: str) -> tuple[Any, Any]:
    """What holds the part, and where in it: a table and a name, or a list and the place of an item that it has."""
    name, _, index = part.partition("[")
    if not index:
        return table, name
    items, number, listed = table.get(name), int(index[:-1]), reached.rpartition("[")[0]
    if isinstance(items, list) and number < len(items):
        return items, number
    if items is None:
        has = "is not given in the file"
    else:
        has = f"has {len(items)} items" if isinstance(items, list) else f"is {shown(name, items)}, not a list"
    remedy = f"items count from 0; give the whole list: --set '{listed}=[…]'"
    raise RunFileError([Problem(f"--set {'.'.join(path)}", f"{listed} {has}", remedy)])


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
