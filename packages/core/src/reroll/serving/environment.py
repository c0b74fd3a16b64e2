"""Variables in the environment of engines, and of the servers that are launched for them."""

from __future__ import annotations

from reroll.caches.compilers import cache_environment
from reroll.caches.config import CompilerCacheSection
from reroll.config import LoadedRunFile
from reroll.serving.config import ServingSection


def engine_environment(run: LoadedRunFile) -> dict[str, str]:
    """Those of the compiler cache; what the run file says replaces them. None for servers that run already."""
    serving = run.get(ServingSection)
    if serving.urls:
        return {}
    python = str(serving.python.expanduser()) if serving.python is not None else None
    return cache_environment(run.get(CompilerCacheSection), python) | serving.env_vars
