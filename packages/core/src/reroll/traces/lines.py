"""What a saved line holds, as it is checked when it is read back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from reroll.api import Decision, Disposition, Node, RenderedPrompt, Task, Trace, Verdict, VerdictState, VersionSpan
from reroll.traces.checked import Checked, Table, Text, checked

NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _number(value: Any) -> Any:
    """JSON has no number that is not finite: it was saved as text."""
    return NOT_FINITE.get(value, value) if isinstance(value, str) else value


Number = Annotated[float, BeforeValidator(_number)]
Reported = Annotated[Any, BeforeValidator(_number)]
"""A number by contract, from code that nothing holds to it."""


class SavedPrompt(Checked):
    text: Text
    token_ids: list[int]
    template_sha256: Text
    tokenizer_sha256: Text

    def rendered(self) -> RenderedPrompt:
        return RenderedPrompt(self.text, tuple(self.token_ids), self.template_sha256, self.tokenizer_sha256)


class SavedVerdict(Checked):
    score: Number | None
    components: dict[Text, Reported]
    state: VerdictState
    detail: Text


class SavedTask(Checked):
    prompt: list[Table] | Text
    targets: Table
    source_dataset: Text
    source_row: int
    prepared_sample_id: Text
    tools: list[Table]
    metadata: Table
    source_id: Text | None = None
    source_task: Table | None = None


class SavedNode(Checked):
    parent: int | None
    message: Table
    sampled: bool
    token_ids: list[int]
    mask: list[bool]
    logprobs: list[Number]
    weight_versions: list[Annotated[list[int], Field(min_length=3, max_length=3)]]
    finish_reason: Text | None
    seed: int | None
    usage: Table | None
    origin: Text | None = None

    def node(self) -> Node:
        fields = dict(self)
        fields["weight_versions"] = [VersionSpan(*span) for span in self.weight_versions]
        return Node(**fields)


class GroupStamp(Checked):
    """What all traces of a group say alike."""

    kind: Text
    env_name: Text
    group_id: Text
    group_index: int
    group_attempt: int
    rollout_id: int
    siblings: int
    verifier_weights: dict[Text, Number]
    unknown_verifiers: list[Text] = []
    filter_decision: Literal["passed", "filtered", "aborted"]
    filter_reason: Text
    disposition: Disposition | None


class Stamp(GroupStamp):
    sibling: int
    reward: Number | None
    seed: int
    verdicts: dict[Text, SavedVerdict]
    prompt: SavedPrompt | None


class SavedLine(Checked):
    id: Text
    task: SavedTask
    nodes: list[SavedNode]
    rewards: dict[Text, Number]
    metrics: dict[Text, Reported]
    info: Table
    is_completed: bool
    stop_condition: Text | None
    errors: list[Table]
    timing: dict[Text, Reported]


class Line:
    """One saved trace; ValueError names the first field that is not what it must be."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._line: SavedLine = checked(SavedLine, record, "")
        self.stamp: Stamp = checked(Stamp, self._line.info.get("reroll"), "info.reroll")

    def trace(self, task: Task) -> Trace:
        fields = dict(self._line)
        fields["task"] = task
        fields["nodes"] = [node.node() for node in self._line.nodes]
        fields["info"] = {key: value for key, value in self._line.info.items() if key != "reroll"}
        verdicts = {name: Verdict(**dict(verdict)) for name, verdict in self.stamp.verdicts.items()}
        return Trace(**fields, verdicts=verdicts)

    def task(self) -> Task:
        return Task(**dict(self._line.task))

    def decision(self) -> Decision:
        return Decision(self.stamp.filter_decision, self.stamp.filter_reason)

    def difference(self, other: Line) -> str | None:
        """A field in which the two traces do not say the same of their group."""
        fields = GroupStamp.model_fields
        return next((name for name in fields if getattr(self.stamp, name) != getattr(other.stamp, name)), None)
