"""From a scored group to its line, in the event loop. What waits to be written is bytes, which hold no group and none
of its tokens; and a thread that made them would take the interpreter from the loop all the same."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson

from reroll.api import Decision, Group, RunContext, Trace, Verdict
from reroll_records.store.checks import is_row
from reroll_records.store.identity import TASK_KEY_BASIS, digest, identify, lineage, protocol_record
from reroll_records.store.rows import (
    LARGEST,
    SCHEMA,
    UNKNOWN_STATE,
    VALID_STATES,
    PolicyScope,
    is_valid,
)

GENERATE = "generate"
"""The source of runs whose weights stay the starting checkpoint's."""


def make_manifest(context: RunContext, writer: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of the attempt when it starts.

    Args:
        writer: its settings.
    """
    protocol = protocol_record(context.protocol)
    return {
        "kind": "manifest",
        "schema": SCHEMA,
        "source": context.source,
        "run": {
            "name": context.name,
            "id": context.run_id,
            "attempt": context.attempt,
            "start_rollout_id": context.start_rollout_id,
            "start_version": context.start_version,
            "loaded_checkpoint": None if context.loaded is None else str(context.loaded),
            "fresh": context.fresh,
        },
        "lineage": lineage(context),
        "protocol": protocol,
        "protocol_digest": digest(protocol),
        "rollout_seed": context.seeds.rollout,
        "data": context.data,
        "writer": dict(writer),
        "selection_sha256": context.filters.get("selection"),
        "started": time.time(),
    }


@dataclass(frozen=True)
class RowMaker:
    """Makes rows of one attempt.

    Attributes:
        sample_rate: share of groups whose texts are kept.
        frozen: the weights are the starting checkpoint's throughout.
    """

    protocol_digest: str
    rollout_seed: int
    sample_rate: float
    fresh: bool
    frozen: bool

    def line(self, observation_id: str, group: Group, decision: Decision) -> bytes:
        """The group's line without its newline, as of now.

        Raises:
            ValueError: the task has no identity that another process would find as well, or a field is of a type
                that no reader takes.
        """
        row = self.row(observation_id, group, decision)
        weights = group.verifier_weights.values()
        # What comes from elsewhere is checked; the other types of responses are made here.
        if not is_row(row | {"responses": []}) or not all(-LARGEST < weight < LARGEST for weight in weights):
            raise ValueError(
                f"task {group.task.key}: a value of the group has no place in a record, such as a source_row that is "
                "no whole number below 2^63, a reason that is no text, or a weight without bounds"
            )
        return encode(row)

    def row(self, observation_id: str, group: Group, decision: Decision) -> dict[str, Any]:
        """A `GroupRow` as it is written. No objects come between: they would be half of what a row costs.

        Raises:
            ValueError: as `line`, for a task without an identity.
        """
        task = group.task
        identity = identify(task, group.rendered, self.protocol_digest)
        texts = self._keeps_texts(identity.input_key, group.attempt)
        expected = sorted(task.targets)
        row = {
            "kind": "group",
            "schema": SCHEMA,
            "observation_id": observation_id,
            "task_key": identity.task_key,
            "task_key_basis": TASK_KEY_BASIS,
            "input_key": identity.input_key,
            "query_sha256": identity.query_sha256,
            "prompt_token_sha256": identity.prompt_token_sha256,
            "prepared_sample_id": task.prepared_sample_id,
            "source_dataset": task.source_dataset,
            "source_row": task.source_row,
            "verifiers": expected,
            "group_index": group.group_index,
            "rollout_id": group.rollout_id,
            "group_size": len(group.traces),
            "group_attempt": group.attempt,
            "filter_decision": decision.outcome,
            "filter_reason": decision.reason,
            "responses_included": texts,
            "responses": [
                self._response(index, trace, reward, seed, group.verifier_weights, expected, texts)
                for index, (trace, reward, seed) in enumerate(
                    zip(group.traces, group.rewards, group.seeds, strict=True)
                )
            ],
            "time": time.time(),
        }
        return row | {"prompt": group.rendered.text} if texts else row

    def _keeps_texts(self, input_key: str, attempt: int) -> bool:
        """Of whole groups, and of the same ones in every run that draws the same responses."""
        if self.sample_rate in (0, 1):
            return bool(self.sample_rate)
        drawn = sha256(f"{input_key}:{attempt}:{self.rollout_seed}".encode()).digest()
        return int.from_bytes(drawn[:8], "big") < self.sample_rate * 2**64

    def _response(
        self,
        index: int,
        trace: Trace,
        reward: float | None,
        seed: int,
        weights: Mapping[str, float],
        expected: list[str],
        texts: bool,
    ) -> dict[str, Any]:
        verdicts = trace.verdicts
        tokens, truncated = 0, False
        versions: set[int] = set()
        for node in trace.nodes:  # once, and not once a property: this is what every response costs the event loop
            if node.sampled:
                tokens += len(node.token_ids)
                truncated = truncated or node.finish_reason == "length"
                for version, _, _ in node.weight_versions:
                    versions.add(version)
        policies = sorted(versions)
        components, states = [], {}
        for name in expected:
            verdict = verdicts.get(name)
            states[name] = state(verdict)
            if verdict is not None:
                components.append({"name": name, "score": finite(verdict.score), "weight": weights.get(name, 1.0)})
        row = {
            "index": index,
            "reward": finite(reward),
            "reward_components": components,
            "validity": {"valid": is_valid(states), "components": states},
            "response_tokens": tokens,
            "status": _status(trace, truncated),
            "truncated": truncated,
            "policy_versions": policies,
            "policy_scope": self._scope(policies),
            "seed": seed,
        }
        return row | {"response": _text(trace)} if texts else row

    def _scope(self, versions: list[int]) -> PolicyScope | None:
        if not versions:
            return None
        if len(versions) > 1:
            return "mixed"
        return "start_checkpoint" if self.frozen or (self.fresh and versions == [0]) else "run_version"


def encode(row: Mapping[str, Any]) -> bytes:
    """A line without its newline. Half a surrogate pair, which UTF-8 has no form for, becomes a question mark. Numbers
    are finite: orjson would write others as null, which is no row."""
    try:
        return orjson.dumps(row)
    except TypeError:
        text = json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode("utf-8", "replace")


def finite(value: float | None) -> float | None:
    """What no row has as a number, infinities above all, is no reward."""
    return float(value) if value is not None and -LARGEST < value < LARGEST else None


def state(verdict: Verdict | None) -> str:
    """How judging went; unknown where nobody judged, or where there is no score that the state could vouch for."""
    if verdict is None:
        return UNKNOWN_STATE
    found = verdict.state
    return UNKNOWN_STATE if found in VALID_STATES and finite(verdict.score) is None else found


def _status(trace: Trace, truncated: bool) -> str:
    if trace.stop_condition == "error":
        return "failed"
    if not trace.is_completed:
        return "aborted"
    return "truncated" if truncated else "completed"


def _text(trace: Trace) -> str:
    """Everything that the model said, in order."""
    return "\n\n".join(str(node.message.get("content") or "") for node in trace.nodes if node.sampled)
