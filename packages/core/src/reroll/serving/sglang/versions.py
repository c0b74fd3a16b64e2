"""Weight versions as a server names them."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Any

from reroll.api import EngineError


class UnknownVersion(EngineError):
    """Weights that this run did not load."""


@dataclass(frozen=True)
class VersionNames:
    """Numbers of versions, and the texts that servers keep for them.

    Attributes:
        run: begins every text, so that weights which another run loads into the same server are not taken for this
            one's; empty where nobody else can.
    """

    run: str = ""

    def text(self, version: int) -> str:
        return f"{self.run}-{version}" if self.run else str(version)

    def number(self, text: Any) -> int:
        """UnknownVersion for what is no text of `text`."""
        run, _, number = str(text).rpartition("-")
        try:
            if run == self.run:
                return int(number)
        except ValueError:
            pass
        raise UnknownVersion(
            f"weight version {text!r} is none that this run loaded; does another run load weights into the server?"
        )


def trained(text: Any) -> int | None:
    """The version, where a server's text says that a run has loaded weights that it had trained."""
    found = re.fullmatch(r"[0-9a-f]{8}-([1-9][0-9]*)", str(text))
    return int(found[1]) if found else None


PLAIN = VersionNames()
OF_THIS_PROCESS = VersionNames(secrets.token_hex(4))
"""One process controls one run, with all its engines; SGLang's router brings a request to any of them."""
