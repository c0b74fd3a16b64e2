"""Variables in the environment of trainer ranks."""

from __future__ import annotations

from reroll.caches.compilers import cache_environment
from reroll.caches.config import CompilerCacheSection
from reroll.config import LoadedRunFile
from reroll.training.config import TrainerSection


def trainer_environment(run: LoadedRunFile) -> dict[str, str]:
    """Those of the compiler cache; what the run file says replaces them."""
    return cache_environment(run.get(CompilerCacheSection)) | run.get(TrainerSection).env_vars
