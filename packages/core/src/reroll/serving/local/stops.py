"""Strings that end a response."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MARGIN = 8
"""Tokens decoded before those that can hold a stop string: the first ones of a window may decode to
something else than within the whole text (a cut character, a stripped space)."""


class StopStrings:
    """Finds stop strings in the text of a response that grows token by token."""

    def __init__(self, tokenizer_file: Path) -> None:
        self.file = tokenizer_file
        self._tokenizer: Any = None

    @property
    def available(self) -> bool:
        return self.file.is_file()

    def ended(self, output_ids: list[int], stop: tuple[str, ...]) -> bool:
        """Whether the last token of `output_ids` completed one of the strings."""
        if self._tokenizer is None:
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(str(self.file))
        # Every token that takes part in the match gives at least one byte of it.
        window = max(len(text.encode()) for text in stop) + MARGIN
        # Special tokens are kept: a stop string may be one of them.
        text = self._tokenizer.decode(output_ids[-window:], skip_special_tokens=False)
        return any(wanted in text for wanted in stop)
