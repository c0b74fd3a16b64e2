"""Values of expressions as numbers of a hundred digits, where variables have values.

Work is bounded: by the number of operations, by the size of integers, and by the size of exponents. What passes a bound
is TooLarge, and equal to nothing but its own like.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from reroll_verifiers_math.exact import OPERATIONS, TooLarge, Undefined, exact
from reroll_verifiers_math.nodes import (
    SCALARS,
    Call,
    Matrix,
    Node,
    Power,
    Product,
    Quantity,
    Quotient,
    Sum,
    Symbol,
    symbols,
    walk,
)

DIGITS = 100
FINE_DIGITS = 300
"""Digits of a second look, where the first may have lost some."""
AGREEING_DIGITS = 85
ROUNDED_DIGITS = 40
"""A difference that is so many digits below what it is made of may be one of rounding."""
EXPONENT_BITS = 2_000
"""An exponent is at most two to this power."""

CONSTANTS = frozenset(("pi", "e", "i", "infty"))


_own = threading.local()


def _context(digits: int) -> Any:
    """An mpmath context of this thread's own: its functions change the working precision while they run."""
    contexts = _own.__dict__.setdefault("contexts", {})
    if digits not in contexts:
        from mpmath.ctx_mp import MPContext

        contexts[digits] = MPContext()
        contexts[digits].dps = digits
    return contexts[digits]


class Evaluator:
    """Evaluates at one assignment of variables.

    `real`: a root or a logarithm that leaves the real numbers is Undefined. `scale` is the largest number that was
    added up on the way: what rounding errors are small against.
    """

    def __init__(self, values: Mapping[str, Fraction], real: bool, digits: int = DIGITS) -> None:
        self.mp = _context(digits)
        self.values = values
        self.real = real
        self.scale = self.mp.mpf(0)
        self.left = OPERATIONS
        self._known: dict[Node, Any] = {}

    def value(self, node: Node) -> Any:
        """A real or complex number of `DIGITS` digits; Undefined or TooLarge where there is none."""
        known = self._known.get(node)
        if known is not None:
            return known
        self.left -= 1
        if self.left < 0:
            raise TooLarge
        fraction = None if isinstance(node, Symbol) else exact(node)
        try:
            if fraction is not None:
                found = self._fraction(fraction)
            else:
                found = self._compute(node)
        except (ZeroDivisionError, self.mp.NoConvergence) as error:
            raise Undefined from error
        except (OverflowError, ValueError, MemoryError, NotImplementedError, TypeError) as error:
            raise TooLarge from error
        if not self.mp.isfinite(found):
            raise Undefined
        if isinstance(found, self.mp.mpc) and found.imag == 0:
            found = found.real
        if self.real and isinstance(found, self.mp.mpc):
            raise Undefined
        self._known[node] = found
        return found

    def _fraction(self, fraction: Fraction) -> Any:
        return self.mp.mpf(fraction.numerator) / fraction.denominator

    def _compute(self, node: Node) -> Any:
        mp = self.mp
        if isinstance(node, Symbol):
            return self._symbol(node.name)
        if isinstance(node, Sum):
            terms = [self.value(term) for term in node.terms]
            self.scale = max(self.scale, *(abs(term) for term in terms))
            return mp.fsum(terms)
        if isinstance(node, Product):
            product = mp.mpf(1)
            for factor in node.factors:
                product *= self.value(factor)
            return product
        if isinstance(node, Quotient):
            return self.value(node.above) / self.value(node.below)
        if isinstance(node, Power):
            return self._power(node)
        if isinstance(node, Call):
            return self._call(node)
        if isinstance(node, Quantity) and node.unit == "%":
            return self.value(node.value) / 100
        if isinstance(node, Quantity) and node.unit == "°":
            return self.value(node.value) * mp.pi / 180
        raise Undefined

    def _symbol(self, name: str) -> Any:
        if name in self.values:
            return self._fraction(self.values[name])
        if name == "pi":
            return +self.mp.pi
        if name == "e":
            return +self.mp.e
        if name == "i":
            return self.mp.mpc(0, 1)
        raise Undefined

    def _power(self, node: Power) -> Any:
        base, exponent = self.value(node.base), self.value(node.exponent)
        mp = self.mp
        if base == 0:
            if mp.re(exponent) <= 0 and exponent != 0:
                raise Undefined
            return mp.mpf(0) if exponent != 0 else mp.mpf(1)
        if abs(exponent) * max(1, abs(mp.log(abs(base), 2))) > mp.mpf(2) ** EXPONENT_BITS:
            raise TooLarge
        fraction = exact(node.exponent)
        if fraction is not None and mp.im(base) == 0 and base < 0 and fraction.denominator % 2:
            sign = -1 if fraction.numerator % 2 else 1
            return sign * mp.power(-base, exponent)  # the real root, as in schools
        if self.real and mp.im(base) == 0 and base < 0 and fraction is None and exponent != mp.floor(mp.re(exponent)):
            raise Undefined
        return mp.power(base, exponent)

    def _call(self, node: Call) -> Any:
        if node.name == "det" and isinstance(node.arguments[0], Matrix):
            return self._determinant(node.arguments[0])
        values = [self.value(argument) for argument in node.arguments]
        if node.name.startswith("of "):
            return self._unknown(node.name, values)
        function = _FUNCTIONS.get(node.name)
        if function is None:
            raise Undefined
        if node.name in _DEMANDING and any(abs(value) > 10**6 for value in values):
            raise TooLarge
        try:
            return function(self.mp, *values)
        except TypeError as error:  # another number of arguments
            raise Undefined from error

    def _determinant(self, matrix: Matrix) -> Any:
        if len(matrix.rows) != len(matrix.rows[0]) or len(matrix.rows) > 8:
            raise Undefined
        return self.mp.det(self.mp.matrix([[self.value(cell) for cell in row] for row in matrix.rows]))

    def _unknown(self, name: str, values: list[Any]) -> Any:
        """A number that stands for the function's value: equal arguments have equal ones."""
        shown = name + ";".join(self.mp.nstr(value, 30) for value in values)
        return self._fraction(draw(shown, Fraction(1, 4), Fraction(4)))


def _root(mp: Any, value: Any, degree: Any) -> Any:
    if degree == 0:
        raise Undefined
    whole = degree == mp.floor(mp.re(degree))
    if whole and mp.im(value) == 0 and value < 0 and int(degree) % 2:
        return -mp.power(-value, 1 / degree)
    return mp.power(value, 1 / degree)


def _log(mp: Any, value: Any, base: Any = None) -> Any:
    return mp.log(value) / (mp.log(10) if base is None else mp.log(base))


def _ordered(which: Any) -> Any:
    def choose(mp: Any, *values: Any) -> Any:
        if any(mp.im(value) for value in values):
            raise Undefined
        return which(values)

    return choose


def _mpmath(name: str) -> Any:
    return lambda mp, value: getattr(mp, name)(value)


_CIRCULAR = ("sin", "cos", "tan", "cot", "sec", "csc")
_FUNCTIONS: dict[str, Any] = {
    **{name: _mpmath(name) for name in (*_CIRCULAR, "sinh", "cosh", "tanh", "coth")},
    **{"arc" + name: _mpmath("a" + name) for name in _CIRCULAR},
    "ln": lambda mp, value: mp.log(value),
    "log": _log,
    "exp": lambda mp, value: mp.exp(value),
    "sqrt": lambda mp, value: mp.sqrt(value),
    "cbrt": lambda mp, value: _root(mp, value, 3),
    "root": _root,
    "abs": lambda mp, value: abs(value),
    "Gamma": lambda mp, value: mp.gamma(value),
    "floor": lambda mp, value: mp.floor(value),
    "ceil": lambda mp, value: mp.ceil(value),
    "sign": lambda mp, value: mp.sign(value),
    "arg": lambda mp, value: mp.arg(value),
    "re": lambda mp, value: mp.re(value),
    "im": lambda mp, value: mp.im(value),
    "factorial": lambda mp, value: mp.gamma(value + 1),
    "factorial2": lambda mp, value: mp.fac2(value),
    "binom": lambda mp, n, k: mp.gamma(n + 1) / (mp.gamma(k + 1) * mp.gamma(n - k + 1)),
    "max": _ordered(max),
    "min": _ordered(min),
}
_DEMANDING = frozenset(
    ("factorial", "factorial2", "binom", "Gamma", "exp", "sinh", "cosh", "sin", "cos", "tan", "cot", "sec", "csc")
)
"""Functions whose work or result grows with the size of what they are given."""


def draw(name: str, low: Fraction, high: Fraction) -> Fraction:
    digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")
    return low + (high - low) * Fraction(digest % 99_991 + 1, 99_993)


@lru_cache(maxsize=1024)
def constant(node: Node) -> Any:
    """The number that an expression without variables stands for, as mpmath has it; None if there is none."""
    if symbols(node) - CONSTANTS or not is_value(node):
        return None
    try:
        return Evaluator({}, real=False).value(node)
    except (Undefined, TooLarge):
        return None


def is_too_large(node: Node) -> bool:
    """Whether it is a number that the bounds do not let be worked out, such as a tower of powers."""
    if symbols(node) - CONSTANTS or not is_value(node):
        return False
    try:
        Evaluator({}, real=False).value(node)
    except TooLarge:
        return True
    except Undefined:
        pass
    return False


def is_value(node: Node) -> bool:
    """Whether it is an expression: nodes that have a number as their value, and degrees and percents in them."""
    return not isinstance(node, Matrix) and all(
        isinstance(item, (*SCALARS, Matrix)) or (isinstance(item, Quantity) and item.unit in ("°", "%"))
        for item in walk(node)
    )


def near(a: Any, b: Any) -> bool:
    """Whether two numbers agree in all of `AGREEING_DIGITS`."""
    mp = _context(DIGITS)
    return bool(abs(a - b) <= mp.mpf(10) ** -AGREEING_DIGITS * max(abs(a), abs(b)))


def agree(first: Node, second: Node, values: Mapping[str, Fraction], real: bool) -> bool | None:
    """Whether two expressions have one value where variables have those given; None where one has none.

    What was lost in a difference of large numbers is computed again with more digits: a true difference stays as it is,
    one that comes of rounding shrinks. So no expression can make room for itself by the size of its terms.
    """
    try:
        coarse = Evaluator(values, real)
        a, b = coarse.value(first), coarse.value(second)
        if near(a, b):
            return True
        difference, scale = abs(a - b), max(coarse.scale, abs(a), abs(b), 1)
        if difference > coarse.mp.mpf(10) ** -ROUNDED_DIGITS * scale:
            return False
        fine = Evaluator(values, real, FINE_DIGITS)
        a, b = fine.value(first), fine.value(second)
        least = fine.mp.mpf(10) ** -ROUNDED_DIGITS
        return near(a, b) or bool(abs(a - b) <= least and abs(a - b) <= least * difference)
    except (Undefined, TooLarge):
        return None
