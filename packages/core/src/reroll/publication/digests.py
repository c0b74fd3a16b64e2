"""Comparing what engines serve, to the bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from reroll.api import Engine, RerollError, WeightSource
from reroll.workers.together import together


class WeightsDiffer(RerollError):
    """Engines serve other tensors than the trainer has, or than each other.

    Attributes:
        engines: of which it is not known that they serve what they should.
    """

    def __init__(self, message: str, engines: Sequence[Engine]) -> None:
        super().__init__(message)
        self.engines = list(engines)


async def check_equal(engines: Sequence[Engine], source: WeightSource) -> None:
    """WeightsDiffer unless all serve the same tensors, and the trainer's where its digest tells."""
    found = await together(engine.weights_digest() for engine in engines)
    comparable = [engine.digest_like_trainer for engine in engines]
    own = await source.weights_digest() if any(comparable) else None
    wrong = [engine for engine, digest, can in zip(engines, found, comparable, strict=True) if can and digest != own]
    if wrong:
        raise WeightsDiffer(f"{_named(wrong)} served other tensors than the trainer has after a publication", wrong)
    # Digests of one kind of engine alone can be compared.
    rest = [(engine, digest) for engine, digest, can in zip(engines, found, comparable, strict=True) if not can]
    counts = Counter(digest for _, digest in rest)
    if len(counts) > 1:
        usual, times = counts.most_common(1)[0]
        doubtful = [engine for engine, digest in rest if digest != usual or 2 * times <= len(rest)]
        raise WeightsDiffer(f"{_named(doubtful)} served other tensors than other engines after a publication", doubtful)


def _named(engines: Sequence[Engine]) -> str:
    return "engine " + ", ".join(engine.address for engine in engines)
