"""Files of conversations: JSON lines, and Parquet, in which all messages have the same columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from reroll.api import Message
from reroll.config.atomic import replacing

SUFFIXES = (".jsonl", ".parquet")
ROWS = 256
"""Conversations that are written to a Parquet file at a time."""

Row = dict[str, Any]


def writing(path: Path) -> AbstractContextManager[Callable[[Row], None]]:
    """Gives a function that writes a row; the file is there, whole, at the end. What kind it is, its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return _parquet(path) if path.suffix == ".parquet" else _json_lines(path)


def message_columns(message: Message) -> dict[str, str | None]:
    """A message as Parquet holds it: texts as they are; `tool_calls` as JSON text; whatever else there is, such as a
    content of several parts, as JSON text in `other`."""
    columns: dict[str, str | None] = dict.fromkeys(("role", "content", "name", "tool_call_id", "tool_calls", "other"))
    other: Message = {}
    for key, value in message.items():
        if key in ("role", "content", "name", "tool_call_id") and isinstance(value, str):
            columns[key] = value
        elif key == "tool_calls" and isinstance(value, list):
            columns[key] = _json(value)
        else:
            other[key] = value
    columns["other"] = _json(other) if other else None
    return columns


def messages_of(row: Mapping[str, Any]) -> list[Message]:
    """The messages of an exported row as chat templates take them, whichever kind of file it was read from: JSON text
    is read, and the nulls that readers fill in are taken out."""
    found: list[Message] = []
    for saved in row["messages"]:
        message = {key: value for key, value in saved.items() if value is not None and key != "other"}
        if isinstance(message.get("tool_calls"), str):
            message["tool_calls"] = json.loads(message["tool_calls"])
        found.append({**message, **json.loads(saved.get("other") or "{}")})
    return found


def tools_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tool schemas of an exported row, whichever kind of file it was read from."""
    tools = row["tools"]
    return list(json.loads(tools) if isinstance(tools, str) else tools or [])


def _writable(row: Row) -> Row:
    """Lone surrogates, which sampled text may hold and no file of text can, as replacement characters."""
    text = _json(row)
    try:
        text.encode()
    except UnicodeEncodeError:
        replaced: Row = json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
        return replaced
    return row


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def _json_lines(path: Path) -> Iterator[Callable[[Row], None]]:
    with replacing(path) as file:

        def write(row: Row) -> None:
            file.write(_json(_writable(row)).encode() + b"\n")

        yield write


@contextmanager
def _parquet(path: Path) -> Iterator[Callable[[Row], None]]:
    import pyarrow
    from pyarrow import parquet

    text, number = pyarrow.string(), pyarrow.int64()
    message = pyarrow.struct([(name, text) for name in message_columns({})])
    schema = pyarrow.schema(
        {
            "messages": pyarrow.list_(message),
            "tools": text,
            "source_dataset": text,
            "source_row": number,
            "prepared_sample_id": text,
            "trial": number,
            "reward": pyarrow.float64(),
            "tokens": number,
            "model": text,
            "run": text,
        }
    )
    with replacing(path) as file, parquet.ParquetWriter(file, schema) as writer:
        rows: list[Row] = []

        def flush() -> None:
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))
            rows.clear()

        def write(row: Row) -> None:
            row = _writable(row)
            columns = [message_columns(message) for message in row["messages"]]
            rows.append({**row, "messages": columns, "tools": _json(row["tools"]) if row["tools"] else None})
            if len(rows) == ROWS:
                flush()

        yield write
        if rows:
            flush()
