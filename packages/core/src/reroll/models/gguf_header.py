"""The header of a GGUF file, read without converting the file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import IO, Any

from reroll.models.files import ModelError

FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Number of a value's type in the file → how `struct` reads it."""
TEXT, ARRAY = 8, 9


def gguf_tensors(path: Path) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    """Tensor name → shape, slowest dimension first as torch has it; and the single values of the metadata, without the
    architecture's name in front of their keys. ModelError for what cannot be read."""
    try:
        with path.open("rb") as file:
            return _read(file, path.stat().st_size)
    except (OSError, ValueError, struct.error, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is no GGUF file that can be read: {error}") from None


def _read(file: IO[bytes], size: int) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    if file.read(4) != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    version, tensors, values = (_number(file, kind) for kind in "IQQ")
    if version not in (2, 3) or max(tensors, values) > size:
        raise ValueError(f"version {version}, {tensors} tensors, {values} values")
    told: dict[str, Any] = {}
    for _ in range(values):
        key, kind = _text(file, size), _number(file, "I")
        value = _value(file, kind, size)
        if value is not None:
            told[key] = value
    prefix = f"{told.get('general.architecture', '')}."
    shapes: dict[str, tuple[int, ...]] = {}
    for _ in range(tensors):
        name, dimensions = _text(file, size), _number(file, "I")
        if dimensions > 8:
            raise ValueError(f"{name} has {dimensions} dimensions")
        shapes[name] = tuple(reversed([_number(file, "Q") for _ in range(dimensions)]))
        file.read(12)  # the type of its elements, and where they are
    return shapes, {key.removeprefix(prefix): value for key, value in told.items()}


def _number(file: IO[bytes], kind: str) -> Any:
    width = struct.calcsize(f"<{kind}")
    return struct.unpack(f"<{kind}", file.read(width))[0]


def _text(file: IO[bytes], size: int) -> str:
    length = _number(file, "Q")
    if length > size:
        raise ValueError(f"a text of {length} bytes")
    found = file.read(length)
    if len(found) < length:
        raise ValueError("it ends within a text")
    return found.decode()


def _value(file: IO[bytes], kind: int, size: int) -> Any:
    """A single value; of an array nothing, which is passed over."""
    if kind == TEXT:
        return _text(file, size)
    if kind in FIXED:
        return _number(file, FIXED[kind])
    if kind != ARRAY:
        raise ValueError(f"a value of type {kind}")
    inner, length = _number(file, "I"), _number(file, "Q")
    if length > size:
        raise ValueError(f"an array of {length} items")
    if inner in FIXED:
        file.seek(length * struct.calcsize(f"<{FIXED[inner]}"), 1)
    else:
        for _ in range(length):
            _value(file, inner, size)
    return None
