"""Sets of real numbers: intervals, their unions, and the inequalities that describe them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from reroll_verifiers_math.exact import TooLarge, Undefined
from reroll_verifiers_math.nodes import (
    ANYTHING,
    Call,
    Group,
    Listing,
    Node,
    Product,
    Quantity,
    Relation,
    SetOperation,
    Sum,
    Symbol,
    integer,
    negated,
    symbols,
)
from reroll_verifiers_math.numeric import CONSTANTS, Evaluator, constant, near

INEQUALITIES = frozenset(("<", "<=", ">", ">="))
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "!=": "!="}
_INFINITY = float("inf")


class Interval(NamedTuple):
    low: Any
    low_closed: bool
    high: Any
    high_closed: bool

    @property
    def empty(self) -> bool:
        if _same(self.low, self.high):
            return not (self.low_closed and self.high_closed)
        return bool(self.low > self.high)


class RealSet(NamedTuple):
    """Intervals in order, without overlap; `variable` is whose values they are, None where it is not said."""

    intervals: tuple[Interval, ...]
    variable: Node | None = None


EVERYTHING = Interval(-_INFINITY, False, _INFINITY, False)


def looks_like_set(node: Node) -> bool:
    """Whether it can be nothing but a set of real numbers."""
    if isinstance(node, SetOperation):
        return True
    if isinstance(node, Symbol):
        return node.name in ("emptyset", "mathbbR")
    if isinstance(node, Relation):
        return all(operator in INEQUALITIES or operator == "!=" for operator in node.operators)
    if isinstance(node, Listing):
        return any(looks_like_set(item) for item in node.items)
    if isinstance(node, Group) and len(node.items) == 2:
        return node.opening + node.closing in ("(]", "[)") or any("infty" in symbols(item) for item in node.items)
    return False


@lru_cache(maxsize=1024)
def real_set(node: Node) -> RealSet | None:
    """The set that it stands for; None if it stands for none, or for one that is not known here."""
    if isinstance(node, Group) and len(node.items) == 2 and node.opening != "<":
        low, high = (endpoint(item) for item in node.items)
        if low is None or high is None or low > high:
            return None
        return _normal([Interval(low, node.opening == "[", high, node.closing == "]")])
    if isinstance(node, Symbol):
        return {"emptyset": RealSet(()), "mathbbR": RealSet((EVERYTHING,))}.get(node.name)
    if isinstance(node, Listing):
        return _listed(node)
    if isinstance(node, SetOperation):
        return _operation(node)
    if isinstance(node, Relation):
        return _described(node)
    return None


def equal_sets(first: RealSet, second: RealSet) -> bool:
    named = {first.variable, second.variable} - {None, ANYTHING}
    if len(named) > 1:
        return False
    if len(first.intervals) != len(second.intervals):
        return False
    return all(
        _same(a.low, b.low) and _same(a.high, b.high) and a[1::2] == b[1::2]
        for a, b in zip(first.intervals, second.intervals, strict=True)
    )


def endpoint(node: Node) -> Any:
    """A real number or an infinity; None for anything else."""
    if isinstance(node, Quantity):
        node = node.value
    if node == Symbol("infty") or node == Sum((Symbol("infty"),)):
        return _INFINITY
    if node == Product((integer(-1), Symbol("infty"))):
        return -_INFINITY
    value = constant(node)
    return value if value is not None and not value.imag else None


def _same(a: Any, b: Any) -> bool:
    if abs(a) == _INFINITY or abs(b) == _INFINITY:
        return bool(a == b)
    return near(a, b)


def _normal(intervals: Sequence[Interval], variable: Node | None = None) -> RealSet:
    merged: list[Interval] = []
    for interval in sorted(
        (item for item in intervals if not item.empty), key=lambda item: (item.low, not item.low_closed)
    ):
        before = merged[-1] if merged else None
        touches = before is not None and (
            (_same(before.high, interval.low) and (before.high_closed or interval.low_closed))
            or (not _same(before.high, interval.low) and interval.low < before.high)
        )
        if before is None or not touches:
            merged.append(interval)
        elif _same(interval.high, before.high):
            merged[-1] = before._replace(high_closed=before.high_closed or interval.high_closed)
        elif interval.high > before.high:
            merged[-1] = before._replace(high=interval.high, high_closed=interval.high_closed)
    return RealSet(tuple(merged), variable)


def _cut(first: RealSet, second: RealSet) -> RealSet:
    found = []
    for a in first.intervals:
        for b in second.intervals:
            low, low_closed = max((a.low, not a.low_closed), (b.low, not b.low_closed))
            high, high_closed = min((a.high, a.high_closed), (b.high, b.high_closed))
            found.append(Interval(low, not low_closed, high, high_closed))
    return _normal(found, first.variable or second.variable)


def _complement(given: RealSet) -> RealSet:
    found, low, closed = [], -_INFINITY, False
    for interval in given.intervals:
        found.append(Interval(low, closed, interval.low, not interval.low_closed))
        low, closed = interval.high, not interval.high_closed
    found.append(Interval(low, closed, _INFINITY, False))
    return _normal(
        [item._replace(high_closed=item.high_closed and item.high != _INFINITY) for item in found], given.variable
    )


def _listed(node: Listing) -> RealSet | None:
    if node.braced:
        values = [endpoint(item) for item in node.items]
        if any(value is None or abs(value) == _INFINITY for value in values):
            return None
        return _normal([Interval(value, True, value, True) for value in values])
    found = [real_set(item) for item in node.items]
    sets = [item for item in found if item is not None]
    variables = {item.variable for item in sets} - {None}
    if len(sets) != len(found) or len(variables) > 1 or not sets:
        return None
    both = sets[0]
    for item in sets[1:]:
        both = _cut(both, item)
    if node.joined == "and":
        return both
    # Conditions that a comma parts, and that no number meets together, were meant as alternatives.
    if not node.joined and both.intervals and all(isinstance(item, Relation) for item in node.items):
        return both
    return _normal([interval for item in sets for interval in item.intervals], next(iter(variables), None))


def _operation(node: SetOperation) -> RealSet | None:
    first, second = real_set(node.first), real_set(node.second)
    if first is None or second is None:
        return None
    if node.operator == "cup":
        return _normal((*first.intervals, *second.intervals), first.variable or second.variable)
    return _cut(first, second if node.operator == "cap" else _complement(second))


def _described(node: Relation) -> RealSet | None:
    if node.operators == ("in",):
        given = real_set(node.parts[1])
        return (
            None if given is None or not isinstance(node.parts[0], Symbol) else given._replace(variable=node.parts[0])
        )
    if not all(operator in _TURNED for operator in node.operators):
        return None
    names = symbols(node) - CONSTANTS
    if len(names) != 1:
        return None
    variable = Symbol(next(iter(names)))
    found = RealSet((EVERYTHING,), variable)
    for left, operator, right in zip(node.parts, node.operators, node.parts[1:], strict=False):
        solved = _solved(left, operator, right, variable)
        if solved is None:
            return None
        found = _cut(found, solved)
    return found._replace(variable=variable)


def _solved(left: Node, operator: str, right: Node, variable: Symbol) -> RealSet | None:
    if isinstance(left, Quantity) and left.unit not in ("%", "°"):
        left = left.value
    if isinstance(right, Quantity) and right.unit not in ("%", "°"):
        right = right.value
    if variable.name not in symbols(left):
        left, operator, right = right, _TURNED[operator], left
    bound = endpoint(right)
    if isinstance(left, Call) and left.name == "abs" and bound is not None:
        inside = left.arguments[0]
        if operator in ("<", "<="):
            above, below = (
                _solved(inside, operator, right, variable),
                _solved(inside, _TURNED[operator], negated(right), variable),
            )
            return None if above is None or below is None else _cut(above, below)
        if operator in (">", ">=") and bound >= 0:
            above, below = (
                _solved(inside, operator, right, variable),
                _solved(inside, _TURNED[operator], negated(right), variable),
            )
            return None if above is None or below is None else _normal((*below.intervals, *above.intervals), variable)
        return None
    if bound is not None and abs(bound) == _INFINITY:
        return RealSet((EVERYTHING,), variable) if left == variable else None
    line = _line(Sum((left, negated(right))), variable.name)
    if line is None:
        return None
    slope, at_zero = line
    root = -at_zero / slope
    if slope < 0:
        operator = _TURNED[operator]
    if operator == "!=":
        return _complement(_normal([Interval(root, True, root, True)], variable))
    closed = operator in ("<=", ">=")
    low = Interval(-_INFINITY, False, root, closed)
    return _normal([low if operator in ("<", "<=") else Interval(root, closed, _INFINITY, False)], variable)


_SAMPLED = (0, 1, 2, -3, 11, -23)


def _line(node: Node, name: str) -> tuple[Any, Any] | None:
    """Slope and value at 0 of an expression that is linear in its one variable; None for others."""
    values = []
    try:
        for point in _SAMPLED:
            values.append(Evaluator({name: Fraction(point)}, real=True).value(node))
    except (Undefined, TooLarge):
        return None
    at_zero, slope = values[0], values[1] - values[0]
    if abs(slope) <= 1e-40 * max(abs(values[1]), abs(at_zero)):
        return None
    size = 1e-60 * max(abs(value) for value in values)
    if all(abs(at_zero + slope * x - value) <= size for x, value in zip(_SAMPLED, values, strict=True)):
        return slope, at_zero
    return None
