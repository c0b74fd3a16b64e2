"""reroll: asynchronous reinforcement learning for language models, made of plugins."""

from reroll.api import *  # noqa: F403
from reroll.api import __all__ as __all__
