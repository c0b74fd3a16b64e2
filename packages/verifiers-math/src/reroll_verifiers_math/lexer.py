"""Tidied text → tokens. Formulas in LaTeX and in plain text share one set of tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from reroll_verifiers_math.units import CURRENCIES, SINGLE_LETTERS, read_unit
from reroll_verifiers_math.vocabulary import COMMANDS, FUNCTIONS, GREEK, SAME_GREEK, STOP_WORDS, SYMBOLS, WORDS


class Unreadable(Exception):
    """The text is no mathematics that is known here."""


class TooDeep(Unreadable):
    """The text is nested deeper than any answer is."""


class Token(NamedTuple):
    """`kind` says what it is:

    `number`, `symbol`, `function` and `unit` by their text; `text` is what `\\text{…}` holds; `word` is a word of no
    mathematics; `and` and `or` stand between answers; everything else is its own kind, such as `+`, `frac` or `<=`.
    """

    kind: str
    text: str
    spaced: bool
    """Whether a space stands before it."""


_TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<derivative>d[a-z]/d[a-z](?![a-z]))"
    r"|(?P<hexadecimal>[A-F]{2,16}_(?:\{\s*16\s*\}|16)(?!\d))"
    r"|(?P<based>(?=[A-Fa-f]{0,16}\d)[\dA-Fa-f]{0,16}[A-Fa-f][\dA-Fa-f]{0,16}_(?:\{\s*1[1-6]\s*\}|1[1-6])(?!\d))"
    r"|(?P<mixed>\d+(?:\.\d{3})+,\d+|\d{1,3}(?:\.\d{3}){2,}(?!\d))"
    r"|(?P<spaced>\d{1,3}(?: \d{3})+(?:\.\d+)?(?!\d|\s*/|\.\d))"
    r"|(?P<grouped>\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d]|,\d))"
    r"|(?P<comma>\d+,\d+(?![\d,]))"
    r"|(?P<repeating>\d*\.\d*(?:\\(?:overline|bar|dot)\s*\{\s*\d+\s*\}|\\dot\s*\d(?:\d*\\dot\s*\d)?|\(\d+\)))"
    r"|(?P<number>(?:\d*\.\d+(?:[eE][+-]?\d{1,9}(?![\w.]))?|\d+(?:(?:E[+-]?|e|(?<=\b1)e[+-])\d{1,9}(?![\w.])|e[+-](?:\d\d{1,8}|[4-9])(?![\w.]))?))"
    r"|(?P<dots>\.\.\.+|\. \. \.)"
    r"|\\(?P<command>[A-Za-z]+|[{}|])"
    r"|(?P<row>\\\\)"
    r"|(?P<word>[^\W\d_]+)"
    r"|(?P<operator>\*\*|<=|>=|=<|=>|->|!=|==|~=|:=|[-+*/^_!'=<>()\[\]{}|,;:&%°$€£¥₹¢?.\"`@#~])",
)
VALUES = frozenset(("number", ")", "}"))
"""Kinds of tokens that a unit may stand behind."""
BEHIND = VALUES | {"unit", "word", "symbol", "]", "!", "*", "/", "|"}
"""Kinds of tokens that a short unit may stand behind: at the beginning of a formula, `mg` is a product."""
UNITS_TOO = frozenset(("min", "sec"))
"""Names of functions that are units behind a value."""
_ARGUMENT = re.compile(r"\s*[\w(\\{^]")
_STYLED = re.compile(r"\\(?:text\w*|mbox|mathrm|mathbf)\s*\{([^{}]*)\}")
_LETTER_AFTER = re.compile(r"[\d()^_+\-*/=|]")


def tokens(text: str, grouped: bool = True, decimal_comma: bool = False) -> list[Token]:
    """Tokens of a tidied text.

    Args:
        grouped: read `1,234` as one number; else as two.
        decimal_comma: read `2,74` as 2.74; else as two numbers.

    Raises:
        Unreadable: on a command or a character that is not known.
    """
    found: list[Token] = []
    position, spaced, length = 0, False, len(text)
    while position < length:
        match = _TOKEN.match(text, position)
        if match is None:
            raise Unreadable(f"character {text[position]!r}")
        kind, content = str(match.lastgroup), match[0]
        start, position = position, match.end()
        if kind == "space":
            spaced = True
            continue
        if kind in ("grouped", "comma") and not (decimal_comma if kind == "comma" else grouped and _one(text, match)):
            position = text.index(",", start)
            found.append(Token("number", text[start:position], spaced))
        elif kind in ("number", "repeating", "based", "hexadecimal"):
            found.append(Token("number", content, spaced))
        elif kind in ("grouped", "spaced"):
            found.append(Token("number", content.replace(",", "").replace(" ", ""), spaced))
        elif kind == "comma":
            found.append(Token("number", content.replace(",", "."), spaced))
        elif kind == "mixed":
            found.append(Token("number", content.replace(".", "").replace(",", "."), spaced))
        elif kind == "command":
            position = _command(text, match["command"], position, spaced, found)
        elif kind == "row":
            found.append(Token("row", content, spaced))
        elif kind == "word":
            found.extend(_word(text, content, start, position, spaced, found[-1].kind if found else ""))
        elif kind == "derivative":
            found.append(Token("derivative", content, spaced))
        elif kind == "dots":
            found.append(Token("dots", content, spaced))
        else:
            found.append(_operator(content, spaced))
        spaced = False
    return _without_double_brackets(found)


def _without_double_brackets(found: list[Token]) -> list[Token]:
    """Brackets right inside of brackets of their kind say nothing, however many there are."""
    ends: dict[int, int] = {}
    opened: list[int] = []
    for number, token in enumerate(found):
        if token.kind in ("(", "{", "["):
            opened.append(number)
        elif token.kind in (")", "}", "]") and opened:
            ends[opened.pop()] = number
    doubled: set[int] = set()
    for start, end in ends.items():
        kind = found[start].kind
        if (
            kind != "["
            and found[start + 1].kind == kind
            and ends.get(start + 1) == end - 1
            and found[end].kind == found[end - 1].kind
        ):
            doubled |= {start, end}
    return [token for number, token in enumerate(found) if number not in doubled] if doubled else found


def _one(text: str, match: re.Match[str]) -> bool:
    """Whether `1,234` is one number where it stands: not where it is all that brackets hold."""
    before, after = text[: match.start()].rstrip(), text[match.end() : match.end() + 8].lstrip()
    return not (before.endswith(("(", "[", "\\{", "<")) and after.startswith((")", "]", "\\}", ">", "\\rangle")))


def _operator(content: str, spaced: bool) -> Token:
    if content in CURRENCIES and content != "$":
        return Token("currency", CURRENCIES[content], spaced)
    kind = {"**": "^", "=<": "<=", "=>": "->", "==": "=", "~=": "~", ":=": "=", "%": "unit", "°": "unit"}.get(
        content, content
    )
    return Token(kind, content, spaced)


def _command(text: str, name: str, position: int, spaced: bool, found: list[Token]) -> int:
    """Appends the tokens of a command; gives where the text goes on."""
    kind = COMMANDS.get(name)
    if kind == "text":
        content, position = braced(text, position)
        found.extend(_text(content, spaced, found[-1].kind if found else ""))
    elif name in ("begin", "end"):
        content, position = braced(text, position)
        if name == "begin" and content.rstrip("*") == "array":
            _, position = braced(text, position)
        found.append(Token(name, content.rstrip("*"), spaced))
    elif kind == "mathbb":
        content, position = braced(text, position)
        found.append(Token("symbol", "mathbb" + content.strip(), spaced))
    elif kind is not None:
        found.append(Token(kind, name, spaced))
    elif name in GREEK:
        found.append(Token("symbol", SAME_GREEK.get(name, name), spaced))
    elif name in SYMBOLS:
        found.append(Token("symbol", SYMBOLS[name], spaced))
    elif name in FUNCTIONS:
        found.append(Token("function", name, spaced))
    else:
        raise Unreadable(f"the command \\{name}")
    return position


def braced(text: str, position: int) -> tuple[str, int]:
    """What the braces that open at `position` hold, or the one character there, and where it ends."""
    while position < len(text) and text[position].isspace():
        position += 1
    if position >= len(text):
        raise Unreadable("an argument is missing")
    if text[position] != "{":
        return text[position], position + 1
    depth = 0
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, position):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if not depth:
            return text[position + 1 : match.start()], match.end()
    raise Unreadable("a brace is not closed")


def _text(content: str, spaced: bool, before: str) -> Iterator[Token]:
    """What `\\text{…}` and its like hold: often mathematics in upright letters, a unit, or a word between answers."""
    while (inner := _STYLED.fullmatch(content.strip())) is not None:
        content = inner[1]
    stripped = content.strip(" ~.,:;") if content.strip(" ~") not in (",", ";", ":") else content.strip(" ~")
    known = WORDS.get(stripped.casefold())
    if known == "infty":
        yield Token("symbol", known, spaced)
    elif known in ("and", "or") or stripped in (",", ";"):
        yield Token(known or ",", stripped, spaced)
    elif content.strip() == ":":
        yield Token(":", ":", spaced)
    elif not stripped:
        return
    elif stripped == "in" and before in VALUES:
        yield Token("unit", "inch", spaced)
    elif stripped in FUNCTIONS and not (stripped in UNITS_TOO and before in VALUES):
        yield Token("function", stripped, spaced)
    elif len(stripped) == 1 and stripped.isalpha() and not (stripped in SINGLE_LETTERS and before in VALUES):
        yield Token("symbol", stripped, spaced)
    elif read_unit(stripped) is not None:
        yield Token("unit", stripped, spaced or content[:1].isspace())
    elif re.fullmatch(r"[-+]?[\d.,\s/()]*\d[\d.,\s/()]*%?", stripped):
        yield from tokens(stripped)
    else:
        yield Token("text", stripped, spaced)


def _word(text: str, word: str, start: int, end: int, spaced: bool, before: str) -> Iterator[Token]:
    """A word of plain text: a symbol, a function, a unit, a product of symbols, or a word of no mathematics."""
    lowered = word.casefold()
    known = WORDS.get(lowered)
    if known is not None and len(word) > 1:
        yield Token("symbol" if known == "infty" else known, "infty" if known == "infty" else word, spaced)
    elif len(word) == 1:
        other = known or ("unit" if read_unit(word) else "word")
        yield Token("symbol" if word.isascii() else other, word, spaced)
    elif lowered in FUNCTIONS and not (lowered in UNITS_TOO and before in VALUES and not _ARGUMENT.match(text, end)):
        yield Token("function", lowered, spaced)
    elif word in GREEK or lowered == "pi":
        yield Token("symbol", SAME_GREEK.get(word, "pi" if lowered == "pi" else word), spaced)
    elif read_unit(word) is not None and word != "in" and (len(word) > 3 or before in BEHIND):
        yield Token("unit", word, spaced)
    elif (split := _function_and_symbol(word)) is not None:
        yield Token("function", split[0], spaced)
        yield Token("symbol", split[1], False)
    elif len(word) > 2 and text[end : end + 1] == "(":
        raise Unreadable(f"the function {word}")
    elif word.isascii() and len(word) <= 4 and lowered not in STOP_WORDS and _beside_mathematics(text, start, end):
        for number, letter in enumerate(word):
            yield Token("symbol", letter, spaced and not number)
    else:
        yield Token("word", word, spaced)


def _function_and_symbol(word: str) -> tuple[str, str] | None:
    for name in ("sin", "cos", "tan", "cot", "sec", "csc", "log", "ln"):
        rest = word.removeprefix(name)
        if rest != word and (len(rest) == 1 or rest in GREEK):
            return name, rest
    return None


def _beside_mathematics(text: str, start: int, end: int) -> bool:
    """Whether letters are a product: two of them, or next to a digit or an operator without a space between."""
    if end - start == 2:
        return True
    return bool(_LETTER_AFTER.match(text[start - 1 : start]) or _LETTER_AFTER.match(text[end : end + 1]))
