r"""Where the answer is in a completion.

What stands in a thinking part is never the answer. Of the rest, in this order:

1. the last `\boxed{…}`, with those beside it where several hold the parts of one answer;
2. what follows the last `#### `, `Final answer:`, `the answer is` and their like, or stands in `<answer>…</answer>`;
3. the whole text, where all of it is mathematics;
4. the last mathematics in it: a formula between `$`, bold text, an expression at the end of a sentence, a number.

A statement of the answer after the last box takes its place if it can be read. All of the text counts, however long it
is; every search takes time in proportion to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from reroll import without_thinking
from reroll_verifiers_math.boxes import PARTS, boxed, boxes, joined
from reroll_verifiers_math.formulas import Formula, formulas_of, neighbours, sentence_end, sentence_ends, with_unit

SENTENCE_WORDS = 40
"""Words of a sentence that are tried as part of an expression, from its end or its beginning."""

TRIES = 300
"""Texts of a completion that are read to find an expression at the end of a sentence; then numbers alone are found."""
TRIED_CHARS = 400

_SPECIAL = re.compile(
    r"<\|[^<>|\n]{1,40}\|>|</?s>|<(?:eos|bos|pad|end_of_turn|start_of_turn)>|\[/?INST\]|<｜[^<>\n]{1,40}｜>"
)
_TAG = re.compile(r"<answer>(?P<content>(?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
_MARKER = re.compile(
    r"####"
    r"|final\s{1,3}answer\s{0,3}(?:is|[:：=]|\*\*|\n|\$)[\s:：*]{0,8}(?:the\s+final\s+answer\s+is)?"
    r"|\banswer\s{0,3}(?:\*\*)?\s{0,3}(?:is\b|are\b|would\s+be\b|must\s+be\b|[:：=])"
    r"|\banswers\s{0,3}(?:are\b|[:：])|\bans\s{0,3}[.:：=]"
    r"|答案\s{0,3}(?:应该|应)?\s{0,3}(?:是|为|[:：])|答\s{0,3}[:：]"
    r"|(?:réponse|reponse)(?:\s+finale)?(?:\s+correcte)?\s*(?:est\b|[:：])"
    r"|respuesta(?:\s+final)?(?:\s+correcta)?\s*(?:es\b|[:：])|resposta(?:\s+final)?\s*(?:é|[:：])"
    r"|antwort\s*(?:ist\b|lautet\b|[:：])|risposta\s*(?:è|[:：])|ответ\s*[:：—-]?"
    r"|(?:الجواب|الإجابة|الاجابة|الناتج)(?:\s+(?:النهائي|النهائية|الصحيحة))?\s*(?:هو|هي|[:：])|答え\s*(?:は|[:：])|정답\s*(?:은|[:：])",
    re.IGNORECASE,
)
_LEAD = re.compile(
    r"^[\s:：=*]*(?:(?:is|are|indeed|therefore|thus|then|simply|just|clearly|exactly|probably|equal\s+to|equals|be|about|"
    r"approximately|either|given\s+by|option|choice|the\s+number|now)\b[\s:：*]*)*",
    re.IGNORECASE,
)
_BOUNDS = r"less|more|greater|fewer|at\s+least|at\s+most|between|above|below|under|over|up\s+to|anything|from"
_TAKEN_BACK = re.compile(
    rf"(?:not|never|neither|isn['’]t|can['’]t|cannot|unknown|unclear|wrong|{_BOUNDS})\b", re.IGNORECASE
)
_BOUNDED = re.compile(rf"\b(?:not|never|isn['’]t|can['’]t|cannot|{_BOUNDS})\b", re.IGNORECASE)
_DOUBTED = re.compile(
    r"\b(?:not|don['’]t|doesn['’]t|cannot|can['’]t|doubt)\s+(?:\w+\s+){0,3}(?:that\s+)?(?:the\s+)?(?:\w+\s+)?$"
)
_ASIDE = re.compile(r"\W*(?:note|remark|n\.?b\.?|p\.?s\.?)\b\W", re.IGNORECASE)
_REFUSED = re.compile(
    r"\banswer\b[^.,;]{0,20}\b(?:not|never|isn['’]t|can['’]t|cannot)\b|\b(?:not|don['’]t|doubt)\b[^.,;]{0,40}\banswer\b",
    re.IGNORECASE,
)
_BOLD = re.compile(r"\*\*(?P<content>[^*\n]+?)\*\*")
_SIGNS = re.compile(r"\d|\\[A-Za-z]|[=^½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞√π∞²³]")
_ANOTHER = re.compile(r"\n\s{0,3}\**(?:Question|Problem|Exercise|Q)\s?\d{0,4}\s?\**:")
_PLACEHOLDER = re.compile(r"^\s*(?:your answer|answer|value|x|\.\.\.|\\ldots|…)?\s*$", re.IGNORECASE)

DIGITS = r"(?:\d{1,3}(?:(?:,|\{,\})\d{3})+(?!\d)|\d+)"
_FRACTION = r"\\[dtc]?frac\s*\{\s*-?\d+\s*\}\s*\{\s*-?\d+\s*\}"
_NUMBER = re.compile(
    # A sign belongs to the number unless something stands before it that it could be subtracted from,
    # and digits that continue a word or a number are none.
    rf"(?:(?<![A-Za-z0-9_.)\]}}])[-−+]\s?)?"
    rf"(?:{_FRACTION}|(?<![A-Za-z0-9_.,])(?:{DIGITS}(?:[.,]\d+)?|\.\d+)(?![A-Za-z]\w{{0,20}}\d)(?:\s*/\s*\d+(?![\d.])|\s+\d+/\d+(?![\d.])|\s*{_FRACTION})?)"
    r"(?:\s?\\?%)?"
)

Readable = Callable[[str], bool]
"""Whether a text is mathematics from its first to its last character."""


class Answer(NamedTuple):
    """The text of an answer. `where` is `box`, `marker`, `text`, `formula`, `sentence` or `number`."""

    text: str
    where: str


def visible(completion: str) -> str:
    """The completion without its thinking part, without what a chat template adds, and without a next problem that
    a base model goes on to. A thinking part that is never ended leaves what stands before it."""
    completion = _SPECIAL.sub(" ", without_thinking(completion))
    hoped = completion.find("I hope it is correct")  # the end of an answer in a prompt that is often used
    completion = completion if hoped < 0 else completion[:hoped]
    another = _ANOTHER.search(completion)
    if another is not None and (
        _MARKER.search(completion, 0, another.start()) or "boxed" in completion[: another.start()]
    ):
        return completion[: another.start()]
    return completion


def find_answer(text: str, readable: Readable, several: bool = True, in_words: bool = False) -> Answer | None:
    """The answer in the visible part of a completion, or None if there is none.

    Args:
        several: boxes beside each other are the parts of one answer; else the last one counts alone.
        in_words: the answer is no mathematics, so that of prose the last bold words are taken.
    """
    tag = _last(_TAG.finditer(text))
    if tag is not None and not _PLACEHOLDER.match(tag["content"]):
        inside = boxed(tag["content"], several)
        return Answer((inside or tag["content"]).strip(), "marker")
    found = boxes(text)
    stated, whole = _stated(text, readable, found[-1].end if found else 0)
    if found:
        if stated is not None and whole:
            return Answer(stated, "marker")
        return Answer(joined(text, found) if several else found[-1].content, "box")
    if stated is not None:
        return Answer(stated, "marker")
    if len(text) <= 2000 and readable(text):
        return Answer(text.strip(), "text")
    bold = _last(_BOLD.finditer(text)) if in_words else None
    return Answer(bold["content"].strip(), "text") if bold is not None else _last_mathematics(text, readable)


def _last(found: Iterator[re.Match[str]]) -> re.Match[str] | None:
    last = None
    for last in found:  # noqa: B007 (the last one is what is wanted)
        pass
    return last


def _stated(text: str, readable: Readable, start: int) -> tuple[str | None, bool]:
    """What the last statement of the answer at or after `start` says, and whether it is mathematics and says nothing
    else."""
    marker = _last(_MARKER.finditer(text, start))
    if marker is None or _DOUBTED.search(text, max(0, marker.start() - 80), marker.start()):
        return None, False
    rest = text[marker.end() :]
    if marker[0] == "####":
        line = rest.strip().split("\n", 1)[0].strip()
        found, whole = _first_mathematics(line, readable)
        return found or line or None, whole
    rest = rest.lstrip(" \t:：*\n")
    paragraph = re.split(r"\n\s*\n", rest, maxsplit=1)[0]
    return _first_mathematics(paragraph, readable)


def _first_mathematics(text: str, readable: Readable) -> tuple[str | None, bool]:
    """The answer at the beginning of a text that states it, and whether the sentence is nothing but mathematics."""
    text = _LEAD.sub("", text, count=1)
    formulas = list(formulas_of(text))
    end = sentence_end(text, formulas)
    sentence = text[:end].strip()
    bare = sentence.strip("*_` ").rstrip(".,;:")
    if bare and readable(bare):
        return bare, True
    if _TAKEN_BACK.match(sentence):
        return bare or None, False
    if formulas and formulas[0].start < end:
        found = with_unit(text, neighbours(text, [item for item in formulas if item.start < end], first=True))
        return found, not text[: formulas[0].start].strip()
    bold = _BOLD.search(sentence)
    if bold is not None and readable(bold["content"]):
        return bold["content"].strip(), False
    words = sentence[: 2 * TRIED_CHARS].split(" ")[:SENTENCE_WORDS]
    for count in range(len(words), 0, -1):
        if words[count - 1] in ("I", "a", "A") and count < len(words):
            continue  # the word, not the letter
        candidate = " ".join(words[:count]).strip("*_` ").rstrip(".,;:")
        if candidate and readable(candidate):
            return candidate, words[count - 1].endswith((",", ";"))
    numbers = [number[0] for number, _ in zip(_NUMBER.finditer(sentence), range(2), strict=False)]
    if len(numbers) == 1 and not _BOUNDED.search(sentence):
        return numbers[0], False
    return re.split(r"[,;:(]|\s(?:because|since|as|which|so)\s", bare)[0].strip() or None, False


def _last_mathematics(text: str, readable: Readable) -> Answer | None:
    """The last of a text's sentences that has mathematics in it, read from its end."""
    formulas = list(formulas_of(text))
    end, tries = len(text), [TRIES]
    for start in reversed([0, *sentence_ends(text, formulas)]):
        inside: list[Formula] = []
        while formulas and formulas[-1].start >= start:
            inside.append(formulas.pop())
        found = _in_sentence(text, text[start:end], inside[PARTS::-1], readable, tries)
        if found is not None:
            return found
        end = start
    return None


def _in_sentence(
    text: str, sentence: str, formulas: list[Formula], readable: Readable, tries: list[int]
) -> Answer | None:
    """`tries` holds how many texts may still be read."""
    if _REFUSED.search(sentence) or _ASIDE.match(sentence):
        return None
    bold = _last(_BOLD.finditer(sentence))
    if bold is not None and len(bold["content"]) <= TRIED_CHARS and re.search(r"[\d\\]", bold["content"]):
        tries[0] -= 1
        if tries[0] > 0 and readable(bold["content"]):
            return Answer(bold["content"].strip(), "formula")
    if formulas:
        return Answer(with_unit(text, neighbours(text, formulas, first=False)), "formula")
    stripped = sentence.strip().strip("*_` ").rstrip(".,;:。 ")
    if not _SIGNS.search(stripped):
        return None
    best = None
    for candidate in _suffixes(stripped):
        tries[0] -= 1
        if tries[0] < 0:
            break
        if _SIGNS.search(candidate) and readable(candidate):
            best = candidate
        elif best is not None:
            break
    if best is not None:
        return Answer(best, "sentence")
    number = _last(_NUMBER.finditer(stripped))
    return None if number is None else Answer(number[0], "number")


def _suffixes(sentence: str) -> Iterator[str]:
    """The last word, the last two words, and so on."""
    words = sentence[-10 * TRIED_CHARS :].split(" ")
    for count in range(1, min(len(words), SENTENCE_WORDS) + 1):
        candidate = " ".join(words[-count:]).strip("*_` ")
        if len(candidate) > TRIED_CHARS:
            return
        yield candidate
