"""A run file in the making: what is put into it and by which control, and what has to be told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from reroll.api import Problem
from reroll.config.problems import shown
from reroll.config.sections import within
from reroll.dials.table import Dial, find

Kind = Literal["refused", "unknown", "by_hand", "not_needed", "default"]

BY_HAND = {
    "miles.custom_rm_path": "data.verifiers",
    "core.reward_config": "data.verifiers",
    "data.tasks": "data.manifest",
    "data.rl_manifest": "data.manifest",
    "data.recipe": "data.sources",
    "miles.data_source_path": "data.task_set",
    "miles.custom_async_data_buffer_path": "rollout.group_filters",
    "miles.custom_generate_function_path": "rollout.harness",
    "miles.rollout_function_path": "rollout.harness",
}
"""Refused controls that hold what only the user can say in another way → the key that takes it."""


@dataclass(frozen=True)
class Note:
    """Something that the translated file does not say.

    Attributes:
        kind: `refused` for a control without which the run is another one, `unknown` for what is no control, `by_hand`
            for what the user must still say, `not_needed` for a control that has nothing to do here, `default` for one
            that was not given and has another default here.
        about: the control, or our key where it must be given.
        left_out: the control in whose place something must be given by hand, if the run is another one until then.
    """

    kind: Kind
    about: str
    text: str
    left_out: str = ""

    @property
    def changes_the_run(self) -> bool:
        """Whether the run file without it is of another run than the file of MILES."""
        return self.kind in ("refused", "unknown") or bool(self.left_out)

    def to_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass
class Draft:
    """What rules read and write.

    Attributes:
        given: control with its section → value.
        table: the run file so far.
        comments: dotted key → what to write above it.
        put_by: dotted key → the control that it comes from.
    """

    given: Mapping[str, Any]
    table: dict[str, dict[str, Any]] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)
    put_by: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    faults: list[Problem] = field(default_factory=list)

    def put(self, key: str, value: Any, control: str, comment: str | None = None) -> None:
        """Sets a key of ours. A second control that means the same key must say the same. `control` is empty where
        none says it: `comment` says why it is there."""
        section, _, name = key.partition(".")
        keys = self.table.setdefault(section, {})
        if name in keys and not _equal(keys[name], value):
            other = self.put_by[key]
            self.faults.append(
                Problem(
                    control,
                    f"is {shown(control, value)}, but {other} is {shown(other, keys[name])}, and both mean `{key}`",
                    "leave one of them out, or give both the same value",
                )
            )
            return
        keys[name] = value
        self.put_by.setdefault(key, control)
        line = find(control.partition(".")[2], control.partition(".")[0])
        renamed = key.partition(".")[2] != control.partition(".")[2]
        text = comment if comment is not None else ""
        # What the table says of the control is about its own keys, and not about another one that it decides too.
        if comment is None and line and (renamed or line.rule) and any(within(own, key) for own in line.keys):
            text = line.text
        if text or renamed:
            self.comments.setdefault(key, ": ".join(filter(None, (control, text))))

    def has(self, key: str) -> bool:
        section, _, name = key.partition(".")
        return name in self.table.get(section, {})

    def value(self, key: str) -> Any:
        section, _, name = key.partition(".")
        return self.table.get(section, {}).get(name)

    def tell(self, kind: Kind, about: str, text: str, left_out: str = "") -> None:
        note = Note(kind, about, text, left_out)
        if note not in self.notes:
            self.notes.append(note)

    def leave_out(self, line: Dial) -> None:
        """A control that has no key of ours, as the table says."""
        if key := BY_HAND.get(line.name):
            self.tell("by_hand", key, f"in place of {line.name}: {line.text}", line.name)
        else:
            self.tell("refused" if line.answer == "refused" else "not_needed", line.name, line.text)

    def refuse(self, line: Dial, why: str) -> None:
        """A control whose value asks for what there is not."""
        self.tell("refused", line.name, why)

    def idle(self, line: Dial, why: str) -> None:
        """A control that does nothing beside the others, or means what happens in any case."""
        self.tell("not_needed", line.name, why)

    def wrong(self, control: str, wanted: str) -> None:
        self.faults.append(Problem(control, f"is {shown(control, self.given[control])}", f"give {wanted}"))

    def whole(self, control: str) -> int | None:
        """A whole number above 0; None where it is not given, or is something else, which is a fault."""
        value = self.given.get(control)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            self.wrong(control, "a whole number above 0")
            return None
        return value

    def number(self, control: str) -> float | None:
        value = self.given.get(control)
        if value is None:
            return None
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            self.wrong(control, "a number")
            return None
        return value

    def truth(self, control: str) -> bool | None:
        value = self.given.get(control)
        if value is None or isinstance(value, bool):
            return value
        self.wrong(control, "true or false")
        return None

    def text(self, control: str) -> str | None:
        value = self.given.get(control)
        if value is None or isinstance(value, str):
            return value
        self.wrong(control, "text")
        return None


def says_nothing(value: Any) -> bool:
    """Whether a control is given a value that switches it off."""
    return value is None or value is False or value in ("", [], {})


def structured(value: Any) -> Any:
    """JSON text as what it says; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _equal(left: Any, right: Any) -> bool:
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)
