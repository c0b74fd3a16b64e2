"""A response's sampling seed, derived so that a resumed or sharded run draws what an unbroken one would."""

from __future__ import annotations

import hashlib


def response_seed(rollout_seed: int, task_key: str, attempt: int, sibling: int, purpose: str = "train") -> int:
    """A seed below 2^63 from rollout seed, task identity, group attempt and sibling position.

    Args:
        purpose: keeps data sources and evaluations from drawing what others draw: see `GroupPlan.purpose`.
    """
    identity = f"{purpose}\0{rollout_seed}\0{task_key}\0{attempt}\0{sibling}"
    return int.from_bytes(hashlib.sha256(identity.encode()).digest()[:8], "big") >> 1


def turn_seed(seed: int, turn: int) -> int:
    """The seed of a response's turn, counted from 0. The first draws with the response's own."""
    if turn == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"turn\0{seed}\0{turn}".encode()).digest()[:8], "big") >> 1
