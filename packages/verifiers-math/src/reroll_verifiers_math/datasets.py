r"""The data sets `gsm8k` and `math`, in the forms in which they and their derivatives are published."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from reroll import Dataset, DatasetConfig, DatasetRow, TaskError, given_messages, text_field
from reroll_verifiers_math.boxes import boxed

_ANNOTATION = re.compile(r"<<[^<>\n]*>>")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)")
_LEVEL = re.compile(r"(?:Level\s*)?(\d+)", re.IGNORECASE)


class GSM8KDataset(Dataset):
    """Word problems of grade-school mathematics; the answer is one number."""

    name = "gsm8k"
    verifier = "math"
    template = "{question}\n\nReason step by step, and end with a line of `#### ` and the answer as a number."
    places = ("question",)
    shapes = (
        "question and answer, where the answer ends in `#### 42` (steps may hold `<<6*7=42>>`) or is the number; "
        "or messages and ground_truth"
    )

    def row(self, raw: Mapping[str, Any]) -> DatasetRow:
        messages = given_messages(raw)
        if messages is not None:
            return DatasetRow(number(_value(raw, "ground_truth", "answer")), messages=messages)
        question = text_field(raw, "question", "problem")
        return DatasetRow(number(_value(raw, "answer", "ground_truth")), {"question": question.strip()})


def number(answer: str) -> str:
    """The number that a solution ends in behind `####`, or that it is; without the calculator's annotations, and
    without the commas between groups of digits."""
    text = _ANNOTATION.sub("", answer)
    _, marker, last = text.rpartition("####")
    found = last.strip().replace(",", "").removeprefix("$").rstrip(".").strip()
    if not _NUMBER.fullmatch(found):
        what = f"`#### {last.strip():.40}`" if marker else f"answer = {answer[-60:]!r}"
        raise TaskError(f"{what} gives no number; an answer ends in `#### 42`, or is a number alone")
    return found


class MathConfig(DatasetConfig):
    levels: list[int] | None = None
    """Only problems of these levels, 1 to 5; by default all."""
    subjects: list[str] | None = None
    """Only problems of these subjects, such as "Algebra"; by default all."""


class MathDataset(Dataset):
    """Problems of mathematics competitions; the answer is whatever their solution boxes."""

    name = "math"
    verifier = "math"
    template = "{problem}\n\nReason step by step, and put the final answer within \\boxed{}."
    places = ("problem",)
    shapes = (
        "problem with solution, which boxes the answer, or with answer (`question` for `problem` is taken as well), "
        "where they are known level and type or subject; or messages and ground_truth"
    )
    Config = MathConfig

    def row(self, raw: Mapping[str, Any]) -> DatasetRow | str:
        level, subject = _level(raw.get("level")), raw.get("type") or raw.get("subject")
        if self.config.levels is not None and level not in self.config.levels:
            return "another level"
        if self.config.subjects is not None and subject not in self.config.subjects:
            return "another subject"
        known = {"level": level, "subject": subject if isinstance(subject, str) else None}
        metadata = {key: value for key, value in known.items() if value is not None}
        messages = given_messages(raw)
        if messages is not None:
            return DatasetRow(answer(raw, "ground_truth"), messages=messages, metadata=metadata)
        problem = text_field(raw, "problem", "question")
        return DatasetRow(answer(raw, "answer"), {"problem": problem.strip()}, metadata=metadata)


def answer(raw: Mapping[str, Any], field: str) -> str:
    r"""The field with the answer, or else what the solution's last `\boxed{…}` holds, and those right beside it."""
    if raw.get(field) is not None or raw.get("solution") is None:
        stated = _value(raw, field)
        return boxed(stated) or stated.strip()
    found = boxed(text_field(raw, "solution"))
    if found is None:
        raise TaskError(f"solution = …{raw['solution'][-60:]!r} boxes no answer: it has no \\boxed{{…}}")
    return found


def _value(raw: Mapping[str, Any], *names: str) -> str:
    """As `text_field`, where numbers are taken as well."""
    name = next((name for name in names if raw.get(name) is not None), names[0])
    value = raw.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return text_field(raw, *names)


def _level(given: Any) -> int | None:
    """`Level 5`, `5` or 5; the data set itself has a few that are `Level ?`."""
    if type(given) is int:
        return given
    found = _LEVEL.fullmatch(given.strip()) if isinstance(given, str) else None
    return int(found[1]) if found else None
