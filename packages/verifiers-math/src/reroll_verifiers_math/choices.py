"""Multiple choice: letters of options, with or without the text of the option."""

from __future__ import annotations

import re
from itertools import pairwise

from reroll_verifiers_math.boxes import boxes

MARKERS = 50
"""Words such as `answer`, from the end, after which a letter is looked for."""

STATED_CHARS = 60
"""Characters behind such a word within which the first letter must begin."""

_STYLE = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|sf)|mbox|bf|rm|boxed)(?![a-z])\s*|[{}$*`\"'~]|\\[,;:! ()\[\]]"
)
_LETTERS = re.compile(
    r"\(?\s*([A-J])\s*\)?\.?(?:(?:\s*(?:,|;|&|/|\band\b|\bor\b|和|或|、)\s*|\s+)\(?\s*([A-J])\s*\)?\.?)*"
)
_WITH_TEXT = re.compile(
    r"(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s*:?\s*)?(?:\(\s*([A-J])\s*\)|([A-J])\s*[).:：、])(?=\s|[^\x00-\x7f])"
)
_NAMED = re.compile(r"(?:option|choice)\s*:?\s*\(?([A-J])\b", re.IGNORECASE)
_MARKED = re.compile(
    r"(?:answer|choice|option|choose|pick|select)(?:\s+(?:is|would\s+be|should\s+be))?\s*[:：]?|答案(?:是|为|[:：])?|选(?:择)?|"
    r"réponse(?:\s+est)?\s*:?|respuesta(?:\s+es)?\s*:?|antwort(?:\s+ist)?\s*:?|الإجابة|الجواب|ответ",
    re.IGNORECASE,
)
_LETTER = re.compile(r"(?<![A-Za-z\\'])([A-J])(?![A-Za-z'’])(?!\s+[a-z]{2,})|\(([A-J])\)")
_NEGATIONS = r"not|never|isn['’]t|can['’]t|cannot|neither|nor|except|but"
_NEGATED = re.compile(rf"\b(?:{_NEGATIONS})\b[^.\n]{{0,20}}$", re.IGNORECASE)
_HEDGE = re.compile(r"[\s,/()–—-]*(?:\b(?:or|and|maybe|perhaps|possibly|to)\b[\s,()]*)*", re.IGNORECASE)


def _plain(text: str) -> str:
    return _STYLE.sub(" ", text).strip().rstrip(".").strip()


def gold_choice(text: str) -> str | None:
    """The letters of a gold that is a choice: `C`, `(C)`, `C. the third one`, `A, C`; None for another answer."""
    plain = _plain(text)
    return _letters(plain) or (_first(_WITH_TEXT.match(plain)) if len(plain) > 1 else None)


def option_text(text: str) -> str | None:
    """What stands behind the letter of a choice: `12` in `(C) 12`."""
    plain = _STYLE.sub(" ", text).strip()
    match = _WITH_TEXT.match(plain)
    return None if match is None else plain[match.end() :].strip() or None


def is_bare(text: str) -> bool:
    """Whether a gold is a letter and nothing else, so that only a choice can be meant by it."""
    return _letters(_plain(text)) is not None


def answer_choice(text: str) -> str | None:
    """The letters that an answer, taken out of its completion, chooses."""
    plain = _plain(text)
    return _letters(plain) or _letters(plain.upper()) or _first(_WITH_TEXT.match(plain)) or _first(_NAMED.match(plain))


def find_choice(text: str) -> str | None:
    """The letters chosen in the visible part of a completion: in its last box, else after the last word such as
    `answer` that letters follow, else, without boxes and such words, the last letter that stands alone."""
    found = boxes(text)
    boxed = answer_choice(found[-1].content) if found else None
    start = found[-1].end if found else 0
    stated = False
    for marker in reversed(list(_MARKED.finditer(text, start))[-MARKERS:]):
        chosen, letters = _after(text[marker.end() : marker.end() + 200])
        if chosen is not None:
            return chosen
        stated = stated or letters
    if found or stated:
        return boxed
    whole = answer_choice(text) if len(text) < 300 else None
    if whole is not None:
        return whole
    letters_alone = [match for match in _LETTER.finditer(text) if not (match[1] in ("A", "I") and not match[2])]
    if not letters_alone or _NEGATED.search(text[max(0, letters_alone[-1].start() - 40) : letters_alone[-1].start()]):
        return None
    return _first(letters_alone[-1])


def _after(text: str) -> tuple[str | None, bool]:
    """The letters that a text states, and whether there were letters at all, though taken back."""
    plain = _STYLE.sub(" ", text).strip(" :：\n")
    line = plain.split("\n", 1)[0].rstrip(". ")
    whole = _letters(line) or _first(_WITH_TEXT.match(line))
    if whole is not None:
        return whole, True
    found = list(_LETTER.finditer(line))
    meant = [match for match in found if not _NEGATED.search(line[max(0, match.start() - 40) : match.start()])]
    if not meant or meant[0].start() > STATED_CHARS:
        return None, bool(found)
    chosen = [_first(meant[0]) or ""]
    for before, match in pairwise(meant):
        if not _HEDGE.fullmatch(line, before.end(), match.start()):
            break
        chosen.append(_first(match) or "")
    return "".join(sorted(set(chosen))), True


def _letters(text: str) -> str | None:
    """`C`, or `AC` for `A, C`, `A and C` and `AC`."""
    if re.fullmatch(r"[A-J]{2,5}", text) and list(text) == sorted(set(text)):
        return text
    if not _LETTERS.fullmatch(text):
        return None
    return "".join(sorted(set(re.findall(r"\b[A-J]\b", text))))


def _first(match: re.Match[str] | None) -> str | None:
    return None if match is None else next((group.upper() for group in match.groups() if group), None)
