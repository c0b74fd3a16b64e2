"""What the room registers."""

from __future__ import annotations

from reroll.api import PublicationMode, Transport, hookimpl


@hookimpl
def reroll_publication_modes() -> list[type[PublicationMode]]:
    from reroll.publication.barrier import Barrier
    from reroll.publication.engine_drain import EngineDrain
    from reroll.publication.refresh import Refresh

    return [Barrier, EngineDrain, Refresh]


@hookimpl
def reroll_transports() -> list[type[Transport]]:
    from reroll.publication.distributed import DistributedTransport
    from reroll.publication.transports import DiskTransport, SharedMemoryTransport

    return [DiskTransport, SharedMemoryTransport, DistributedTransport]
