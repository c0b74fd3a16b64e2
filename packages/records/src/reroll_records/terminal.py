"""What is fit for a terminal: text without control, and charts of blocks. The standard library alone."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence

BLOCKS = " ▁▂▃▄▅▆▇█"


def printable(text: str, *, lines: bool = False) -> str:
    """Text of a model, a file or a data set, in which whatever could steer a terminal or hide text is spelled out, as
    `\\x1b`: control characters, marks of writing direction, separators of lines, halves of surrogate pairs.

    Args:
        lines: keep line feeds and tabs.
    """
    kept = "\n\t" if lines else ""
    return "".join(character if character in kept or _shows(character) else _spelled(character) for character in text)


def _shows(character: str) -> bool:
    if character.isprintable():
        return True
    # joiners and variation marks belong to emoji and to scripts; spaces of other widths do no harm
    return unicodedata.category(character) == "Zs" or character in "\u200c\u200d"


def _spelled(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def chart(series: Sequence[Sequence[float | None]], width: int, height: int) -> list[str]:
    """Lines of a chart: a column per value, or per as many neighbours as must share one, then their mean; None leaves
    a gap, and so does the space between series. The scale, of all values, stands at the left.

    Args:
        series: one per run.
        width, height: in characters, without the scale.
    """
    known = [value for values in series for value in values if value is not None]
    if not known:
        return []
    low, high = min(known), max(known)
    if low == high:
        height = 1
    total = sum(map(len, series)) + len(series) - 1
    share = max(1, math.ceil(total / width))
    columns: list[float | None] = []
    for values in series:
        if columns:
            columns.append(None)
        columns += [_mean(values[start : start + share]) for start in range(0, len(values), share)]
    steps = [_steps(value, low, high, height) for value in columns]
    labels = [f"{low:.4g}", f"{high:.4g}"]
    margin = max(map(len, labels))
    shown = []
    for row in reversed(range(height)):
        label = labels[1] if row == height - 1 else labels[0] if row == 0 else ""
        blocks = "".join(BLOCKS[max(0, min(8, step - 8 * row))] for step in steps)
        shown.append(f"{label:>{margin}} ┤{blocks}".rstrip())
    return shown


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _steps(value: float | None, low: float, high: float, height: int) -> int:
    """Eighths of a line that a column is high: one at least, so that the smallest value is not a gap."""
    if value is None:
        return 0
    return 1 + round((value - low) / (high - low) * (8 * height - 1)) if high > low else 8 * height
