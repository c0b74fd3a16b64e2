"""What the room registers."""

from __future__ import annotations

from reroll.api import PublicationMode, Transport, hookimpl


@hookimpl
def reroll_publication_modes() -> list[type[PublicationMode]]:
    from reroll.publication.barrier import Barrier

    return [Barrier]


@hookimpl
def reroll_transports() -> list[type[Transport]]:
    from reroll.publication.transports import DiskTransport, SharedMemoryTransport

    return [DiskTransport, SharedMemoryTransport]
