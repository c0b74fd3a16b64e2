"""Under which address a worker listens, and through which interface it reaches the others."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct

HOST = "REROLL_HOST"
"""Variable in which a placement tells its workers the address that the run's other processes reach them at."""
LOOPBACK = "127.0.0.1"
ADDRESS_OF_INTERFACE = 0x8915
"""The system call's SIOCGIFADDR (Linux)."""


def own_host() -> str:
    """Where this process listens, if it does: on loopback unless its placement says otherwise."""
    return os.environ.get(HOST, LOOPBACK)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def choose_interface() -> None:
    """Has gloo and NCCL connect through the interface of `own_host`, which they would guess from the machine's name.
    Beyond loopback what the user has set stays: a fabric for tensors may be another one."""
    host = own_host()
    name = interface_of(host)
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if name is not None and (is_loopback(host) or variable not in os.environ):
            os.environ[variable] = name


def interface_of(host: str) -> str | None:
    """The name of the interface that has the address; None if none is found."""
    names = [name for _, name in socket.if_nameindex()]
    if is_loopback(host):
        return next((name for name in names if name.startswith("lo")), "lo")
    return next((name for name in names if _address(name) == host), None)


def _address(interface: str) -> str | None:
    """Its IPv4 address, where the system says."""
    try:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            request = struct.pack("256s", interface.encode()[:15])
            answer = fcntl.ioctl(asking.fileno(), ADDRESS_OF_INTERFACE, request)
    except (OSError, ImportError):
        return None
    return socket.inet_ntoa(answer[20:24])
