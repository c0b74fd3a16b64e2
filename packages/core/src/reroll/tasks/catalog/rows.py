"""Raw rows of a source as prepared ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from reroll.api import Dataset, DatasetRow, PluginError, RerollError, TaskError, Verifier, one_line
from reroll.tasks.catalog.holding_out import STAGED, place_of
from reroll.tasks.catalog.prompts import asked, canonical, prompt_of
from reroll.tasks.catalog.seen import SeenPrompts
from reroll.tasks.catalog.sources import Part, Raw, SourceError
from reroll.tasks.catalog.writing import SplitWriter, line_of
from reroll.tasks.file import prompt_fault
from reroll.tasks.targets import target_fault, unjudgeable

SHOWN = 10
"""Faults of rows that are told; the others are counted."""
UNREADABLE = "unreadable"
"""Reason of rows that are left out because they cannot be read."""
SAME, OTHER = "same target", "another target"


@dataclass(frozen=True)
class How:
    """How a data set is prepared.

    Attributes:
        held_out: rows, or a share, that become the split `test` of a source with one split.
        refuse_overlaps: prompts of one split that stand in another one are a fault; else they are dropped from the
            split that is trained on.
        skip_invalid: rows that cannot be read are left out and counted; else they are a fault.
    """

    held_out: int | float | None = None
    refuse_overlaps: bool = False
    skip_invalid: bool = False

    def facts(self) -> dict[str, Any]:
        overlaps = "refuse" if self.refuse_overlaps else "remove"
        return {"held_out": self.held_out, "overlaps": overlaps, "skip_invalid": self.skip_invalid}


@dataclass
class Rows:
    """Turns raw rows into prepared ones, and keeps account of them."""

    dataset: Dataset
    template: str
    judge: Verifier | None
    how: How
    seen: SeenPrompts
    faults: int = 0
    told: list[str] = field(default_factory=list)
    overlaps: Counter[str] = field(default_factory=Counter)

    def write(self, part: Part, writer: SplitWriter, split: str) -> None:
        """Every row of a part."""
        for raw in part.rows():
            try:
                self._row(raw, part, writer, split)
            except TaskError as error:
                self.fault(f"{part.name}:{raw.number}: {error}")
                writer.left_out[UNREADABLE] += 1

    def fault(self, text: str) -> None:
        self.faults += 1
        if len(self.told) < SHOWN:
            self.told.append(text)

    def refuse(self) -> None:
        """Raises what was wrong with rows, and overlaps where they are refused."""
        if self.faults and not self.how.skip_invalid:
            more = f"\nand {self.faults - SHOWN:,} rows more" if self.faults > SHOWN else ""
            raise TaskError(
                "\n".join([one_line(text, 400) for text in self.told])
                + f"{more}\nmend the source, or leave such rows out with --skip-invalid, which counts them"
            )
        if self.how.refuse_overlaps and self.overlaps:
            listed = "; ".join(f"{count:,} rows of {which}" for which, count in sorted(self.overlaps.items()))
            raise SourceError(
                f"splits of the source ask the same ({listed}); --overlaps remove drops them from the split that is "
                "trained on"
            )

    def _row(self, raw: Raw, part: Part, writer: SplitWriter, split: str) -> None:
        row = self._read(raw)
        if isinstance(row, str):
            writer.left_out[row] += 1
            return
        messages = prompt_of(self.dataset, self.template, row)
        if fault := prompt_fault(messages, "messages"):
            raise TaskError(fault)
        question = asked(row)
        metadata = {**row.metadata, "source": {"file": part.name, "row": raw.number}}
        place = place_of(question)
        line = _line(messages, self.dataset.verifier, row.target, place, metadata)
        name = self.dataset.verifier
        if self.judge is not None and (why := unjudgeable(self.judge, row.target)):
            raise TaskError(target_fault(name, row.target, why))
        met = self.seen.add(canonical(messages), split, canonical(row.target))
        if met is None:
            given = row.messages is not None
            writer.write(staged_line(place, given, line) if split == STAGED else line)
            writer.given_prompts += given
        elif met.split == split:
            writer.duplicates[SAME if met.same_target else OTHER] += 1
        else:
            self.overlaps[f"{split} in {met.split}"] += 1

    def _read(self, raw: Raw) -> DatasetRow | str:
        if raw.fault:
            raise TaskError(raw.fault)
        if not isinstance(raw.value, dict):
            raise TaskError(f"the row is {type(raw.value).__name__}, not a table of fields")
        try:
            row = self.dataset.row(raw.value)
        except RerollError:
            raise
        except Exception as error:  # a data set is anybody's code
            said = f"{type(error).__name__}: {error}"
            raise PluginError(f"data set {self.dataset.name!r} raised {said} of the row {raw.value!r:.200}") from error
        if not isinstance(row, DatasetRow | str):
            raise PluginError(f"data set {self.dataset.name!r} made {row!r:.60} of a row; it must be a DatasetRow")
        return row


def _line(messages: list[Any], verifier: str, target: Any, place: str, metadata: dict[str, Any]) -> bytes:
    row = {"messages": messages, "targets": {verifier: target}, "prepared_sample_id": place, "metadata": metadata}
    try:
        return line_of(row)
    except UnicodeEncodeError:
        raise TaskError("holds half of a surrogate pair, which is no text") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise TaskError(f"holds what JSON does not: {error}") from None


def staged_line(place: str, given: bool, line: bytes) -> bytes:
    return f"{place}{'+' if given else '-'}".encode() + line
