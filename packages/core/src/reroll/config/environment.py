"""Variables that a run file sets in the environment of workers: which ones may not be set there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from reroll.api import Problem
from reroll.config.secrets import secret_problems

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SET_BY_REROLL = {
    "HF_HUB_OFFLINE": "workers load nothing from the network",
    "CUDA_VISIBLE_DEVICES": "the placement gives every worker its devices; hide some from the whole run instead",
    "GLOO_SOCKET_IFNAME": "it follows from the address under which a worker is reached",
    "NCCL_SOCKET_IFNAME": "it follows from the address under which a worker is reached",
}


def environment_problems(key: str, given: Mapping[str, str], others: Mapping[str, str]) -> Iterator[Problem]:
    """Faults of the table at `key`; no value is repeated.

    Args:
        others: names that reroll sets for these workers, beside those that it sets for all → what to use instead.
    """
    taken = SET_BY_REROLL | dict(others)
    for name, value in given.items():
        place = f"{key}.{name}"
        if secrets := list(secret_problems({name: value}, place=key)):
            yield from secrets
        elif not NAME.fullmatch(name):
            yield Problem(place, f"{name!r} is no name of a variable", "give letters, digits and underscores")
        elif name in taken or name.startswith("REROLL_"):
            reason = taken.get(name, "names that begin with REROLL_ are its own")
            yield Problem(place, f"is set by reroll itself: {reason}", "leave it out")
        elif "\0" in value:
            yield Problem(place, "holds a zero byte, which no variable can", "leave that out")
