"""Under which address a worker listens."""

from __future__ import annotations

import os
import socket

HOST = "REROLL_HOST"
"""Variable in which a placement tells its workers the address that the run's other processes reach them at."""
LOOPBACK = "127.0.0.1"


def own_host() -> str:
    """Where this process listens, if it does: on loopback unless its placement says otherwise."""
    return os.environ.get(HOST, LOOPBACK)


def interface_of(host: str) -> str | None:
    """The loopback interface's name for an address on loopback; None elsewhere, where libraries choose rightly."""
    if not (host == "localhost" or host == "::1" or host.startswith("127.")):
        return None
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name.startswith("lo")), None)
