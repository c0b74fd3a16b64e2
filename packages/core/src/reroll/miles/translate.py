"""Controls of MILES → a run file. Tables go in, tables and notes come out; nothing is read or written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reroll.api import Problem
from reroll.dials.table import dials, find, nearest
from reroll.miles.draft import Draft, Note, says_nothing
from reroll.miles.rules import EACH
from reroll.miles.together import TOGETHER

SAME = {"miles.train_backend": "fsdp"}
"""Refused controls → the value that means what happens here."""


@dataclass(frozen=True)
class Translation:
    """A run file, and what it does not say.

    Attributes:
        table: section → key → value.
        comments: dotted key → what its control was, and what differs.
        notes: what was left out and why, what must be given by hand, and which defaults differ.
        put_by: dotted key → the control that it comes from.
        faults: of the file that was translated, such as two names of one control that disagree.
    """

    table: dict[str, dict[str, Any]]
    comments: dict[str, str]
    notes: list[Note]
    put_by: dict[str, str]
    faults: list[Problem]


def translate(given: Mapping[str, Any]) -> Translation:
    """Translates controls, `miles.lr` → value. What has no line in the table of controls is told."""
    draft = Draft({name.replace("-", "_"): value for name, value in given.items() if value is not None})
    for name, value in draft.given.items():
        section, _, control = name.partition(".")
        line = find(control, section)
        if line is None:
            remedy = nearest(control, section)
            draft.tell("unknown", name, f"is no control that is known here{f'; {remedy}' if remedy else ''}")
        elif line.rule in EACH:
            EACH[line.rule](draft, name, line, value)
        elif line.answer == "key" and not line.rule:
            draft.put(line.keys[0], value, name)
        elif value == SAME.get(name):
            draft.idle(line, line.text)
        elif not line.rule and not says_nothing(value):
            draft.leave_out(line)
    for rule in TOGETHER:
        rule(draft)
    _by_hand(draft)
    _defaults(draft)
    table = {section: keys for section, keys in draft.table.items() if keys}
    return Translation(table, draft.comments, draft.notes, draft.put_by, draft.faults)


def _by_hand(draft: Draft) -> None:
    """What a run needs and no control has said."""
    needed = {
        "model.path": "the starting checkpoint",
        "data.task_set": "the training tasks; without it a run trains on `addition`",
        "data.verifiers": 'what judges answers, such as verifiers = ["math"]',
    }
    for key, what in needed.items():
        if not draft.has(key) and not any(note.about == key for note in draft.notes):
            draft.tell("by_hand", key, what)
    if draft.value("async.fully_async") is True and not draft.has("async.max_weight_staleness"):
        draft.tell("by_hand", "async.max_weight_staleness", "optimizer steps that a group may be old; needed here")


def _defaults(draft: Draft) -> None:
    """Where leaving a control out means something else here."""
    for line in dials().values():
        idle = line.rule == "asynchronous" and draft.value("async.fully_async") is not True
        if line.absent and not idle and line.name not in draft.given and not any(map(draft.has, line.keys)):
            draft.tell("default", line.name, line.absent)
