"""reroll: asynchronous reinforcement learning for language models, made of plugins."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from reroll.api import *  # noqa: F403
from reroll.api import __all__ as __all__

if TYPE_CHECKING:
    from reroll.rollouts.scoring.blocking import BlockingScorer as BlockingScorer
    from reroll.rollouts.scoring.config import ScoringConfig as ScoringConfig
    from reroll.rollouts.scoring.scorer import Scorer as Scorer
    from reroll.rollouts.verifiers import ExactMatch as ExactMatch
    from reroll.rollouts.verifiers import Regex as Regex

_PLACES = {
    "BlockingScorer": "reroll.rollouts.scoring.blocking",
    "ExactMatch": "reroll.rollouts.verifiers",
    "Regex": "reroll.rollouts.verifiers",
    "Scorer": "reroll.rollouts.scoring.scorer",
    "ScoringConfig": "reroll.rollouts.scoring.config",
}
"""What is imported when it is asked for: the contracts alone are enough for a plugin, and light."""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
