"""Frames between a controller and its worker: a mark and a length, then a pickled list of messages.

Pickle is safe here: both ends are processes that the controller itself started, and nothing else can reach the socket
pair between them, or speak for an actor to whom its cluster is not open anyway.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from typing import Any, NamedTuple

PING = "__ping__"
"""A call that the reader thread answers, whatever the worker's object is doing."""
MARK = b"rerollf1"
"""Begins every frame: what other code in a worker wrote to the connection has no length that could be waited for."""
HEADER = struct.Struct(f"!{len(MARK)}sQ")


class Call(NamedTuple):
    id: int
    method: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


class Reply(NamedTuple):
    id: int
    value: Any
    error: BaseException | None


def encode(messages: list[Any]) -> bytes:
    body = pickle.dumps(messages, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(MARK, len(body)) + body


def decode(frame: bytes) -> list[Any]:
    """The messages of a whole frame."""
    messages: list[Any] = pickle.loads(memoryview(frame)[HEADER.size :])
    return messages


async def read_frame(reader: asyncio.StreamReader) -> list[Any]:
    """The next frame's messages; IncompleteReadError at the end of the stream, ValueError for what is no frame."""
    size = _size(await reader.readexactly(HEADER.size))
    messages: list[Any] = pickle.loads(await reader.readexactly(size))
    return messages


def read_frame_blocking(connection: socket.socket) -> list[Any]:
    """The next frame's messages; EOFError at the end of the stream, ValueError for what is no frame."""
    size = _size(_read_exactly(connection, HEADER.size))
    messages: list[Any] = pickle.loads(_read_exactly(connection, size))
    return messages


def _size(header: bytes) -> int:
    mark, size = HEADER.unpack(header)
    if mark != MARK:
        raise ValueError(f"a frame begins with {header!r}; something else used the connection")
    return int(size)


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    buffer = bytearray(size)
    view, have = memoryview(buffer), 0
    while have < size:
        got = connection.recv_into(view[have:])
        if got == 0:
            raise EOFError("the other end closed the connection")
        have += got
    return bytes(buffer)
