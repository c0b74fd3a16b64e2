"""What a verifier may give, and the sentence that says how it did not."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Mapping
from typing import Any, Literal, get_args

from reroll.api import PluginError, Verdict, VerdictState, Verifier

Kind = Literal["plain", "async", "group"]

STATES = frozenset(get_args(VerdictState))
VALUE_LENGTH = 200
"""Characters of an offending value that its error repeats."""


class ContractViolation(Exception):
    """A verifier gave what no verifier may give; the text names value and remedy, not the verifier."""


def kind_of(cls: type[Verifier], distribution: str) -> Kind:
    """Which of its methods the class implements; PluginError unless it is exactly one."""
    alone, together = cls.score is not Verifier.score, cls.score_group is not Verifier.score_group
    if alone == together:
        found = "both `score` and `score_group`" if alone else "neither `score` nor `score_group`"
        raise PluginError(
            f"{who(cls.name, distribution)} implements {found}: "
            f"{cls.__module__}.{cls.__qualname__} must have exactly one of them"
        )
    if together:
        return "group"
    return "async" if inspect.iscoroutinefunction(cls.score) else "plain"


def who(name: str, distribution: str) -> str:
    return f"verifier {name!r} of {distribution}"


def checked_group(value: object, count: int) -> list[Verdict]:
    """The verdicts of `score_group`; ContractViolation says what is wrong with them."""
    if not isinstance(value, (list, tuple)):
        raise ContractViolation(
            f"`score_group` returned {shown(value)}; it must return a list with one Verdict a trace"
        )
    if len(value) != count:
        raise ContractViolation(
            f"`score_group` returned {len(value)} verdicts for {count} traces; it must return one a trace, in order"
        )
    return [checked(item) for item in value]


def checked(value: object) -> Verdict:
    """The verdict with plain floats in it; ContractViolation says what is wrong with it.

    Plain floats, because a verdict travels to a process without the array library of the verifier.
    """
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise ContractViolation(
            f"`score` returned {type(value).__name__}; declare it as `async def score` to have it awaited"
        )
    if not isinstance(value, Verdict):
        raise ContractViolation(
            f"it returned {shown(value)}; it must return a reroll.Verdict, such as Verdict(score=1.0)"
        )
    if value.state not in STATES:
        raise ContractViolation(f"it returned the state {shown(value.state)}; states are {', '.join(sorted(STATES))}")
    score = value.score
    if score is not None:
        score = _number(score, "the score", "a finite number, or None where it could not judge")
    if not isinstance(value.components, Mapping):
        raise ContractViolation(f"it returned the components {shown(value.components)}; they must map names to numbers")
    components = {
        str(name): float(part)
        if isinstance(part, bool)
        else _number(part, f"the component {name!r}", "a finite number")
        for name, part in value.components.items()
    }
    state = next(known for known in STATES if known == value.state)  # not the verifier's own subclass of a string
    return Verdict(score, components, state, str(value.detail))


def _number(value: Any, what: str, must: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, numbers.Real) else float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ContractViolation(f"it returned {what} {shown(value)}; it must be {must}")
    return number


def shown(value: object) -> str:
    """A value and its type, in one short line, whatever its `repr` does."""
    try:
        text = " ".join(repr(value).split())
    except Exception as error:
        text = f"<repr raised {type(error).__name__}>"
    cut = text if len(text) <= VALUE_LENGTH else text[:VALUE_LENGTH] + "…"
    return f"{cut} ({type(value).__name__})"


def failed(error: BaseException, count: int) -> list[Verdict]:
    """The verdicts of a verifier that raised: judging failed, the answer is not to blame."""
    return [Verdict(None, state="service_error", detail=described(error))] * count


def described(error: BaseException) -> str:
    """What was raised, for a verdict's detail."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
