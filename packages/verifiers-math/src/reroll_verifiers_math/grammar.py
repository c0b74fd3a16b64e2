"""Tokens → nodes: a recursive descent over formulas in LaTeX and in plain text, in one pass and without evaluation.

    answer    := statement ((`,` | `;` | and) statement)*
    statement := sets (relation sets)* unit or words behind it
    sets      := ratio ((∪ | ∩ | \\) ratio)*
    ratio     := sum (`:` sum)*
    sum       := [sign] product (sign product)*
    product   := power ((`*` | `/` | nothing) power)*
    power     := atom (`^` exponent | `_` index | `!` | `'` | unit)*

Division and the unwritten product bind alike, from left to right, so that `1/2x` is x/2.
"""

from __future__ import annotations

import re
from functools import lru_cache

from reroll_verifiers_math.atoms import CLOSING, ENDS, SEPARATORS, Atoms
from reroll_verifiers_math.lexer import TooDeep, Unreadable, tokens
from reroll_verifiers_math.nodes import (
    ANYTHING,
    Call,
    Listing,
    Node,
    Number,
    PlusMinus,
    Power,
    Product,
    Quantity,
    Quotient,
    Ratio,
    Relation,
    SetOperation,
    Sum,
    Symbol,
    Words,
    height,
    integer,
    negated,
)
from reroll_verifiers_math.units import read_unit
from reroll_verifiers_math.vocabulary import MULTIPLES, NO_UNITS

REMEMBERED = 500
"""Characters of a text up to which its node is remembered: targets and answers come again and again."""
NODE_DEPTH = 100
"""Levels of the tree; a chain such as `1/2/3/…` is one that brackets do not count."""

RELATIONS = frozenset(("=", "!=", "<", "<=", ">", ">=", "~", "in", "notin", "->"))
_OPENING = ("(", "[", "{", "\\{", "<(", "floor(", "ceil(")
_STARTS = frozenset((*_OPENING, "number", "symbol", "function", "frac", "root", "binom", "begin", "derivative"))
_STARTS |= {"overline", "style", "mathbb", "currency", "$"}
_CONDITION = re.compile(r"(?:if|for|where|when|whenever|with|given|provided|otherwise)\b", re.IGNORECASE)
_VAGUE_WORDS = "about approximately approx around roughly exactly only just answer is equals total a"
_VAGUE = frozenset(_VAGUE_WORDS.split())


def parse(text: str, grouped: bool = True, decimal_comma: bool = False) -> Node:
    """The node of a tidied text.

    Args:
        grouped, decimal_comma: how a comma between digits is read; see `lexer.tokens`.

    Raises:
        Unreadable: it is no mathematics that is known here.
        TooDeep: it is nested too deeply.
    """
    read = _remembered if len(text) <= REMEMBERED else _outcome
    outcome = read(text, grouped, decimal_comma)
    if isinstance(outcome, Unreadable):
        raise type(outcome)(*outcome.args)
    return outcome


def _outcome(text: str, grouped: bool, decimal_comma: bool) -> Node | Unreadable:
    try:
        grammar = Grammar(tokens(text, grouped, decimal_comma))
        node = grammar.answer()
        grammar.end()
        if height(node, NODE_DEPTH) > NODE_DEPTH:
            raise TooDeep("it is nested too deeply")
    except Unreadable as error:
        return error.with_traceback(None)
    return node


_remembered = lru_cache(maxsize=2048)(_outcome)


class Grammar(Atoms):
    """The rules in the order of the module's text."""

    def answer(self) -> Node:
        start = self.at
        items = self.statements()
        if not items:
            raise Unreadable("there is nothing")
        if len(items) == 1:
            return items[0]
        words = {token.kind for token in self.items[start : self.at]} & {"and", "or"}
        return Listing(tuple(items), joined=words.pop() if len(words) == 1 else "")

    def statements(self) -> list[Node]:
        items: list[Node] = []
        while True:
            while self.kind() in SEPARATORS:
                self.at += 1
            french = self.kind() == "]" and not self.depth  # an open end in front
            if not self.kind() or (self.kind() in CLOSING - {"|"} and not french) or (self.kind() == "|" and self.bars):
                return items
            items.append(self.statement())
            if self.kind() not in SEPARATORS:
                return items

    def statement(self) -> Node:
        while self.kind() in ("~", "=", "->", ":"):
            self.at += 1
        if self.kind() in ("<", "<=", ">", ">="):  # what is less is not said
            operator = self.take().kind
            return Relation((ANYTHING, self.behind(self.sets_())), (operator,))
        words = self.words()
        if words is not None:
            return words
        parts, operators = [self.label() or self.sets_()], []
        while self.kind() in RELATIONS:
            operators.append(self.take().kind)
            if self.kind() in ("word", "text"):
                parts.append(self.words_until_separator())
                break
            parts.append(self.sets_())
        parts[-1] = self.behind(parts[-1], bool(operators))
        return Relation(tuple(parts), tuple(operators)) if operators else parts[0]

    def words(self) -> Node | None:
        """A statement that begins with words; None if it begins with mathematics."""
        while (
            self.kind() == "word"
            and self.items[self.at].text.casefold() in _VAGUE
            and self.kind(1) not in ("", ".", ",")
        ):
            self.at += 1
        if self.kind() in ("word", "text") and self.items[self.at].text.casefold() in ("if", "for", "when"):
            self.at += 1  # before the condition of a case
            return None
        if self.kind() not in ("word", "text", "unit"):
            return None
        words = self.words_until_separator()
        if self.kind() == "=":
            self.at += 1
            return Relation((words, self.behind(self.sets_())), ("=",))
        if self.kind() and self.kind() not in ENDS:
            raise Unreadable(f"words before {self.items[self.at].text!r}")
        return words

    def words_until_separator(self) -> Words:
        found: list[str] = []
        while self.kind() in ("word", "text", "symbol", "unit", "'", "-", "."):
            if self.kind() == "." and not self.kind(1):
                break
            found.append(self.take().text)
        return Words(" ".join(found))

    def behind(self, value: Node, related: bool = False) -> Node:
        """Units, words and conditions behind a value; `related` where it stands in a relation."""
        if self.kind() in ("pmod", "mod") or (self.kind() == "(" and self.kind(1) in ("mod", "pmod")):
            open_bracket = self.accept("(")
            self.at += 1
            modulus = self.inner(self.atom)
            if open_bracket:
                self.expect(")")
            if isinstance(modulus, Number) and not (modulus.value.denominator == 1 and modulus.value < 10**30):
                raise Unreadable("a modulus that is no whole number")
            return Quantity(value, f"mod {modulus.value}" if isinstance(modulus, Number) else "mod")
        if self.kind() in ("text", "word") and _CONDITION.match(self.items[self.at].text):
            self.condition(related)
            return value
        if self.kind() == "word" and isinstance(value, Symbol):
            raise Unreadable("a sentence that begins with a letter")
        found: list[str] = []
        while self.kind() in ("word", "text", "unit", "symbol", "in") and not (self.kind() == "symbol" and not found):
            found.append(self.take().text)
            while self.kind() == "^" and self.kind(1) == "number":
                found.append(f"^{self.items[self.at + 1].text}")
                self.at += 2
        if not found:
            return value
        text = " ".join(found)
        if read_unit(text) is None:
            value = self.multiplied(value, found)
            if any(word in NO_UNITS for word in re.findall(r"[a-z']+", text.casefold())):
                raise Unreadable(f"{text!r} behind a value")
        return value if isinstance(value, Quantity) else Quantity(value, text)

    def multiplied(self, value: Node, words: list[str]) -> Node:
        """`5 million people`: a word that is a number. It is taken out of the words."""
        while words and words[0].casefold() in MULTIPLES:
            value = Product((value, integer(MULTIPLES[words.pop(0).casefold()])))
        return value

    def condition(self, related: bool) -> None:
        """Passes over when a value holds, `for n > 1`; Unreadable for what says more than that, and for a relation
        that another one narrows."""
        start = self.at
        while self.kind() and self.kind() not in SEPARATORS | (CLOSING - {")", "]", "|"}):
            self.at += 1
        kinds = {token.kind for token in self.items[start : self.at]}
        narrowed = related and bool(kinds & RELATIONS - {"in"})
        if narrowed or ("number" in kinds and not (kinds & RELATIONS and "symbol" in kinds)):
            raise Unreadable("a condition with another value in it")

    def label(self) -> Node | None:
        """The left side of a definition, `f(x) =`: a function of its arguments, not a product."""
        if self.kind() != "symbol" or self.kind(1) not in ("(", "'", "_"):
            return None
        position = self.at + 1
        while position < len(self.items) and self.items[position].kind in ("'", "_", "number", "{", "}", "symbol"):
            position += 1
        if position >= len(self.items) or self.items[position].kind != "(":
            return None
        opened, start = 0, position
        while position < min(len(self.items), start + 24):
            opened += {"(": 1, ")": -1}.get(self.items[position].kind, 0)
            if not opened:
                break
            position += 1
        if opened or position + 1 >= len(self.items) or self.items[position + 1].kind not in ("=", "~"):
            return None
        text = "".join(item.text for item in self.items[self.at : position + 1])
        self.at = position + 1
        return Call("of " + text, ())

    def cell(self) -> Node:
        """What stands in one place of a matrix."""
        return self.behind(self.sets_())

    def sets_(self) -> Node:
        first = self.ratio()
        while self.kind() in ("cup", "cap", "setminus"):
            first = SetOperation(self.take().kind, first, self.ratio())
        return first

    # Expressions

    def ratio(self) -> Node:
        parts = [self.sum()]
        minutes = self.items[self.at + 1].text if self.kind() == ":" and self.kind(1) == "number" else ""
        while self.kind() == ":" and not self.sets and self.kind(1):
            self.at += 1
            parts.append(self.sum())
        return parts[0] if len(parts) == 1 else Ratio(tuple(parts), len(minutes) == 2 and minutes < "60")

    def sum(self) -> Node:
        terms: list[Node] = []
        first = True
        while first or self.kind() in ("+", "-", "pm", "mp"):
            sign = self.take().kind if self.kind() in ("+", "-", "pm", "mp") else "+"
            if self.kind() == "-" and sign in ("+", "-"):  # two signs
                self.at += 1
                sign = "-" if sign == "+" else "+"
            term = self.product()
            if sign in ("pm", "mp"):
                before = None if first else _sum(terms)
                terms = [PlusMinus(before, term, sign == "pm")]
            else:
                terms.append(negated(term) if sign == "-" else term)
            first = False
        return _sum(terms)

    def product(self, stop_at_functions: bool = False) -> Node:
        result = self.power()
        while True:
            kind = self.kind()
            if kind == "*":
                self.at += 1
                if self.kind() in ("-", "+"):
                    sign = self.take().kind
                    factor = self.power()
                    factor = negated(factor) if sign == "-" else factor
                else:
                    factor = self.power()
                result = _times(result, factor)
            elif kind == "/":
                self.at += 1
                if self.kind() == "unit" and isinstance(result, Quantity):
                    result = Quantity(result.value, f"{result.unit}/{self.unit()}")
                    continue
                negative = self.accept("-")
                below = self.power()
                result = Quotient(result, negated(below) if negative else below)
            elif kind == "choose":
                self.at += 1
                result = Call("binom", (result, self.power()))
            elif kind == "dots":
                self.at += 1
                result = _times(result, Symbol("dots"))
            elif kind == "unit":
                result = self.quantity(result)
            elif kind in ("currency", "$") and self.kind(1) != "number":
                result = Quantity(result, "dollar" if kind == "$" else self.items[self.at].text)
                self.at += 1
            elif kind == "|" and not self.bars and not self.sets and self.bar_closes():
                result = _times(result, self.power())
            elif kind == "number" and (self.items[self.at - 1].kind == "number" or isinstance(result, Number)):
                return result  # two numbers beside each other are no product
            elif kind in _STARTS and not (stop_at_functions and kind == "function"):
                if kind in ("(", "[") and self.kind(1) in ("mod", "pmod"):
                    return result
                if kind == "[" and self.kind(1) in ("", "cup", "cap", *ENDS):
                    return result  # the French way to write an open end
                if kind == "number" and isinstance(result, Quantity):
                    result = self.together(result)
                    continue
                result = _times(result, self.power())
            else:
                return result

    def bar_closes(self) -> bool:
        return any(item.kind == "|" for item in self.items[self.at + 1 :])

    def together(self, first: Quantity) -> Node:
        """`5 ft 6 in`: quantities of one kind beside each other are added up."""
        second = self.power()
        if self.kind() == "unit":
            second = self.quantity(second)
        units = read_unit(first.unit), read_unit(second.unit if isinstance(second, Quantity) else "")
        if units[0] is None or units[1] is None or units[0].dimensions != units[1].dimensions:
            raise Unreadable("something behind a unit")
        assert isinstance(second, Quantity)
        if units[0].factor <= units[1].factor:
            raise Unreadable("a larger unit behind a smaller one")
        larger = Product((Number(units[0].factor / units[1].factor), first.value))
        return Quantity(Sum((larger, second.value)), second.unit)

    def quantity(self, value: Node) -> Node:
        return Quantity(value.value if isinstance(value, Quantity) else value, self.unit())

    def power(self) -> Node:
        base = self.atom()
        while True:
            if self.kind() == "^":
                self.at += 1
                exponent = self.exponent()
                base = _primed(base) if exponent is None else Power(base, exponent)
            elif self.kind() == "_":
                self.at += 1
                base = self.indexed(base)
            elif self.kind() == "!":
                self.at += 1
                base = Call("factorial2" if self.accept("!") else "factorial", (base,))
            elif self.kind() == "'" and isinstance(base, Symbol):
                self.at += 1
                base = _primed(base)
            elif self.kind() == "unit" and self.items[self.at].text in ("°", "%"):
                base = self.quantity(base)
            else:
                return base


def _sum(terms: list[Node]) -> Node:
    return terms[0] if len(terms) == 1 else Sum(tuple(terms))


def _times(first: Node, second: Node) -> Node:
    if isinstance(first, Quantity) and first.unit not in ("%", "°"):
        # `5 cm x`: a unit ends a value.
        raise Unreadable("something behind a unit")
    factors = first.factors if isinstance(first, Product) else (first,)
    return Product((*factors, second))


def _primed(base: Node) -> Node:
    if isinstance(base, Symbol):
        return Symbol(base.name + "'")
    raise Unreadable("a prime")
