r"""Where the answer is in a completion: the last `\boxed{…}`, else the last number."""

from __future__ import annotations

import re

DIGITS = r"(?:\d{1,3}(?:(?:,|\{,\})\d{3})+(?!\d)|\d+)"
DECIMAL = rf"(?:{DIGITS}(?:\.\d+)?|\.\d+)"
FRACTION = r"\\[dtc]?frac\s*\{\s*-?\d+\s*\}\s*\{\s*-?\d+\s*\}"

_BRACES = re.compile(r"(?P<box>\\+(?:boxed|fbox)\s*\{)|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)
_NUMBER = re.compile(
    # A sign belongs to the number unless something stands before it that it could be subtracted from,
    # and digits that continue a word or a number are none.
    rf"(?:(?<![A-Za-z0-9_.)\]}}])[-−+]\s?)?"
    rf"(?:{FRACTION}|(?<![A-Za-z0-9_.]){DECIMAL}(?:\s*/\s*\d+(?![\d.])|\s+\d+/\d+(?![\d.])|\s*{FRACTION})?)"
    r"(?:\s?\\?%)?"
)


def find_answer(completion: str) -> str | None:
    """The answer's text, or None if the completion has none."""
    return last_boxed(completion) or last_number(completion)


def last_boxed(text: str) -> str | None:
    r"""Content of the `\boxed{…}` that begins last, of those that are closed and not empty.

    One pass, whatever is nested or left open: the text comes from a model and may be hostile.
    """
    found_at, found = -1, None
    opened: list[tuple[int, bool]] = []
    for token in _BRACES.finditer(text):
        if token["box"] or token["open"]:
            opened.append((token.end(), bool(token["box"])))
        elif token["close"] and opened:
            start, boxed = opened.pop()
            if boxed and start > found_at:
                content = text[start : token.start()].strip()
                if content:
                    found_at, found = start, content
    return found


def last_number(text: str) -> str | None:
    """The last integer, decimal, fraction or mixed number, with its sign and percent sign."""
    found = None
    for match in _NUMBER.finditer(text):
        found = match[0]
    return found
