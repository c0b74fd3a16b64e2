"""Where the server listens: bound before the model is loaded, listened on once it serves."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from reroll.api import RerollError

ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Of a name's addresses those that the machine does not have, such as IPv6 where there is none."""


@contextmanager
def bound(host: str, port: int) -> Iterator[list[socket.socket]]:
    """Sockets of all addresses of the host. Clients are refused until they are listened on, which is what they take
    for a server that starts.

    Raises:
        RerollError: the port is taken, or the host is none of this machine.
    """
    with ExitStack() as opened:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError) as error:
            raise _no_address(host, error) from None
        sockets, absent = [], None
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                bound = opened.enter_context(socket.socket(family, kind, protocol))
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                bound.bind(address)
            except OSError as error:
                if error.errno not in ABSENT:
                    raise cannot_listen(host, port, error) from None
                absent = error
            else:
                sockets.append(bound)
        if not sockets:
            raise _no_address(host, absent)
        yield sockets


def cannot_listen(host: str, port: int, error: OSError) -> RerollError:
    reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be listened on: {error.strerror or error}"
    name = f"[{host}]" if ":" in host else host
    return RerollError(f"--port {port}: {name}:{port} {reason}; give another port, or 0, which takes a free one")


def _no_address(host: str, error: Exception | None) -> RerollError:
    reason = getattr(error, "strerror", None) or error
    return RerollError(f"--host {host}: is no address of this machine ({reason}); give one that it has, as 127.0.0.1")
