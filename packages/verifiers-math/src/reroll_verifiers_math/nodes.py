"""What an answer says, as a tree: values, and the structures that hold them.

Every node is immutable and hashable, so that equal texts give equal nodes and work on them can be remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, get_args


@dataclass(frozen=True, slots=True)
class Number:
    """A number that was written in digits.

    Attributes:
        places: digits after the decimal point; 0 without one.
        digits: significant digits of a decimal; 0 for what is no decimal.
        base: of a numeral with a base in its index, such as `101_2`; 10 otherwise. `value` is read in it.
        numeral: the digits of such a numeral, read in base ten.
    """

    value: Fraction
    places: int = 0
    digits: int = 0
    base: int = 10
    numeral: Fraction | None = None


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable or a constant, by its LaTeX name without backslash, its index included."""

    name: str


@dataclass(frozen=True, slots=True)
class Sum:
    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Product:
    factors: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Quotient:
    above: Node
    below: Node


@dataclass(frozen=True, slots=True)
class Power:
    base: Node
    exponent: Node


@dataclass(frozen=True, slots=True)
class Call:
    """A function of its arguments. A name that `numeric` does not know is a function that nothing is known of."""

    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class PlusMinus:
    """`first ± second`; `up` is false for `∓`, which takes the other sign of the same choice."""

    first: Node | None
    second: Node
    up: bool = True


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value with a unit, as `units` names it; `%` is one."""

    value: Node
    unit: str


@dataclass(frozen=True, slots=True)
class Words:
    """What is no mathematics; compared as text."""

    text: str


@dataclass(frozen=True, slots=True)
class Listing:
    """Several answers, whose order says nothing. `braced` where it was written as a set, `\\{1, 2\\}`; `joined` is the
    word that alone stands between them, `and` or `or`."""

    items: tuple[Node, ...]
    braced: bool = False
    joined: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Items in brackets, in order: a tuple, a vector, or an interval. `opening` is `(`, `[` or `<`."""

    opening: str
    items: tuple[Node, ...]
    closing: str


@dataclass(frozen=True, slots=True)
class Matrix:
    rows: tuple[tuple[Node, ...], ...]


@dataclass(frozen=True, slots=True)
class Ratio:
    """`a : b`, and more parts. `clock` where it is written as a time of day is, `2:30`."""

    parts: tuple[Node, ...]
    clock: bool = False


@dataclass(frozen=True, slots=True)
class Relation:
    """`parts[0] operators[0] parts[1] …`; operators are `= != < <= > >= ~ in` and others by their LaTeX name."""

    parts: tuple[Node, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetOperation:
    """`first operator second`, with the operators `cup`, `cap` and `setminus`."""

    operator: str
    first: Node
    second: Node


@dataclass(frozen=True, slots=True)
class Cases:
    """Pieces of a function by condition: rows of value and, where one is given, condition."""

    rows: tuple[tuple[Node, ...], ...]


Node = (
    Number
    | Symbol
    | Sum
    | Product
    | Quotient
    | Power
    | Call
    | PlusMinus
    | Quantity
    | Words
    | Listing
    | Group
    | Matrix
    | Ratio
    | Relation
    | SetOperation
    | Cases
)

SCALARS = (Number, Symbol, Sum, Product, Quotient, Power, Call)
"""Nodes that stand for one value, as long as what is in them does."""


ANYTHING = Symbol("·")
"""What stands for the unsaid left side of `> 5`."""


def integer(value: int) -> Number:
    return Number(Fraction(value))


def negated(node: Node) -> Node:
    if isinstance(node, Number):
        numeral = None if node.numeral is None else -node.numeral
        return Number(-node.value, node.places, node.digits, node.base, numeral)
    return Product((integer(-1), node))


_KINDS = frozenset(get_args(Node))


def children(node: Node) -> Iterator[Node]:
    for name in node.__match_args__:
        yield from _nodes(getattr(node, name))


def _nodes(value: Any) -> Iterator[Node]:
    if type(value) in _KINDS:
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _nodes(item)


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(children(node))


def height(node: Node, most: int) -> int:
    """Levels of the tree; any number above `most` where there are more."""
    level, found = [node], 0
    while level and found <= most:
        found += 1
        level = [child for item in level for child in children(item)]
    return found


def symbols(node: Node) -> frozenset[str]:
    """Names of all variables in it; constants are among them."""
    return frozenset(item.name for item in walk(node) if isinstance(item, Symbol))


def both_signs(node: Node) -> tuple[Node, ...]:
    """The node with its `±` read as plus, then as minus; alone if it has none."""
    if not any(isinstance(item, PlusMinus) for item in walk(node)):
        return (node,)
    return (_signed(node, True), _signed(node, False))


def _signed(node: Node, plus: bool) -> Node:
    if isinstance(node, PlusMinus):
        second = _signed(node.second, plus)
        second = second if node.up == plus else negated(second)
        return second if node.first is None else Sum((_signed(node.first, plus), second))
    return _rebuilt(node, lambda item: _signed(item, plus))


def renamed(node: Node, old: str, new: str) -> Node:
    """The node with one variable called by another name."""
    if isinstance(node, Symbol):
        return Symbol(new) if node.name == old else node
    return _rebuilt(node, lambda item: renamed(item, old, new))


def natural(node: Node) -> Node:
    """The node with its logarithms without a base as natural ones."""
    if isinstance(node, Call) and node.name == "log" and len(node.arguments) == 1:
        return Call("ln", (natural(node.arguments[0]),))
    return _rebuilt(node, natural)


def _rebuilt(node: Node, change: Callable[[Node], Node]) -> Node:
    """The node with its children changed."""

    def changed(value: Any) -> Any:
        if type(value) in _KINDS:
            return change(value)
        return tuple(changed(item) for item in value) if isinstance(value, tuple) else value

    return type(node)(*(changed(getattr(node, name)) for name in node.__match_args__))
