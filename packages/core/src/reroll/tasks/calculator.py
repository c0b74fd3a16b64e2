"""The built-in tool: exact arithmetic on what a model wrote, which may be anything."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, Inexact
from fractions import Fraction
from typing import Any

from reroll.api import Tool

MOST_CHARACTERS = 500
MOST_NESTING = 250
"""As many terms as an expression of that length can have: each is one level of the syntax tree."""
MOST_EXPONENT = 1000
MOST_BITS = 4096
"""Of a numerator or a denominator, about 1,200 digits."""
DIGITS = 15
"""Of a decimal that does not end within `EXACT_DIGITS`."""
EXACT_DIGITS = 50

STRANGE = re.compile(r"[^0-9eE_.()+\-*/% \t\r\n]")
NUMBER = re.compile(r"(?P<digits>[0-9_]*\.?[0-9_]*)(?:[eE](?P<exponent>[+-]?[0-9_]+))?")
HINTS = {"^": "write ** for a power", "=": "give one side alone", ",": "write numbers without it", "×": "write *"}

OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class CalculationError(ValueError):
    """An expression that cannot be calculated; the message is for the model that wrote it."""


class Calculator(Tool):
    """Calculates an arithmetic expression."""

    name = "calculator"

    def schema(self) -> dict[str, Any]:
        expression = {"type": "string", "description": "Numbers, + - * / // % **, and parentheses."}
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": "Calculates an arithmetic expression exactly.",
                "parameters": {
                    "type": "object",
                    "properties": {"expression": expression},
                    "required": ["expression"],
                    "additionalProperties": False,
                },
            },
        }

    async def call(self, arguments: Mapping[str, Any]) -> str:
        if set(arguments) != {"expression"} or not isinstance(arguments["expression"], str):
            raise CalculationError('give one argument, "expression", a text')
        return calculate(arguments["expression"])


def calculate(expression: str) -> str:
    """The value of an arithmetic expression: an integer where it is one, else a decimal, exact if it ends within 50
    digits and of 15 significant digits otherwise.

    Numbers are fractions on the way, so that nothing is rounded before the end. Length, nesting and the size of every
    number are bounded: no expression takes long or much memory. CalculationError says what is wrong.
    """
    if len(expression) > MOST_CHARACTERS:
        raise CalculationError(f"the expression has {len(expression)} characters; at most {MOST_CHARACTERS} are read")
    strange = STRANGE.search(expression)
    if strange:
        hint = HINTS.get(strange[0], "only numbers, + - * / // % **, and parentheses are")
        raise CalculationError(f"{strange[0]!r} is not read in an expression: {hint}")
    line = " ".join(expression.split())
    try:
        tree = ast.parse(line, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "it is too deeply nested"
        raise CalculationError(f"{line!r:.80} is no arithmetic expression: {reason}") from None
    return _written(_value(tree.body, line, MOST_NESTING))


def _value(node: ast.expr, line: str, depth: int) -> Fraction:
    if depth == 0:
        raise CalculationError(f"the expression is nested more than {MOST_NESTING} deep")
    if isinstance(node, ast.Constant):
        return _bounded(_number(line[node.col_offset : node.end_col_offset]))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = _value(node.operand, line, depth - 1)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, line, depth - 1), _value(node.right, line, depth - 1)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) in OPERATIONS:
            if right == 0 and not isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
                raise CalculationError("division by zero")
            return _bounded(Fraction(OPERATIONS[type(node.op)](left, right)))
    raise CalculationError(f"{line[node.col_offset : node.end_col_offset]!r:.80} is no arithmetic")


def _number(text: str) -> Fraction:
    """Read from the text itself, since a float would round it."""
    match = NUMBER.fullmatch(text)
    if not match:  # `...` is a constant of the language too
        raise CalculationError(f"{text!r:.80} is no number")
    exponent = int((match["exponent"] or "0").replace("_", ""))
    if abs(exponent) > MOST_EXPONENT:
        raise CalculationError(f"the exponent of {text!r:.80} is beyond {MOST_EXPONENT}")
    return Fraction(match["digits"].replace("_", "")) * Fraction(10) ** exponent


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > MOST_EXPONENT:
        raise CalculationError(f"an exponent must be a whole number of up to {MOST_EXPONENT}")
    if base == 0 and exponent < 0:
        raise CalculationError("division by zero")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if (bits - 1) * abs(exponent.numerator) > MOST_BITS:
        raise _too_large()
    return _bounded(Fraction(base**exponent.numerator))


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_BITS:
        raise _too_large()
    return value


def _too_large() -> CalculationError:
    return CalculationError(f"a number on the way has more than {MOST_BITS} binary digits")


def _written(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    numerator, denominator = Decimal(value.numerator), Decimal(value.denominator)
    exact = Context(prec=EXACT_DIGITS, traps=[])
    found = exact.divide(numerator, denominator)
    if exact.flags[Inexact]:
        found = Context(prec=DIGITS, traps=[]).divide(numerator, denominator)
    found = found.normalize(Context(prec=EXACT_DIGITS, traps=[]))
    return f"{found:f}" if -EXACT_DIGITS < found.adjusted() < EXACT_DIGITS else str(found)
