"""Derivations that judge the answers to their tasks themselves, as verifiers."""

from __future__ import annotations

from typing import Any, cast

from reroll.api import Config, Derivation, Judge, Task, Trace, Verdict, Verifier
from reroll.workers.answering import load_target


def judges_itself(derivation: type[Derivation]) -> bool:
    """Whether it has a `score` of its own; where it has not, the source's verifiers judge."""
    return derivation.score is not Derivation.score


class DerivationConfig(Config):
    path: str
    """The derivation's class, as `module:name`."""
    options: dict[str, Any]
    """Its configuration."""


class DerivationVerifier(Verifier):
    """Asks a derivation, in a scoring process."""

    name = "derivation"
    Config = DerivationConfig
    derivation: Derivation

    def warm_up(self) -> None:
        cls = cast(type[Derivation], load_target(self.config.path))
        self.derivation = cls(cls.Config(**self.config.options))

    def score(self, task: Task, trace: Trace) -> Verdict:
        return self.derivation.score(task, trace)


def own_judge(derivation: Derivation, distribution: str) -> Judge:
    cls = type(derivation)
    config = DerivationConfig(path=f"{cls.__module__}:{cls.__qualname__}", options=derivation.config.model_dump())
    return Judge(DerivationVerifier(config), 1.0, distribution)
