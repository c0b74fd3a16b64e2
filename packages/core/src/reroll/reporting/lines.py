"""Lines that stay, above whatever else a display shows."""

from __future__ import annotations

import logging
import sys
from itertools import count

from rich.console import Console

MOST_WARNINGS = 10


class Lines:
    """Lines and warnings on standard error, or on another console."""

    log = "run.log"
    """Where all warnings are, for whoever saw some."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stderr)
        self._warnings = count(1)
        """Gives each warning its number, in one step: they come from threads as well."""

    def line(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """A warning: into the log always, here as long as there are few, so that many do not bury the rest."""
        logging.getLogger("reroll").warning(text)
        number = next(self._warnings)
        if number <= MOST_WARNINGS:
            more = f"; further warnings are in {self.log}" if number == MOST_WARNINGS else ""
            self.line(f"warning: {text}{more}")
