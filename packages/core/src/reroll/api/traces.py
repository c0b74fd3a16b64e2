"""One rollout as a graph of messages, and the group that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reroll.api.tasks import Message, RenderedPrompt, Task
from reroll.api.verifiers import Verdict


class VersionSpan(NamedTuple):
    """Sampled tokens `[start, end)` of one node that were generated under weights `version`."""

    version: int
    start: int
    end: int


@dataclass
class Node:
    """One message of a conversation with the tokens that it added to the model's context.

    The concatenated `token_ids` from a root to a node are exactly what the model saw or produced. A
    prompt is rendered as a whole, so its last message's node carries the tokens of all of it.

    Attributes:
        parent: index of the previous node in the trace, None for a root.
        sampled: whether the model produced the message.
        token_ids: tokens that the node adds; as sampled, never re-tokenised from text.
        mask: one flag a token: does it carry loss?
        logprobs: for sampled nodes, log-probability of each token under the temperature-scaled
            distribution that it was drawn from; empty otherwise.
        weight_versions: spans over `token_ids`; empty for nodes that were not sampled.
        finish_reason: `stop`, `length` or `abort` for sampled nodes.
        seed: sampling seed of the response, None for nodes that were not sampled.
        origin: why a node is no continuation of the one before it in the trace: `compaction` where a harness began
            again from a summary, `rendering` where the chat template renders an earlier turn differently than it was
            sampled; None otherwise.
    """

    parent: int | None
    message: Message
    sampled: bool
    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float] = field(default_factory=list)
    weight_versions: list[VersionSpan] = field(default_factory=list)
    finish_reason: str | None = None
    seed: int | None = None
    usage: dict[str, int] | None = None
    origin: str | None = None


@dataclass
class Trace:
    """One rollout of one task.

    Attributes:
        rewards: verifier name → weighted reward; absent for a verifier that failed.
        verdicts: verifier name → what it said.
        metrics: numbers that a harness or verifier reports.
        info: anything else that is saved with the rollout.
        is_completed: the harness reached its end; a truncated answer is completed as well.
        stop_condition: why the rollout ended: `stop` (the model said what it had to say), `length` (a turn reached its
            limit, or the context has no room for another), `max_turns` (it called tools in the last turn that it had),
            `timeout` (the harness broke it off at a limit of its own), `abort` (the engine broke off), `error`.
        errors: what failed, as `{"where": …, "message": …}`.
        timing: seconds since the epoch: `start`, `first_token`, `end`; durations in seconds.
    """

    id: str
    task: Task
    nodes: list[Node] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    is_completed: bool = False
    stop_condition: str | None = None
    errors: list[dict[str, str]] = field(default_factory=list)
    timing: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, task: Task, completion: str) -> Trace:
        """A text as a finished answer to the task, for judging what no engine of a run generated: the prompt's messages
        and the answer, without tokens. Its id is the task's `prepared_sample_id`."""
        nodes: list[Node] = []
        for message in task.messages:
            nodes.append(Node(len(nodes) - 1 if nodes else None, message, False, [], []))
        answer: Message = {"role": "assistant", "content": completion}
        nodes.append(Node(len(nodes) - 1 if nodes else None, answer, True, [], [], finish_reason="stop"))
        return cls(task.prepared_sample_id, task, nodes, is_completed=True, stop_condition="stop")

    def branch(self, leaf: int | None = None) -> list[Node]:
        """Nodes from the root to `leaf` (default: the last node), root first."""
        return [self.nodes[index] for index in self.path(leaf)]

    def path(self, leaf: int | None = None) -> list[int]:
        """Indices of the nodes from the root to `leaf` (default: the last node), root first."""
        index: int | None = len(self.nodes) - 1 if leaf is None else leaf
        path: list[int] = []
        while index is not None and index >= 0:
            path.append(index)
            index = self.nodes[index].parent
        return path[::-1]

    def leaves(self) -> list[int]:
        """Indices of the nodes that no other node continues."""
        parents = {node.parent for node in self.nodes}
        return [index for index in range(len(self.nodes)) if index not in parents]

    @property
    def messages(self) -> list[Message]:
        """The conversation of the last branch."""
        return [node.message for node in self.branch()]

    @property
    def completion(self) -> str:
        """Text of the last sampled message, empty if there is none."""
        for node in reversed(self.nodes):
            if node.sampled:
                return str(node.message.get("content") or "")
        return ""

    @property
    def response_tokens(self) -> int:
        return sum(len(node.token_ids) for node in self.nodes if node.sampled)

    @property
    def truncated(self) -> bool:
        return any(node.finish_reason == "length" for node in self.nodes if node.sampled)

    @property
    def weight_versions(self) -> list[int]:
        """Versions that produced the sampled tokens, ascending, without repeats."""
        return sorted({span.version for node in self.nodes for span in node.weight_versions})


@dataclass
class Group:
    """The traces of one task that are compared with each other.

    Attributes:
        observation_id: unique per scored group; assigned by the runtime.
        group_index: number of the dispatch within the run, counted from 0.
        attempt: how often the task was dispatched before, counted from 0.
        rollout_id: the collection that was being gathered when the task was dispatched; counted from 0.
        seeds: sampling seed of each sibling.
        verifier_weights: verifier name → weight of its score in the reward.
        rewards: reward of each trace; None where scoring failed and `failure_policy` excludes.
        source: what it was made for: `train`, `eval` or `generate`.
        env_name: of the data source, or of the evaluation set, that the task is from.
    """

    observation_id: str
    group_index: int
    attempt: int
    rollout_id: int
    task: Task
    rendered: RenderedPrompt
    traces: list[Trace]
    seeds: list[int]
    verifier_weights: Mapping[str, float]
    rewards: list[float | None] = field(default_factory=list)
    source: str = "train"
    env_name: str = ""

    @property
    def scored_rewards(self) -> list[float]:
        """Rewards of the responses that were scored."""
        return [reward for reward in self.rewards if reward is not None]

    @property
    def unknown_verifiers(self) -> list[str]:
        """Verifiers that could not judge a response, by name: most often the task's target is at fault."""
        verdicts = [item for trace in self.traces for item in trace.verdicts.items()]
        return sorted({name for name, verdict in verdicts if verdict.state == "unknown"})

    def staleness(self, version: int) -> int:
        """`version` minus the version of the group's oldest sampled token."""
        versions = [found for trace in self.traces for found in trace.weight_versions]
        return version - min(versions) if versions else 0


@dataclass(frozen=True)
class Sample:
    """The training view of one branch. All sequences have one entry a token of prompt + response.

    Attributes:
        token_ids: prompt and response tokens.
        loss_mask: whether the token carries loss; False over the prompt.
        rollout_logprobs: the engine's log-probabilities; 0.0 where nothing was sampled.
        advantage: the response's advantage, applied to each of its tokens that carries loss.
        reward: the response's reward.
        group_index, weight_version: where the sample comes from; version of its oldest token.
        slot: position in the collection; decides which optimizer step the sample belongs to.
    """

    token_ids: list[int]
    loss_mask: list[bool]
    rollout_logprobs: list[float]
    advantage: float
    reward: float
    group_index: int
    weight_version: int
    slot: int
