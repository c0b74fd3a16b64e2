"""Under which address a worker listens, and through which network interface others reach it."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from ipaddress import ip_address

from reroll.api import RerollError

HOST = "REROLL_HOST"
"""Variable in which a placement tells its workers the address that the run's other processes reach them at."""
LOOPBACK = "127.0.0.1"


def own_host() -> str:
    """Where this process listens, if it does: on loopback unless its placement says otherwise."""
    return os.environ.get(HOST, LOOPBACK)


def interface_of(host: str) -> str:
    """The network interface of this machine that has the address `host`, as gloo and NCCL want it named."""
    address = socket.gethostbyname(host)
    names = [name for _, name in socket.if_nameindex()]
    if ip_address(address).is_loopback:
        return next((name for name in names if name.startswith("lo")), "lo")
    found = next((name for name in names if _address(name) == address), None)
    if found is None:
        raise RerollError(f"{HOST} is {host!r}, which is no address of this machine; its interfaces: {names}")
    return found


def _address(interface: str) -> str | None:
    """The interface's IPv4 address (Linux)."""
    import fcntl

    get_interface_address = 0x8915
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, suppress(OSError):
        reply = fcntl.ioctl(asking, get_interface_address, interface.encode()[:15].ljust(256, b"\0"))
        return socket.inet_ntoa(reply[20:24])
    return None
