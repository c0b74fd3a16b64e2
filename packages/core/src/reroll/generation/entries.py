"""What one attempt came to: a line of the journal."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from reroll.traces.checked import Checked, Text, checked

Outcome = Literal["passed", "failed", "error", "skipped"]
Bytes = Annotated[int, Field(ge=0)]
Place = tuple[Bytes, Bytes] | str
"""Where a trace is: offset and length in the file of traces, in bytes; in the layout `tree` its folder."""

_CHECK = re.compile(rb',"check":"([0-9a-f]{8})"}\s*$')


@dataclass(frozen=True, slots=True)
class Entry:
    """One attempt of one task, or a task that was skipped.

    The entry is saved twice: with the trace, in `info.reroll.generation`, and as a line of the journal, which is the
    index of the traces and can be made again from them.

    Attributes:
        position: of the task among all tasks of all data sources, before sharding, counted from 0.
        trial: which attempt, counted from 0; also of a task that was skipped, for which there is one entry.
        outcome: `error` where the attempt was not judged, which is no failure of the model.
        final: another start does not try it again: it was judged, skipped, or can never be judged.
        reward: None where it was not judged.
        prompt_tokens: of the rendered prompt; tokens: sampled ones.
        truncated: it was cut off at a length limit.
        seed: sampling seed of the response.
        source: name of the data source.
        detail: why it is an error, or was skipped; empty otherwise.
        place: of its trace; None where there is none: skipped, or removed.
        digest: of what the task asks and is judged by, see `reroll.tasks.pointers.task_digest`.
    """

    position: int
    trial: int
    outcome: Outcome
    final: bool
    reward: float | None
    prompt_tokens: int
    tokens: int
    truncated: bool
    seed: int
    source: str
    source_dataset: str
    source_row: int
    prepared_sample_id: str
    detail: str = ""
    place: Place | None = None
    digest: str = ""

    @property
    def judged(self) -> bool:
        return self.outcome in ("passed", "failed")

    def replaces(self, earlier: Entry) -> bool:
        """Of two entries of one trial, whether this one counts in place of the one before it: a judged one before any
        other, a skip before an error; of two judged ones the first, of two errors the last."""
        ranks = {"error": 0, "skipped": 1, "passed": 2, "failed": 2}
        mine, others = ranks[self.outcome], ranks[earlier.outcome]
        return mine > others or mine == others == 0

    def at(self, place: tuple[int, int] | str | None) -> Entry:
        return replace(self, place=place)

    def line(self) -> bytes:
        """As a line of the journal, with a sum over it: a digit that is another one makes another entry."""
        said = json.dumps(self._fields(), separators=(",", ":")).encode()[:-1]
        return said + b',"check":"%08x"}\n' % zlib.crc32(said)

    def stamp(self) -> dict[str, Any]:
        """As it is saved with its trace, which knows where it is."""
        found = self._fields()
        del found["place"]
        return found

    def _fields(self) -> dict[str, Any]:
        """As `asdict` gives them, which copies what cannot change."""
        return {name: getattr(self, name) for name in self.__slots__}


class SavedEntry(Checked):
    """An entry as it is checked when it is read back."""

    position: int
    trial: int
    outcome: Outcome
    final: bool
    reward: float | None
    prompt_tokens: int
    tokens: int
    truncated: bool
    seed: int
    source: Text
    source_dataset: Text
    source_row: int
    prepared_sample_id: Text
    detail: Text = ""
    place: list[int] | str | None = None
    digest: Text = ""

    def entry(self) -> Entry:
        place = self.place
        if isinstance(place, list):
            if len(place) != 2 or min(place) < 0:
                raise ValueError(f"place: {place}: an offset and a length are needed")
            return Entry(**{**dict(self), "place": (place[0], place[1])})
        return Entry(**dict(self))


def entry_from(value: Any) -> Entry:
    """The entry that a journal line or a trace's stamp holds; ValueError names what is not as it must be."""
    return checked(SavedEntry, value).entry()


# Hundreds of thousands of lines are read at a start: this makes an entry of a line without a model in between.
_LINE = TypeAdapter(Entry)


def entry_from_line(line: bytes) -> Entry:
    """The entry that a line of the journal holds; ValueError names what is not as it must be."""
    check = _CHECK.search(line, max(0, len(line) - 32))
    if check and int(check[1], 16) != zlib.crc32(line[: check.start()]):
        raise ValueError("check: the line is not what was written")
    try:
        return _LINE.validate_json(line, strict=True)
    except ValidationError:
        return entry_from(parsed(line))


def entry_of_trace(line: bytes) -> Entry | None:
    """The entry that a saved trace carries; None where it is no whole trace of an attempt."""
    try:
        return entry_from(parsed(line)["info"]["reroll"]["generation"])
    except (ValueError, TypeError, KeyError):
        return None


def parsed(text: bytes) -> Any:
    """What is saved as JSON; ValueError where it is none. Lone surrogates, as sampled text may have them, are read by
    the slower of two ways alone."""
    try:
        return from_json(text)
    except ValueError:
        pass
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
