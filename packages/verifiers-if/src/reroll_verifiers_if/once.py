"""What is read off an answer once, however many instructions ask for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

LONG = 1_000
"""A shorter text, such as one sentence, is read again: keeping it would push out what is kept of whole answers."""

KEPT = 16
"""Readings that are kept by each function; loose judging makes eight of an answer, some functions ask for small letters
besides."""

_kept: list[Callable[[], None]] = []


def once(function: Callable[[str], Value]) -> Callable[[str], Value]:
    """Keeps what a function of a text gave for the last long texts, until `forget`; the value must not be changed."""
    cached = functools.lru_cache(maxsize=KEPT)(function)
    _kept.append(cached.cache_clear)

    @functools.wraps(function)
    def read(text: str) -> Value:
        return cached(text) if len(text) >= LONG else function(text)

    return read


def forget() -> None:
    """Drops what is kept, so that no answer is held in memory behind its verdict."""
    for clear in _kept:
        clear()
