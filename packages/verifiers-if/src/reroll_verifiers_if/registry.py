"""The instructions that can be judged, by id."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from reroll_verifiers_if.parameters import Parameter, nearest

Rule = Callable[..., bool]
"""An answer, not blank, and the parameters by name → whether the answer follows. Pure; raises nothing on any text."""

Contradiction = Callable[[Mapping[str, Any]], str | None]
"""Parameters that are each right → why no answer can follow them together, or None."""

FAMILIES = (
    "keywords",
    "length",
    "detectable",
    "frame",
    "case",
    "counts",
    "ratios",
    "words",
    "word_order",
    "sentences",
    "layout",
    "marks",
    "custom",
    "tables",
    "repeat",
)
"""Modules that hold the judges."""


@dataclass(frozen=True)
class Instruction:
    """One kind of instruction.

    Attributes:
        id: as the data sets name it.
        wish: what an answer has to do, in a sentence.
        judge: whether an answer does.
        parameters: by name.
        contradiction: of parameters that exclude each other.
        differs: where the verdict departs from the one of the reference implementation, and why; empty if nowhere.
    """

    id: str
    wish: str
    judge: Rule
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    contradiction: Contradiction | None = None
    differs: str = ""


_registered: dict[str, Instruction] = {}


def instruction(
    id: str,
    wish: str,
    parameters: Mapping[str, Parameter] | None = None,
    contradiction: Contradiction | None = None,
    differs: str = "",
) -> Callable[[Rule], Rule]:
    """Registers the decorated function as the judge of an instruction."""

    def register(judge: Rule) -> Rule:
        assert id not in _registered, id
        _registered[id] = Instruction(id, wish, judge, dict(parameters or {}), contradiction, differs)
        return judge

    return register


@functools.cache
def instructions() -> Mapping[str, Instruction]:
    """Every instruction, in the order of the families."""
    modules = [importlib.import_module(f"reroll_verifiers_if.{family}").__name__ for family in FAMILIES]
    # A family may have been imported before another by somebody else.
    return dict(sorted(_registered.items(), key=lambda item: modules.index(item[1].judge.__module__)))


def find(id: Any) -> Instruction:
    """The instruction of that id; ValueError naming the nearest where there is none."""
    known = instructions()
    if not isinstance(id, str) or id not in known:
        near = nearest(id, known) or "; INSTRUCTIONS.md of reroll-verifiers-if lists all ids"
        raise ValueError(f"unknown instruction {id!r}{near}")
    return known[id]
