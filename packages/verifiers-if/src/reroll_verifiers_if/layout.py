"""Instructions about lines, lists and sections (IFBench, `format:`)."""

from __future__ import annotations

import itertools
import re

from reroll_verifiers_if.parameters import word
from reroll_verifiers_if.registry import instruction
from reroll_verifiers_if.texts import BLANKS, has_content, last_mark, lines, plain_words, sentences

_TEMPLATE = ("My Answer:", "My Conclusion:", "Future Outlook:")
_JOINED = re.compile(r"(?<=[^\W\d_]{2})[/\\_.,;:|+&=~\u200b\u2060]+(?=[^\W\d_]{2})")
_SPACE = re.compile(f"[\\s{BLANKS}]")
_ITALIC = re.compile(r"<(/?)(i|em)>", re.IGNORECASE)


@instruction(
    "format:newline",
    "Each word is on a line of its own.",
    differs="The reference takes words that marks join, such as `one/two` and `one_two`, for one; here a hyphen and an "
    "apostrophe join a word, other marks part words of two letters and more.",
)
def newline(text: str) -> bool:
    return (
        bool(plain_words(text))
        and not _JOINED.search(text)
        and all(len(plain_words(line)) <= 1 for line in lines(text))
    )


@instruction(
    "format:line_indent",
    "Each line is indented further than the line before, blank lines left out.",
    differs="The reference passes a single line; stairs have two at least. A tab indents to the next multiple of 8.",
)
def line_indent(text: str) -> bool:
    steps = []
    for line in lines(text):
        indent = line[: len(line) - len(line.lstrip())]
        steps.append(len(indent.expandtabs()))
    return len(steps) > 1 and all(left < right for left, right in itertools.pairwise(steps))


@instruction(
    "format:list",
    "Is a list whose items are marked by `sep`: it comes twice or more, between or before two items at least.",
    {"sep": word("SEPARATOR")},
    differs="The reference passes separators without items, and counts a mark such as `-` within words.",
)
def separated_list(text: str, sep: str) -> bool:
    items = re.split(rf"(?<!\w){re.escape(sep)}|{re.escape(sep)}(?!\w)", text)
    return len(items) > 2 and sum(map(has_content, items)) >= 2


@instruction(
    "format:thesis",
    "Has a statement in HTML italics, `<i>` or `<em>`, with text after it.",
    differs="The reference reads `<em>` one character short, and pairs `<i>` with `</em>`.",
)
def thesis(text: str) -> bool:
    opened = next((match for match in _ITALIC.finditer(text) if not match[1]), None)
    if opened is None:
        return False
    for match in _ITALIC.finditer(text, opened.end()):
        if match[1] and match[2].lower() == opened[2].lower():
            return has_content(text[opened.end() : match.start()]) and has_content(text[match.end() :])
    return False


def is_star(line: str) -> bool:
    """Whether a line is a bullet point denoted by `*`; bold text and the dividers `***` and `* * *` are none."""
    start = line.lstrip()
    return start.startswith("*") and not start.startswith("**") and has_content(start)


def is_dash(line: str) -> bool:
    """Whether a line is a bullet point denoted by `-`; a ruler and a negative number are none."""
    start = line.lstrip()
    return start.startswith("-") and not start.startswith("--") and not start[1:2].isdigit() and has_content(start)


@instruction(
    "format:sub-bullets",
    "Has bullet points denoted by `*`, each with at least one sub-bullet point denoted by `-` below it.",
    differs="The reference passes a text without any, takes every asterisk, bold text included, for a bullet point and "
    "every hyphen for a sub-bullet; here both are marks at the start of a line, with text behind them.",
)
def sub_bullets(text: str) -> bool:
    under: list[int] = []
    for line in lines(text):
        if is_star(line):
            under.append(0)
        elif is_dash(line) and under:
            under[-1] += 1
    return bool(under) and all(under)


@instruction(
    "format:no_bullets_bullets",
    "Has at least two sentences that end in a full stop, and then at least two bullet points denoted by `*` and "
    "nothing else.",
    differs="The reference fails a blank line after a bullet point or between two paragraphs before it, and counts "
    "sentences that end in any mark. Indented lines that go on with a bullet point are let pass.",
)
def no_bullets_bullets(text: str) -> bool:
    written = lines(text)
    first = next((place for place, line in enumerate(written) if is_star(line)), len(written))
    stops = sum(last_mark(sentence) == "." for sentence in sentences("\n".join(written[:first])))
    after = written[first:]
    return stops >= 2 and sum(map(is_star, after)) >= 2 and all(is_star(line) or line[0].isspace() for line in after)


@instruction(
    "format:output_template",
    "Fills the template `My Answer: … My Conclusion: … Future Outlook: …`.",
    differs="The reference takes the three labels in any order, and with nothing behind them; here in that of the "
    "template, each with text behind it.",
)
def output_template(text: str) -> bool:
    rest = text
    for place, label in enumerate(_TEMPLATE):
        before, found, rest = rest.partition(label)
        if not found or (place and not has_content(before)):
            return False
    return has_content(rest)


@instruction(
    "format:no_whitespace",
    "Contains no space, tab or line break.",
    differs="The reference passes characters that look like a space and are none by their class, such as U+2800.",
)
def no_whitespace(text: str) -> bool:
    return _SPACE.search(text) is None
