"""A place in a list of tokens, and what is read from there without looking at what it means."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from reroll_verifiers_math.lexer import Token, TooDeep, Unreadable

DEPTH = 40
"""Levels of brackets, arguments and exponents in each other; no answer has nearly so many."""

_Read = TypeVar("_Read")


class Cursor:
    def __init__(self, items: list[Token]) -> None:
        self.items = items
        self.at = 0
        self.depth = 0
        self.bars = 0
        self.sets = 0

    def kind(self, ahead: int = 0) -> str:
        position = self.at + ahead
        return self.items[position].kind if position < len(self.items) else ""

    def take(self) -> Token:
        if self.at >= len(self.items):
            raise Unreadable("it ends too early")
        self.at += 1
        return self.items[self.at - 1]

    def accept(self, *kinds: str) -> bool:
        if self.kind() in kinds:
            self.at += 1
            return True
        return False

    def expect(self, kind: str) -> None:
        if not self.accept(kind):
            raise Unreadable(f"{kind} is missing")

    def end(self) -> None:
        while self.kind() in (".", "`", '"', "gap", ",", ";"):
            self.at += 1
        if self.at < len(self.items):
            raise Unreadable(f"{self.items[self.at].text!r} is left over")

    def inner(self, read: Callable[[], _Read]) -> _Read:
        """What stands one level deeper."""
        self.depth += 1
        if self.depth > DEPTH:
            raise TooDeep("it is nested too deeply")
        bars, self.bars = self.bars, 0
        sets, self.sets = self.sets, 0
        try:
            return read()
        finally:
            self.depth -= 1
            self.bars, self.sets = bars, sets

    def unit(self) -> str:
        """`cm`, `cm^2`, `km / h`, as text."""
        text = self.take().text
        if text == "°" and self.kind() == "symbol" and self.items[self.at].text in "CF":
            text += self.take().text
        while True:
            if self.kind() == "^":
                braces = self.kind(1) == "{"
                number = self.at + 1 + braces
                if number < len(self.items) and self.items[number].kind == "number":
                    text += "^" + self.items[number].text
                    self.at = number + 1
                    if braces:
                        self.expect("}")
                    continue
            if self.kind() == "word" and self.items[self.at].text == "per" and self.kind(1) == "unit":
                self.at += 1
                text += "/" + self.take().text
            elif self.kind() in ("/", "*") and self.kind(1) == "unit":
                text += self.take().kind + self.take().text
            elif self.kind() == "unit" and text not in ("°", "%"):
                text += " " + self.take().text
            elif self.kind() == "/" and self.kind(1) == "symbol" and self.items[self.at + 1].text in "hs":
                self.at += 1
                text += "/" + self.take().text
            else:
                return text

    def letters(self) -> list[str]:
        found = []
        while self.kind() == "symbol" and self.items[self.at].text.isupper():
            found.append(self.take().text)
        return found
