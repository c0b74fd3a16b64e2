"""The one place through which everything that happens to a group goes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reroll.api import Decision, Disposition, Group, RecordWriter, RunContext, RunFile
from reroll.tasks.ledger import Ledger
from reroll.tasks.state import check_schema, counts, entries, number

SCHEMA = 1

logger = logging.getLogger("reroll")


class GroupEvents:
    """Keeps the ledger and tells record writers. A writer that fails is logged once, with a word to the user, and left
    alone after that: recording never touches training."""

    def __init__(
        self,
        writers: Sequence[type[RecordWriter]],
        run: RunFile,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._say = say
        self.ledger = Ledger()
        self.filtered: Counter[str] = Counter()
        self.retried = 0
        """Expired groups whose task is dispatched again."""
        self.by_source: dict[str, Counter[Disposition]] = {}
        """Data source → how its dispatches ended."""
        self._sources: dict[int, str] = {}
        """Group index → data source of what has not ended."""
        self._recorded: dict[int, str] = {}
        """Group index → observation id of what was scored and has not left."""
        self._writers: list[RecordWriter] = []
        for cls in writers:
            try:
                writer = cls.from_run(run)
            except (Exception, SystemExit) as error:
                logger.exception("record writer %r could not be made and records nothing", cls.name)
                say(f"warning: record writer {cls.name!r} could not be made and records nothing: {error}")
            else:
                self._writers += [writer] if writer is not None else []

    @property
    def recording(self) -> bool:
        """Whether any writer wants to know."""
        return bool(self._writers)

    def open(self, context: RunContext) -> None:
        self._tell(lambda writer: writer.open(context))

    def dispatched(self, source: str = "") -> int:
        """A task of a data source goes to the engines; gives its group index."""
        group_index = self.ledger.dispatch()
        self._sources[group_index] = source
        return group_index

    def scored(self, group: Group, decision: Decision) -> None:
        """Recorded before the decision is applied."""
        self.ledger.queue(group.group_index)
        if decision.outcome != "passed":
            self.filtered[decision.reason] += 1
        self._recorded[group.group_index] = group.observation_id
        self._tell(lambda writer: writer.group_scored(group.observation_id, group, decision))

    def left(self, group_index: int, disposition: Disposition, staleness: int = 0) -> None:
        """The dispatch has ended. Writers hear of it where they heard of the group."""
        self.ledger.end(group_index, disposition)
        self.by_source.setdefault(self._sources.pop(group_index), Counter())[disposition] += 1
        observation_id = self._recorded.pop(group_index, None)
        if observation_id is not None:
            self._tell(lambda writer: writer.group_left(observation_id, disposition, staleness))

    def return_rest(self) -> int:
        """The run is over: whatever has not ended was for nothing and would be dispatched again. Gives its number."""
        rest = self.ledger.unfinished()
        for group_index in rest:
            self.left(group_index, "returned")
        return len(rest)

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as JSON."""
        return {
            "schema": SCHEMA,
            "ledger": self.ledger.state(),
            "filtered": dict(self.filtered),
            "retried": self.retried,
            "sources": {name: dict(ended) for name, ended in self._ended_by_source().items()},
        }

    def _ended_by_source(self) -> dict[str, Counter[Disposition]]:
        """As it is for a start that goes on from here: what has not ended was returned."""
        found = {name: Counter(ended) for name, ended in self.by_source.items()}
        for source in self._sources.values():
            found.setdefault(source, Counter())["returned"] += 1
        return found

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on counting from where `state` was taken; what had not ended then was returned. Writers are told
        nothing: they keep what they know themselves."""
        check_schema("events", state, SCHEMA)
        filtered = counts("events.filtered", state.get("filtered"))
        retried = number("events.retried", state.get("retried"))
        by_source: dict[str, Any] = {
            name: counts(f"events.sources.{name}", ended)
            for name, ended in entries("events.sources", state.get("sources")).items()
        }
        self.ledger.restore(entries("events.ledger", state.get("ledger")))
        self.by_source = by_source
        self.filtered, self.retried = filtered, retried

    def metrics(self) -> dict[str, float]:
        """What the writers report."""
        found: dict[str, float] = {}
        self._tell(lambda writer: found.update(writer.metrics()))
        return found

    def close(self, timeout: float = 30.0) -> None:
        self._tell(lambda writer: writer.close(timeout))
        self._tell(self._say_closing)

    def _say_closing(self, writer: RecordWriter) -> None:
        if line := writer.closing_line():
            self._say(line)

    def _tell(self, event: Callable[[RecordWriter], Any]) -> None:
        for writer in list(self._writers):
            try:
                event(writer)
            except (Exception, SystemExit, asyncio.CancelledError) as error:
                logger.exception("record writer %r failed and records nothing further", writer.name)
                self._say(f"warning: record writer {writer.name!r} failed and records nothing further: {error}")
                self._writers.remove(writer)
