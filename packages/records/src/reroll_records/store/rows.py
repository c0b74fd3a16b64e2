"""The rows of a record file, as they are written and as they are read. The standard library alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

SCHEMA = 1
"""Of rows and manifests. A reader takes rows of this number."""

PolicyScope = Literal["start_checkpoint", "run_version", "mixed"]
"""`start_checkpoint`: generated entirely by the starting checkpoint, so that it can be pooled with other runs of that
lineage and protocol. `run_version`: by one later version, which is specific to the run. `mixed`: across versions."""
SCOPES: tuple[PolicyScope, ...] = ("start_checkpoint", "run_version", "mixed")

FilterDecision = Literal["passed", "filtered", "aborted"]
DECISIONS: tuple[FilterDecision, ...] = ("passed", "filtered", "aborted")

VALID_STATES = frozenset({"ok", "completed"})
"""States of a verifier that vouch for its score."""
UNKNOWN_STATE = "unknown"


@dataclass(slots=True)
class RewardComponent:
    """One verifier's part of a reward.

    Attributes:
        name: the verifier.
        score: as the verifier gave it; None where it gave none.
        weight: of the score in the reward.
    """

    name: str
    score: float | None
    weight: float


@dataclass(slots=True)
class Validity:
    """Whether a reward is evidence about the response.

    Attributes:
        valid: True if every component vouches for its score, False if any failed, None if none failed and any is
            unknown: then nothing is known either way.
        components: expected verifier → `ok`, `completed`, `timeout`, `rejected`, `service_error`, `judge_error` or
            `unknown`.
    """

    valid: bool | None
    components: Mapping[str, str]


@dataclass(slots=True)
class ResponseRow:
    """One response of a group.

    Attributes:
        index: position among the siblings, from 0.
        reward: what training would use; None where the response was not scored and is left out.
        reward_components: what the reward is made of.
        response_tokens: tokens that the model sampled.
        status: `completed`, `truncated` (at a length limit), `aborted` (by an engine) or `failed` (its conversation
            raised an error).
        truncated: whether a sampled message was cut off at a length limit.
        policy_versions: weight versions that sampled tokens of it, ascending; empty where nothing was sampled.
        policy_scope: None where nothing was sampled.
        seed: sampling seed of the response.
        response: the sampled text, where the writer was to keep it.
    """

    index: int
    reward: float | None
    reward_components: list[RewardComponent]
    validity: Validity
    response_tokens: int
    status: str
    truncated: bool
    policy_versions: list[int]
    policy_scope: PolicyScope | None
    seed: int | None
    response: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As it is written: the text only where it is there."""
        row = {
            "index": self.index,
            "reward": self.reward,
            "reward_components": [
                {"name": part.name, "score": part.score, "weight": part.weight} for part in self.reward_components
            ],
            "validity": {"valid": self.validity.valid, "components": dict(self.validity.components)},
            "response_tokens": self.response_tokens,
            "status": self.status,
            "truncated": self.truncated,
            "policy_versions": self.policy_versions,
            "policy_scope": self.policy_scope,
            "seed": self.seed,
        }
        return row if self.response is None else row | {"response": self.response}


@dataclass(slots=True)
class GroupRow:
    """One scored group, written before the filter's decision was applied.

    Attributes:
        observation_id: unique per scored group; links disposition rows.
        task_key: SHA-256 of the full rendered prompt and the verifier targets; `task_key_basis` says of what.
        input_key: SHA-256 of task key, prompt tokens and protocol digest. Observations are pooled within one only.
        query_sha256: of the last user message; groups similar prompts, and identifies nothing.
        prompt_token_sha256: of the prompt's token ids.
        prepared_sample_id, source_dataset, source_row: where the prompt came from; these change if a data set is
            prepared again.
        verifiers: names, sorted; they are the prompt's domain.
        group_index: number of the dispatch within the run.
        rollout_id: the collection that was being gathered when the task was dispatched.
        group_size: responses.
        group_attempt: earlier dispatches of the task in this run.
        filter_decision: `passed`, `filtered` or `aborted`; passing is not yet being trained on.
        filter_reason: why it did not pass; empty where it did.
        responses_included: whether texts are there.
        responses: the siblings, in order.
        time: when it was scored, in seconds since the epoch.
        prompt: the rendered prompt, where texts are there.
    """

    observation_id: str
    task_key: str
    task_key_basis: str
    input_key: str
    query_sha256: str
    prompt_token_sha256: str
    prepared_sample_id: str
    source_dataset: str
    source_row: int
    verifiers: list[str]
    group_index: int
    rollout_id: int
    group_size: int
    group_attempt: int
    filter_decision: FilterDecision
    filter_reason: str
    responses_included: bool
    responses: list[ResponseRow]
    time: float
    prompt: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As it is written: texts only where they are there."""
        row: dict[str, Any] = {"kind": "group", "schema": SCHEMA}
        row |= {name: getattr(self, name) for name in GROUP_FIELDS}
        row["responses"] = [item.to_json() for item in self.responses]
        return row if self.prompt is None else row | {"prompt": self.prompt}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> GroupRow:
        """Of a row that `is_row` takes."""
        values = {name: row[name] for name in GROUP_FIELDS}
        values["responses"] = [_response(item) for item in row["responses"]]
        return cls(**values, prompt=row.get("prompt"))

    @property
    def outcome(self) -> Outcome:
        return outcome(response.reward for response in self.responses)


Disposition = Literal["consumed", "expired"]
DISPOSITIONS: tuple[Disposition, ...] = ("consumed", "expired")
"""The one that comes first prevails; see `DispositionRow`."""


@dataclass(slots=True)
class DispositionRow:
    """How a group that passed the filter left the buffer.

    A group leaves it once. Where two rows of an attempt say otherwise, against the format, every reader takes
    `consumed` before `expired`, in whatever order they stand, as tokens that training may have used are not to be told
    as unused; and of two that say the same, the first. The names sort like this, so that it is the smaller one.

    Attributes:
        disposition: `consumed` (given to training) or `expired` (past the staleness bound). A passed group without
            such a row was still queued when the run ended.
        staleness: optimizer steps from the version of the group's oldest token to the step that used it, or could have.
        time: in seconds since the epoch.
    """

    observation_id: str
    disposition: Disposition
    staleness: int
    time: float

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "disposition",
            "schema": SCHEMA,
            "observation_id": self.observation_id,
            "disposition": self.disposition,
            "staleness": self.staleness,
            "time": self.time,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> DispositionRow:
        """Of a row that `is_row` takes."""
        return cls(row["observation_id"], row["disposition"], row["staleness"], row["time"])


GROUP_FIELDS: Mapping[str, type] = {
    "observation_id": str,
    "task_key": str,
    "task_key_basis": str,
    "input_key": str,
    "query_sha256": str,
    "prompt_token_sha256": str,
    "prepared_sample_id": str,
    "source_dataset": str,
    "source_row": int,
    "verifiers": list,
    "group_index": int,
    "rollout_id": int,
    "group_size": int,
    "group_attempt": int,
    "filter_decision": str,
    "filter_reason": str,
    "responses_included": bool,
    "responses": list,
    "time": float,
}
"""Of a group row beside `kind` and `schema`, with their types, in the order in which they are written. `prompt` follows
where there are texts."""
RESPONSE_FIELDS = tuple(item.name for item in fields(ResponseRow))
"""Of a response; the last one, `response`, only where there are texts."""
DISPOSITION_FIELDS = ("kind", "schema", "observation_id", "disposition", "staleness", "time")
"""Of a disposition row."""
LARGEST = 2**63
"""Numbers of rows are smaller."""


Outcome = Literal["all_zero", "constant", "mixed", "unscored"]
OUTCOMES: tuple[Outcome, ...] = ("all_zero", "constant", "mixed", "unscored")


def left_as(decision: str, reason: str, disposition: str | None = None) -> str:
    """What became of a group: `filtered:<reason>`, `aborted`, or, if it passed, what its disposition row says, and
    `unused` without one. `database.LEFT_AS` is the same in SQL.

    Args:
        decision, reason: the filter's.
        disposition: of its row; None or empty without one.
    """
    if decision == "passed":
        return disposition or "unused"
    return f"filtered:{reason}" if decision == "filtered" else decision


def outcome(rewards: Any) -> Outcome:
    """What a group's rewards say, whatever the filter decided: `mixed` if two of them differ, else `unscored` if one
    is missing, else `all_zero` or `constant`.

    Args:
        rewards: an iterable of numbers and None; without any it is `unscored`.
    """
    values = list(rewards)
    scored = {value for value in values if value is not None}
    if len(scored) > 1:
        return "mixed"
    if not values or None in values:
        return "unscored"
    return "constant" if scored.pop() else "all_zero"


def validity(states: Mapping[str, str]) -> Validity:
    """As `is_valid`, with the states."""
    return Validity(is_valid(states), states)


def is_valid(states: Mapping[str, str]) -> bool | None:
    """A failed component decides, then an unknown one. Without any component nothing is known."""
    valid = True if states else None
    for state in states.values():
        if state == UNKNOWN_STATE:
            valid = None
        elif state not in VALID_STATES:
            return False
    return valid


def _response(item: Mapping[str, Any]) -> ResponseRow:
    checked = item["validity"]
    return ResponseRow(
        index=item["index"],
        reward=item["reward"],
        reward_components=[
            RewardComponent(part["name"], part["score"], part["weight"]) for part in item["reward_components"]
        ],
        validity=Validity(checked["valid"], checked["components"]),
        response_tokens=item["response_tokens"],
        status=item["status"],
        truncated=item["truncated"],
        policy_versions=item["policy_versions"],
        policy_scope=item["policy_scope"],
        seed=item["seed"],
        response=item.get("response"),
    )
