"""Whether an answer equals a target, both taken out of what stands around them."""

from __future__ import annotations

import re

from reroll_verifiers_math import sympy_judge
from reroll_verifiers_math.comparison import equal
from reroll_verifiers_math.nodes import Node, Number, Power, Product, Quantity, Quotient, Symbol, Words, integer, walk
from reroll_verifiers_math.numeric import is_value
from reroll_verifiers_math.quantities import Policy
from reroll_verifiers_math.reading import cleaned, readings
from reroll_verifiers_math.text import folded
from reroll_verifiers_math.units import SINGLE_LETTERS


def judge(gold: str, answer: str, policy: Policy) -> bool:
    """Whether an answer equals a target: as text, as what the grammar reads, or as SymPy finds."""
    first, second = cleaned(gold), cleaned(answer)
    if _compact(first) == _compact(second):
        return True
    golds, answers = (readings(text) or readings(_last_part(text)) for text in (first, second))
    if golds and answers and _equal_readings(golds, answers, policy):
        return True
    if (not golds or any(isinstance(item, Words) for item in walk(golds[0]))) and _same_words(first, second):
        return True
    if golds and answers:
        return False
    if sympy_judge.is_operation(first) and not sympy_judge.is_degenerate(second) and _is_formula(second, answers):
        return sympy_judge.equal_formulas(first, second)
    return False


def _same_words(first: str, second: str) -> bool:
    return folded(first).strip("()") == folded(second).strip("()")


def _equal_readings(golds: list[Node], answers: list[Node], policy: Policy) -> bool:
    """Whether a likely reading of one equals any of the other. A target's other readings count only for answers that
    have their form."""
    if any(equal(golds[0], answer, policy) for answer in answers):
        return True
    measured = [answer for answer in map(_with_unit, answers) if isinstance(answer, Quantity)]
    if any(equal(gold, answer, policy) for answer in measured for gold in (golds[0], _with_unit(golds[0]))):
        return True
    others = [gold for gold in golds[1:] if isinstance(gold, type(answers[0]))]
    return any(equal(gold, answers[0], policy) for gold in others)


def _with_unit(node: Node) -> Node:
    """`5 m`, `5 m^2` and `5 m/s`, read as products of letters, as quantities: where nothing else is there, letters may
    be units."""
    below = _letter(node.below) if isinstance(node, Quotient) else ""
    product = node.above if isinstance(node, Quotient) else node
    if below is None or not isinstance(product, Product) or len(product.factors) != 2:
        return node
    value, above = product.factors[0], _letter(product.factors[1])
    if not isinstance(value, Number) or above is None:
        return node
    return Quantity(value, f"{above}/{below}" if below else above)


def _letter(node: Node) -> str | None:
    """A letter that is a unit, with its power."""
    base, power = (node.base, node.exponent) if isinstance(node, Power) else (node, integer(1))
    if not isinstance(base, Symbol) or base.name not in SINGLE_LETTERS or not isinstance(power, Number):
        return None
    return base.name if power.value == 1 else f"{base.name}^{power.value}"


def _is_formula(text: str, read: list[Node]) -> bool:
    """Whether an answer is what a sum or an integral may be equal to: what the grammar reads, or another one."""
    return is_value(read[0]) if read else sympy_judge.is_operation(text)


def _last_part(text: str) -> str:
    """Behind the last equals sign of work that cannot be read, its result."""
    return text.rpartition("=")[2] if "=" in text else ""


def _compact(text: str) -> str:
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)  # `4 2` stays two numbers
