"""What formulas are made of: numbers, symbols, functions, brackets, LaTeX commands and environments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction

from reroll_verifiers_math.cursor import Cursor
from reroll_verifiers_math.lexer import Token, Unreadable
from reroll_verifiers_math.nodes import (
    Call,
    Cases,
    Group,
    Listing,
    Matrix,
    Node,
    Number,
    Power,
    Product,
    Quantity,
    Quotient,
    Relation,
    Symbol,
    Words,
    integer,
    negated,
    symbols,
)
from reroll_verifiers_math.numerals import literal_number, numeral

SEPARATORS = frozenset((",", ";", "and", "or", "gap"))
CLOSING = frozenset((")", "]", "}", "\\}", ")>", "|", ")floor", ")ceil", "end", "row", "&"))
ENDS = SEPARATORS | CLOSING | {"."}
_MATRICES = frozenset(("matrix", "pmatrix", "bmatrix", "Bmatrix", "vmatrix", "Vmatrix", "smallmatrix", "array"))
_ALIGNED = frozenset(("aligned", "align", "gathered", "gather", "split", "equation", "eqnarray", "center"))
_ONE_ATOM = frozenset(("sqrt", "cbrt", "abs"))
_INVERSE = {"sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot", "sec": "arcsec", "csc": "arccsc"}
_SPELLED = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log", "sgn": "sign"}
_APPLIED = frozenset("fghFGH")
"""Letters that, right before a bracket, are functions and no factors."""


class Atoms(Cursor, ABC):
    """Reads atoms; the rules that they are parts of, and that stand in them again, are the grammar's."""

    @abstractmethod
    def statements(self) -> list[Node]: ...

    @abstractmethod
    def answer(self) -> Node: ...

    @abstractmethod
    def sum(self) -> Node: ...

    @abstractmethod
    def product(self, stop_at_functions: bool = False) -> Node: ...

    @abstractmethod
    def power(self) -> Node: ...

    @abstractmethod
    def cell(self) -> Node: ...

    def atom(self) -> Node:
        token = self.take()
        kind, text = token.kind, token.text
        match kind:
            case "number":
                return self.number(text)
            case "symbol":
                return self.symbol(text)
            case "function":
                return self.function(_SPELLED.get(text, text))
            case "(" | "[" | "<(" | "]":
                return self.group(kind)
            case "\\{":
                return self.set_()
            case "{":
                return self.braces()
            case "|":
                return Call("abs", (self.until_bar(),))
            case "floor(" | "ceil(":
                node = self.inner(self.sum)
                self.expect(")" + kind[:-1])
                return Call(kind[:-1], (node,))
            case "frac":
                above = self.argument()
                return _fraction(above, self.argument())
            case "derivative":
                return Symbol(text)
            case "binom":
                above = self.argument()
                return Call("binom", (above, self.argument()))
            case "root":
                return self.root()
            case "overline":
                return _barred(self.argument(whole=True))
            case "style":
                return self.argument(whole=True)
            case "begin":
                return self.environment(text)
            case "dots":
                return Symbol("dots")
            case "-":
                return negated(self.inner(self.power))
            case "currency":
                return Quantity(self.inner(self.power), text)
            case "$" if self.kind() == "number":
                return Quantity(self.inner(self.power), "dollar")
            case "`" | '"' | "$":
                return self.inner(self.atom)
            case "text" if self.kind() in ("", *ENDS):
                return Words(text)
        raise Unreadable(f"{text!r}")

    def symbol(self, name: str) -> Node:
        if name in ("Gamma", "C") and self.kind() == "(" and not self.items[self.at].spaced:
            self.at += 1
            arguments = self.bracketed(")")
            if name == "Gamma" and len(arguments) == 1:
                return Call(name, arguments)
            if name == "C" and len(arguments) == 2:
                return Call("binom", arguments)
            return Product((Symbol(name), arguments[0] if len(arguments) == 1 else Group("(", arguments, ")")))
        if name.startswith("mathbb") and self.kind() == "^" and self.kind(1) in ("+", "-", "*"):
            self.at += 2
            return Symbol(name + self.items[self.at - 1].kind)
        if name in _APPLIED and self.kind() == "(" and not self.items[self.at].spaced:
            self.at += 1
            return Call(f"of {name}", self.bracketed(")"))
        if name in ("angle", "triangle"):
            named = self.kind() == "word" and self.items[self.at].text.isupper()
            return Symbol(name + (self.take().text if named else "".join(self.letters())))
        return Symbol(name)

    def braces(self) -> Node:
        if self.accept("}"):
            return self.inner(self.atom)
        node = self.inner(self.answer)
        self.expect("}")
        return node

    def root(self) -> Node:
        degree = None
        if self.accept("["):
            degree = self.inner(self.sum)
            self.expect("]")
        radicand = self.inner(self.atom)
        return Call("sqrt", (radicand,)) if degree is None else Call("root", (radicand, degree))

    def exponent(self) -> Node | None:
        """None for a prime."""
        if self.accept("'"):
            return None
        if self.kind() == "{" and self.kind(1) == "'":
            self.at += 2
            self.expect("}")
            return None
        if self.accept("-"):
            return negated(self.inner(self.exponent_atom))
        return self.inner(self.exponent_atom)

    def exponent_atom(self) -> Node:
        atom = self.atom()
        while self.kind() == "!":
            self.at += 1
            atom = Call("factorial", (atom,))
        if self.accept("^"):
            exponent = self.exponent()
            return atom if exponent is None else Power(atom, exponent)
        return atom

    def indexed(self, base: Node) -> Node:
        found = []
        if self.accept("{"):
            opened = 1
            while opened:
                item = self.take()
                opened += {"{": 1, "}": -1}.get(item.kind, 0)
                if opened:
                    found.append(item.text)
        else:
            found.append(self.take().text)
        index = "".join(found)
        if isinstance(base, Symbol):
            return Symbol(f"{base.name}_{index}")
        if isinstance(base, Number) and base.value.denominator == 1:
            return numeral(base, index)
        if isinstance(base, Call) and not base.arguments:
            return base
        raise Unreadable(f"an index {index!r}")

    def number(self, text: str) -> Node:
        number = literal_number(text)
        if number.places or number.digits:
            return number
        # Mixed numbers: `2 1/4` and `2\frac{1}{4}`.
        ahead = self.items[self.at : self.at + 7]
        kinds = [item.kind for item in ahead]
        if kinds[:3] == ["number", "/", "number"] and ahead[0].spaced:
            above, below, used = ahead[0].text, ahead[2].text, 3
        elif kinds == ["frac", "{", "number", "}", "{", "number", "}"]:
            above, below, used = ahead[2].text, ahead[5].text, 7
        elif kinds[:2] == ["frac", "number"] and len(ahead[1].text) == 2 and ahead[1].text.isdigit():
            above, below, used = ahead[1].text[0], ahead[1].text[1], 2
        else:
            return number
        if above.isdigit() and below.isdigit() and len(below) < 20 and int(above) < int(below):
            self.at += used
            return Number(number.value + Fraction(int(above), int(below)))
        return number

    def function(self, name: str) -> Node:
        extra: tuple[Node, ...] = ()
        exponent: Node | None = None
        while self.kind() in ("_", "^"):
            if self.take().kind == "_":
                extra = (self.argument(),)
            else:
                exponent = self.exponent()
        if exponent == integer(-1) and name in _INVERSE:
            name, exponent = _INVERSE[name], None
        if name == "binom" and self.accept("("):
            return Call(name, self.bracketed(")"))
        if self.kind() == "(":
            self.at += 1
            arguments = self.bracketed(")")
        elif self.kind() == "{":
            arguments = (self.inner(self.atom),)
        elif name in _ONE_ATOM:
            arguments = (self.inner(self.power),)
        else:
            if self.kind() in ("-", "+"):
                sign = self.take().kind
                argument = self.inner(lambda: self.product(stop_at_functions=True))
                arguments = (negated(argument) if sign == "-" else argument,)
            else:
                arguments = (self.inner(lambda: self.product(stop_at_functions=True)),)
        if name == "log" and len(arguments) == 2 and not extra:
            arguments, extra = arguments[:1], arguments[1:]
        call = Call(name, arguments + extra)
        return call if exponent is None else Power(call, exponent)

    def bracketed(self, closing: str) -> tuple[Node, ...]:
        found = self.inner(self.statements)
        self.expect(closing)
        if not found:
            raise Unreadable("brackets without anything in them")
        return tuple(found)

    def group(self, opening: str) -> Node:
        items = self.inner(self.statements)
        closing = self.take().kind
        if opening == "<(" and closing == ")>":
            return Group("<", tuple(items), ">")
        if opening == "]":  # the French way to write an open end
            if closing not in ("[", "]") or len(items) != 2:
                raise Unreadable("a bracket that closes nothing")
            return Group("(", tuple(items), ")" if closing == "[" else "]")
        if closing not in (")", "]") and not (closing == "[" and len(items) == 2 and opening == "["):
            raise Unreadable("a bracket is not closed")
        if not items:
            raise Unreadable("brackets without anything in them")
        closing = ")" if closing == "[" else closing
        if len(items) == 1 and (opening, closing) in (("(", ")"), ("[", "]")):
            return items[0]
        return Group(opening, tuple(items), closing)

    def set_(self) -> Node:
        """`\\{1, 2\\}`; of `\\{x | x > 3\\}` the condition."""

        def read() -> tuple[list[Node], list[Node]]:
            self.sets = 1
            items = self.statements()
            if not self.accept("|", ":"):
                return items, []
            self.sets = 0
            return items, self.statements()

        items, condition = self.inner(read)
        self.expect("\\}")
        if condition:
            if len(items) != 1 or not _describes(items[0], condition):
                raise Unreadable("a set that is described by more than a condition of its elements")
            return condition[0] if len(condition) == 1 else Listing(tuple(condition))
        return Listing(tuple(items), braced=True) if items else Symbol("emptyset")

    def until_bar(self) -> Node:
        def read() -> Node:
            self.bars = 1
            return self.sum()

        node = self.inner(read)
        self.expect("|")
        return node

    def argument(self, whole: bool = False) -> Node:
        """An argument in braces, or one token; of several digits the first, as TeX reads them."""
        if (
            self.kind() == "number"
            and not whole
            and len(self.items[self.at].text) > 1
            and self.items[self.at].text.isdigit()
        ):
            token = self.items[self.at]
            self.items[self.at] = Token("number", token.text[1:], False)
            return literal_number(token.text[0])
        return self.inner(self.atom)

    def environment(self, name: str) -> Node:
        rows = self.inner(lambda: self.rows(name))
        if not rows:
            raise Unreadable(f"{name} without anything in it")
        if name == "cases":
            return Cases(rows)
        if name in _ALIGNED:
            items = tuple(item for line in rows for item in line)
            return items[0] if len(items) == 1 else Listing(items)
        if name not in _MATRICES:
            raise Unreadable(f"the environment {name}")
        if len({len(line) for line in rows}) != 1:
            raise Unreadable("rows of different lengths")
        return Call("det", (Matrix(rows),)) if name in ("vmatrix", "Vmatrix") else Matrix(rows)

    def rows(self, name: str) -> tuple[tuple[Node, ...], ...]:
        """What stands between `\\begin` and `\\end`, by row and cell."""
        rows: list[tuple[Node, ...]] = []
        row: list[Node] = []
        while True:
            if self.accept("&"):
                continue
            if self.kind() in ("row", "end"):
                if row:
                    rows.append(tuple(row))
                row = []
                if self.take().kind == "end":
                    return tuple(rows)
            elif not self.kind():
                raise Unreadable(f"{name} is not ended")
            elif name in _MATRICES:
                row.append(self.cell())
            else:
                found = self.statements()
                if not found:
                    raise Unreadable(f"{self.items[self.at].text!r} in {name}")
                row.extend(found)


def _fraction(above: Node, below: Node) -> Node:
    """A fraction; `\\frac{dy}{dx}` is a name."""
    if isinstance(below, Product) and below.factors[0] == Symbol("d") and len(below.factors) == 2:
        if isinstance(above, Product) and above.factors[0] == Symbol("d") and len(above.factors) == 2:
            names = [part.factors[1] for part in (above, below) if isinstance(part.factors[1], Symbol)]
            if len(names) == 2:
                return Symbol(f"d{names[0].name}/d{names[1].name}")
        if above == Symbol("d"):
            raise Unreadable("a derivative that is to be taken")
    return Quotient(above, below)


def _barred(node: Node) -> Node:
    """`\\overline{AB}` is a segment's name; of another variable it is the conjugate."""
    if isinstance(node, Product) and all(isinstance(item, Symbol) and item.name.isupper() for item in node.factors):
        return node
    if isinstance(node, Symbol) and len(node.name) == 1 and node.name.islower():
        return Symbol(f"bar {node.name}")
    raise Unreadable("a bar over a number or an expression")


def _describes(element: Node, condition: list[Node]) -> bool:
    """Whether what stands before the bar of a set is a variable, and what stands behind it about that variable."""
    if isinstance(element, Relation) and element.operators == ("in",):
        element = element.parts[0]
    return isinstance(element, Symbol) and all(element.name in symbols(item) for item in condition)
