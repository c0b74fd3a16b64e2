"""How messages repeat what others wrote, and count."""

from __future__ import annotations


def one_line(text: str, most: int = 200) -> str:
    """The text with every run of white space as one space; what is longer than `most` characters is cut and ends in
    `…`."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[:most] + "…"


def counted(count: int, noun: str) -> str:
    """`1 task`, `2 tasks`: for nouns whose plural takes an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
