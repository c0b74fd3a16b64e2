"""Whether expressions are equal for all values of their variables, found at points.

A polynomial that is zero at points drawn at random is zero, but for a chance that vanishes with their number (Schwartz,
1980; Zippel, 1979). Trying points takes bounded time whatever the expressions are, where simplifying them does not. The
points follow from the variables' names, so that a verdict is the same in every process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from fractions import Fraction

from reroll_verifiers_math.exact import OPERATIONS, TooLarge, Undefined, exact
from reroll_verifiers_math.nodes import (
    Call,
    Node,
    Number,
    Power,
    Product,
    Quotient,
    Sum,
    Symbol,
    natural,
    renamed,
    symbols,
    walk,
)
from reroll_verifiers_math.numeric import CONSTANTS, ROUNDED_DIGITS, Evaluator, agree, draw, near

INTEGRATION = frozenset(("C", "c", "K", "k", "C_1", "c_1"))
"""Names of the constant of integration: an answer may take another than the `C` of the target."""
WHOLE_NUMBERS = frozenset(("n", "k", "m"))
"""Names of the whole number in `2\\pi n`: here, too, an answer may take another."""
POINTS = 4
"""Points in the complex plane at which expressions must be equal that have no real values."""

# Where expressions are tried. Positive first, since golds rarely say that their variables are; then with signs, so that
# each of three variables is negative where another is not; small, large, and whole.
_RANGES = [
    (Fraction(low), Fraction(high))
    for low, high in (
        pair.split()
        for pair in ["1/5 1", "1 4", "2 9", "0 1/2", "0 1", "5 40", "1 4", "40 200", "1 9", "0 4", "200 900", "1 3"]
    )
]
_POSITIVE = 4
_WHOLE = (2, 8)


def points(names: frozenset[str]) -> list[dict[str, Fraction]]:
    """Assignments to try, the same ones for the same names."""
    found = []
    for number, (low, high) in enumerate(_RANGES):
        values = {}
        for position, name in enumerate(sorted(names)):
            value = draw(f"{name}@{number}", low, high)
            value = Fraction(round(value)) if number in _WHOLE else value
            negative = number >= _POSITIVE and number >> position % 3 & 1
            values[name] = -value if negative else value
        found.append(values)
    return found


def equal_values(first: Node, second: Node) -> bool:
    """Whether two expressions have the same value, for all values of their variables."""
    if first == second:
        return True
    a, b = exact(first), exact(second)
    if a is not None and b is not None:
        return a == b
    first, second = _one_logarithm(first, second)
    second = _one_constant(first, second)
    names = (symbols(first) | symbols(second)) - CONSTANTS
    if not names:
        return agree(first, second, {}, real=False) is True
    rational = _equal_rational_functions(first, second, names)
    if rational is not None:
        # A prime can be added to what is equal, a real number cannot.
        return rational and any(agree(first, second, values, real=True) for values in points(names)[:2])
    imaginary = "i" in symbols(first) | symbols(second)
    seen = 0
    for values in points(names):
        agreed = agree(first, second, values, real=not imaginary)
        if agreed is False:
            return False
        seen += agreed is True
    if seen >= 2:
        return True
    agreed_complex = [agree(first, second, values, real=False) for values in points(names)]
    return False not in agreed_complex and agreed_complex.count(True) >= POINTS


def _one_logarithm(first: Node, second: Node) -> tuple[Node, Node]:
    """`\\log` without a base as `\\ln`, where the other side says `\\ln`."""
    names = [{item.name for item in walk(node) if isinstance(item, Call)} for node in (first, second)]
    if "ln" in names[0] and "ln" not in names[1]:
        return first, natural(second)
    if "ln" in names[1] and "ln" not in names[0]:
        return natural(first), second
    return first, second


def _one_constant(first: Node, second: Node) -> Node:
    """The second expression with the free constant of the first, where each has one that the other has not."""
    names = symbols(first) - symbols(second), symbols(second) - symbols(first)
    if len(names[0]) != 1 or len(names[1]) != 1:
        return second
    (ours,), (theirs,) = names
    takes = {"C": INTEGRATION, "C_1": INTEGRATION, "c": {"C"}, "K": {"C"}}.get(ours, frozenset())
    integral = theirs in takes and _added(first, ours) and _added(second, theirs)
    period = ours in WHOLE_NUMBERS and theirs in WHOLE_NUMBERS and "pi" in symbols(first)
    return renamed(second, theirs, ours) if integral or period else second


def _added(node: Node, name: str) -> bool:
    """Whether the variable is a term of a sum and stands nowhere else in it, beside another variable."""
    if not isinstance(node, Sum) or Symbol(name) not in node.terms or len(symbols(node)) < 2:
        return False
    return sum(name in symbols(term) for term in node.terms) == 1


PRIME = 2**61 - 1
RESIDUES = 3
"""Points at which rational functions are compared modulo `PRIME`; each errs with a chance of degree / `PRIME`."""


def _equal_rational_functions(first: Node, second: Node, names: frozenset[str]) -> bool | None:
    """Equality of quotients of polynomials with rational coefficients, in exact arithmetic modulo a prime; None for
    expressions of another kind."""
    compared = 0
    for number in range(3 * RESIDUES):
        values = {name: _residue(f"{name}@{number}") for name in names}
        left = [OPERATIONS]
        try:
            same = _modular(first, values, left) == _modular(second, values, left)
        except ZeroDivisionError:
            continue
        except (Undefined, TooLarge):
            return None
        if not same:
            return False
        compared += 1
        if compared == RESIDUES:
            return True
    return None


def _residue(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % PRIME


def _modular(node: Node, values: Mapping[str, int], left: list[int]) -> int:
    left[0] -= 1
    if left[0] < 0:
        raise TooLarge
    if isinstance(node, Number):
        return node.value.numerator * _inverse(node.value.denominator) % PRIME
    if isinstance(node, Symbol):
        if node.name not in values:
            raise Undefined
        return values[node.name]
    if isinstance(node, Sum):
        return sum(_modular(term, values, left) for term in node.terms) % PRIME
    if isinstance(node, Product):
        product = 1
        for factor in node.factors:
            product = product * _modular(factor, values, left) % PRIME
        return product
    if isinstance(node, Quotient):
        return _modular(node.above, values, left) * _inverse(_modular(node.below, values, left)) % PRIME
    if isinstance(node, Power):
        exponent = exact(node.exponent)
        if exponent is None or exponent.denominator != 1 or abs(exponent) > PRIME // 2:
            raise Undefined
        base = _modular(node.base, values, left)
        return pow(base if exponent >= 0 else _inverse(base), abs(int(exponent)), PRIME)
    raise Undefined


def _inverse(value: int) -> int:
    if not value % PRIME:
        raise ZeroDivisionError
    return pow(value, -1, PRIME)


def proportion(first: Node, second: Node) -> int:
    """1 where `first` is a positive multiple of `second` for all values of the variables, -1 where it is a negative
    one, else 0."""
    names = (symbols(first) | symbols(second)) - CONSTANTS
    ratios = []
    for values in points(names):
        evaluator = Evaluator(values, real="i" not in symbols(first) | symbols(second))
        try:
            a, b = evaluator.value(first), evaluator.value(second)
        except (Undefined, TooLarge):
            continue
        small = evaluator.mp.mpf(10) ** -ROUNDED_DIGITS * max(evaluator.scale, 1)
        if abs(a) <= small or abs(b) <= small:
            if abs(a) <= small and abs(b) <= small:
                continue
            return 0
        ratios.append(a / b)
    if len(ratios) < 2 or not all(near(ratio, ratios[0]) for ratio in ratios):
        return 0
    if ratios[0].imag:
        return 0
    return 1 if ratios[0] > 0 else -1
