"""What a verifier may give, and the sentence that says how it did not."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, cast, get_args

from reroll.api import PluginError, ServiceVerifier, Verdict, VerdictState, Verifier, one_line

Kind = Literal["plain", "async", "group"]

STATES = frozenset(get_args(VerdictState))
DETAIL_LENGTH = 2000
"""Characters of a verdict's detail: it is for a person, and kept with every response."""
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
    if issubclass(cls, ServiceVerifier):
        _check_ask(cls, distribution)
    return "async" if inspect.iscoroutinefunction(cls.score) else "plain"


def check_importable(cls: type[Verifier], distribution: str) -> None:
    """PluginError where no other process can import the class of a verifier that is asked in one."""
    if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
        raise PluginError(
            f"{who(cls.name, distribution)} is asked in processes, which cannot import "
            f"{cls.__module__}.{cls.__qualname__}: put the class at the top of a module that can be imported"
        )


def _check_ask(cls: type[ServiceVerifier], distribution: str) -> None:
    """PluginError unless what `ServiceVerifier.score` awaits is there."""
    place = f"{cls.__module__}.{cls.__qualname__}"
    if cls.ask is ServiceVerifier.ask:
        if cls.score is ServiceVerifier.score:
            raise PluginError(
                f"{who(cls.name, distribution)} has no `ask`: {place} must have `async def ask(self, task, trace)`"
            )
    elif not inspect.iscoroutinefunction(cls.ask):
        raise PluginError(
            f"{who(cls.name, distribution)} has a plain `ask`: {place} must declare it as `async def ask`, and await "
            "`asyncio.to_thread` for what blocks"
        )


def checked_concurrency(value: object, verifier: Verifier, distribution: str) -> int:
    """Calls that an asynchronous verifier may have in flight; PluginError unless that lets one through."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PluginError(
            f"{who(verifier.name, distribution)} has the concurrency {shown(value)}; it must be a number from 1 on"
        )
    return value


def checked_deadline(value: object, verifier: Verifier, distribution: str) -> float | None:
    """Seconds that a call of an asynchronous verifier may take, None for the common deadline; PluginError unless it is
    one of them."""
    if value is None:
        return None
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not 0 < (seconds := float(value)) < math.inf:  # type: ignore[arg-type]
        raise PluginError(
            f"{who(verifier.name, distribution)} has deadline_seconds = {shown(value)}; "
            "it must be a number of seconds above 0, or None for rollout.scoring.deadline_seconds"
        )
    return seconds


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
    """The verdict with plain floats and texts in it; ContractViolation says what is wrong with it.

    Plain, because a verdict travels to a process without the libraries of the verifier, and no class of a verifier's
    may have a say in how it is read there.
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
    if not isinstance(value.state, str) or (state := plain(value.state)) not in STATES:
        raise ContractViolation(f"it returned the state {shown(value.state)}; states are {', '.join(sorted(STATES))}")
    score = value.score
    if score is not None:
        score = _number(score, "the score", "a finite number, or None where it could not judge")
    if not isinstance(value.components, Mapping):
        raise ContractViolation(f"it returned the components {shown(value.components)}; they must map names to numbers")
    components = {
        plain(name): float(part)
        if isinstance(part, bool)
        else _number(part, f"the component {plain(name, VALUE_LENGTH)!r}", "a finite number")
        for name, part in value.components.items()
    }
    return Verdict(score, components, cast(VerdictState, state), plain(value.detail))


def plain(value: object, most: int = DETAIL_LENGTH) -> str:
    """The text of a value as a `str` and no subclass of it, whatever its `__str__` does; what is longer than `most`
    characters is cut and ends in `…`."""
    try:
        text = str.__str__(value if isinstance(value, str) else str(value))
    except BaseException as error:  # SystemExit as well: whose text it is must not end who reads it
        text = f"<str raised {type(error).__name__}>"
    return text if len(text) <= most else text[:most] + "…"


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
        text = plain(repr(value))
    except BaseException as error:
        text = f"<repr raised {type(error).__name__}>"
    return f"{one_line(text, VALUE_LENGTH)} ({type(value).__name__})"


def failed(error: BaseException, count: int) -> list[Verdict]:
    """The verdicts of a verifier that raised: judging failed, the answer is not to blame."""
    return [Verdict(None, state="service_error", detail=described(error))] * count


def described(error: BaseException) -> str:
    """What was raised, for a verdict's detail."""
    text = plain(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def unfailing(warn: Callable[[str], None]) -> Callable[[str], None]:
    """`warn` for those whose work must not end with it, such as where a log cannot be written any more."""

    def call(text: str) -> None:
        with suppress(Exception):
            warn(text)

    return call
