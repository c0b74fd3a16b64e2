"""Who may ask: everyone with the key, which stands in a file or in a variable and nowhere else."""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from pathlib import Path

from reroll.api import RerollError

KEY_VARIABLE = "REROLL_API_KEY"
LEAST_LENGTH = 8
"""Characters of a key that a user brings; a shorter one could be tried out."""
OPEN_ROUTES = frozenset({"/health"})
"""What a supervisor asks without a key: it tells nothing and generates nothing."""


def allowed(path: str, authorization: str | None, key: str) -> bool:
    """Whether a request with this `Authorization` header may go on."""
    if path in OPEN_ROUTES:
        return True
    scheme, _, given = (authorization or "").partition(" ")
    # Compared in constant time: how long a refusal takes must not tell how much of the key was right.
    return scheme.lower() == "bearer" and hmac.compare_digest(given.encode(errors="surrogateescape"), key.encode())


def key_from_environment() -> str | None:
    """The key in `REROLL_API_KEY`, which is taken out of the environment: worker processes have no use for it."""
    key = os.environ.pop(KEY_VARIABLE, None)
    return None if key is None else _checked(key, KEY_VARIABLE)


def read_key(file: Path) -> str:
    """The key in a file that nobody else can read."""
    if stat.S_IMODE(file.stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        raise RerollError(f"--key-file {file}: others can read or change it; chmod 600 {file}")
    try:
        return _checked(file.read_text("utf-8").strip(), f"--key-file {file}")
    except UnicodeDecodeError:
        raise RerollError(f"--key-file {file}: is no text; give a file with one key in it") from None


def write_key(file: Path) -> str:
    """Generates a key and writes it to a new file, which only its owner can read from the first moment on."""
    key = secrets.token_urlsafe(32)
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(key + "\n")
    return key


def _checked(key: str, source: str) -> str:
    # The value is a secret: the message tells its length at most.
    if len(key) < LEAST_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
        raise RerollError(
            f"{source}: a key is at least {LEAST_LENGTH} printable ASCII characters without spaces; this one is not. "
            "Leave it out to have one generated"
        )
    return key
