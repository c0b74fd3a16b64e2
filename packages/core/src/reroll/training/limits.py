"""How many logits a rank holds. No torch: what a run will need is estimated before it starts."""

from __future__ import annotations

CHUNK_ELEMENTS = {"cpu": 4_000_000, "cuda": 128_000_000}
"""By device: logits held at once (16 and 512 MB in float32). Fewer would leave a GPU reading the output embedding more
often than it multiplies with it."""
KEPT_ELEMENTS = {"cpu": 32_000_000, "cuda": 512_000_000}
"""By device: logits of a micro-batch that are kept for the backward pass, instead of being computed again, if all of
them are no more than this (128 MB and 2 GB)."""
