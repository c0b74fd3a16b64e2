"""Instructions about content and format that can be detected by marks (IFEval)."""

from __future__ import annotations

import json
import re

from reroll_verifiers_if.once import once
from reroll_verifiers_if.parameters import whole, word
from reroll_verifiers_if.registry import instruction
from reroll_verifiers_if.texts import has_content, is_blank

CONSTRAINED = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
"""The options of `detectable_format:constrained_response`, which the prompt lists."""

# A run of asterisks, text that touches both, and the same run again.
_HIGHLIGHT = re.compile(r"(?<!\*)(\*{1,3})(?![\s*])([^\n*]*)(?<!\s)\1(?!\*)")


@instruction(
    "detectable_content:number_placeholders",
    "Has at least `num_placeholders` placeholders in square brackets, such as `[address]`.",
    {"num_placeholders": whole(2)},
    differs="The reference counts empty brackets; here they are none.",
)
def number_placeholders(text: str, num_placeholders: int) -> bool:
    return _count_placeholders(text) >= num_placeholders


@once
def _count_placeholders(text: str) -> int:
    return sum(map(_placeholders, text.split("\n")))


def _placeholders(line: str) -> int:
    found, opened = 0, line.find("[")
    while opened >= 0:
        closed = line.find("]", opened + 1)
        if closed < 0:
            break
        found += not is_blank(line[opened + 1 : closed])
        opened = line.find("[", closed + 1)
    return found


@instruction(
    "detectable_content:postscript",
    "Has a postscript that starts with `postscript_marker`, and text in it.",
    {"postscript_marker": word("P.S.")},
    differs="The reference passes a marker with nothing behind it.",
)
def postscript(text: str, postscript_marker: str) -> bool:
    lowered = text.lower()
    if postscript_marker in ("P.S.", "P.P.S"):
        # The reference allows one space between the letters of these two.
        pattern = r"p\.\s?s\." if postscript_marker == "P.S." else r"p\.\s?p\.\s?s"
        found = re.search(pattern, lowered)
        return found is not None and has_content(lowered[found.end() :])
    _, marker, after = lowered.partition(postscript_marker.lower())
    return bool(marker) and has_content(after)


@instruction(
    "detectable_format:number_bullet_lists",
    "Has exactly `num_bullets` bullet points: lines that start with `*` or `-`.",
    {"num_bullets": whole(3)},
    differs="The reference counts a ruler such as `---` or `* * *`, and a bullet with nothing behind it, as a bullet "
    "point; here they are none.",
)
def number_bullet_lists(text: str, num_bullets: int) -> bool:
    return _count_bullets(text) == num_bullets


@once
def _count_bullets(text: str) -> int:
    return sum(map(_is_bullet, text.split("\n")))


def _is_bullet(line: str) -> bool:
    start = line.lstrip()
    return start.startswith(("-", "*")) and not start.startswith("**") and has_content(start)


@instruction(
    "detectable_format:constrained_response",
    "Contains one of " + ", ".join(f"`{option}`" for option in CONSTRAINED) + " and no other of them.",
    differs="The reference passes an answer that has two of them or all.",
)
def constrained_response(text: str) -> bool:
    return sum(option in text for option in CONSTRAINED) == 1


@instruction(
    "detectable_format:number_highlighted_sections",
    "Highlights at least `num_highlights` sections with asterisks, `*so*` or `**so**`.",
    {"num_highlights": whole(2)},
    differs="The reference counts `***so***` twice, and what stands between two asterisks with space on their inner "
    "side, such as `3 * 4 * 5`; here asterisks touch what they highlight.",
)
def number_highlighted_sections(text: str, num_highlights: int) -> bool:
    return _count_highlights(text) >= num_highlights


@once
def _count_highlights(text: str) -> int:
    return sum(1 for match in _HIGHLIGHT.finditer(text) if has_content(match[2]))


@instruction(
    "detectable_format:multiple_sections",
    "Has at least `num_sections` sections, each headed by `section_spliter` and a number of its own, such as "
    "`Section 1`, with text in it.",
    {"section_spliter": word("Section"), "num_sections": whole(3)},
    differs="The reference counts headings without text, and one number as often as it comes.",
)
def multiple_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    parts = re.split(re.escape(section_spliter) + r"\s?(\d+)", text)
    return (
        len({number for number, inside in zip(parts[1::2], parts[2::2], strict=True) if has_content(inside)})
        >= num_sections
    )


@instruction(
    "detectable_format:json_format",
    "Is JSON as a whole, in a code fence or not.",
    differs="The reference passes a fence that is opened or closed only, and `NaN`, which is no JSON; it fails a "
    "number of more digits than Python converts.",
)
def json_format(text: str) -> bool:
    inside = text.strip().removeprefix("\ufeff")
    if inside.startswith("```") and inside.endswith("```") and len(inside) > 6:
        inside = inside[3:-3]
        if inside[:4].lower() == "json":
            inside = inside[4:]
    try:
        json.loads(inside, parse_constant=_no_json, parse_int=str)
    except (ValueError, RecursionError):
        return False
    return True


def _no_json(constant: str) -> None:
    raise ValueError(constant)


@instruction("detectable_format:title", "Has a title in double angular brackets, such as `<<poem of joy>>`.")
def title(text: str) -> bool:
    return any(map(_has_title, text.split("\n")))


def _has_title(line: str) -> bool:
    opened, closed = line.find("<<"), line.rfind(">>")
    return 0 <= opened < closed and has_content(line[opened:closed])
