"""Under which address a worker listens."""

from __future__ import annotations

import os

HOST = "REROLL_HOST"
"""Variable in which a placement tells its workers the address that the run's other processes reach them at."""
LOOPBACK = "127.0.0.1"


def own_host() -> str:
    """Where this process listens, if it does: on loopback unless its placement says otherwise."""
    return os.environ.get(HOST, LOOPBACK)
