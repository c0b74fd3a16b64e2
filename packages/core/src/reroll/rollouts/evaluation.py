"""Evaluation: a held-out set answered by the current weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from reroll.api import Group, SamplingParams, TaskSet
from reroll.rollouts.config import EvalSet, RolloutSection
from reroll.rollouts.producer import GroupPlan, Producer
from reroll.tasks.cursor import Dispatch


@dataclass(frozen=True)
class EvalResult:
    """What an evaluation set came to; shares are of responses, 0 to 1.

    Attributes:
        accuracy: share whose reward is the full one, that is the sum of the weights of the task's verifiers.
        reward: mean reward.
        parse_rate: share in which every verifier that says so (`components["parsed"]`) found an answer; None if no
            verifier says so.
        accuracy_parsed: accuracy among those.
        failed: responses that could not be scored; in no share.
        fingerprint: of the task set's data.
    """

    name: str
    step: int
    accuracy: float
    reward: float
    parse_rate: float | None
    accuracy_parsed: float | None
    responses: int
    failed: int
    skipped: int
    truncated: float
    mean_response_tokens: float
    fingerprint: str

    def metrics(self) -> dict[str, float]:
        """For trackers: `eval/<set>/<name>`."""
        named = {
            "accuracy": self.accuracy,
            "reward": self.reward,
            "parse_rate": self.parse_rate,
            "accuracy_parsed": self.accuracy_parsed,
            "failed": self.failed,
            "truncated": self.truncated,
            "response_tokens": self.mean_response_tokens,
        }
        return {f"eval/{self.name}/{name}": float(value) for name, value in named.items() if value is not None}


class Evaluator:
    """One evaluation set, rendered once."""

    def __init__(self, settings: EvalSet, task_set: TaskSet, producer: Producer, rollout: RolloutSection) -> None:
        self.settings = settings
        self.fingerprint = task_set.fingerprint()
        self._producer = producer
        limit = settings.max_prompt_len or rollout.rollout_max_prompt_len
        prompts = [Dispatch(task, producer.renderer.render(task), 0) for task in task_set]
        self._dispatches = [item for item in prompts if len(item.rendered.token_ids) <= limit]
        self._skipped = len(prompts) - len(self._dispatches)
        self._plan = GroupPlan(
            rollout_id=0,
            size=settings.n_samples_per_eval_prompt,
            sampling=SamplingParams(
                temperature=settings.temperature,
                top_p=settings.top_p,
                top_k=settings.top_k,
                max_new_tokens=settings.max_response_len or rollout.rollout_max_response_len,
                stop_token_ids=tuple(rollout.stop_token_ids),
                stop=tuple(rollout.stop),
            ),
            max_context=None,
            purpose=f"eval:{settings.name}",
        )

    async def run(self, step: int) -> tuple[EvalResult, list[Group]]:
        """Answers and scores the whole set; `step` is the number of completed optimizer steps."""
        numbered = [(self._producer.next_group_index(), item) for item in self._dispatches]
        groups = await self._producer.groups(numbered, self._plan)
        return summarise(self.settings.name, step, groups, self._skipped, self.fingerprint), groups


def summarise(name: str, step: int, groups: Sequence[Group], skipped: int, fingerprint: str) -> EvalResult:
    """The result over all responses of the groups."""
    correct: list[bool] = []
    parsed: list[bool] = []
    rewards: list[float] = []
    says_parsed = False
    for group in groups:
        full = sum(group.verifier_weights.get(verifier, 1.0) for verifier in group.task.targets)
        for trace, reward in zip(group.traces, group.rewards, strict=True):
            if reward is None:
                continue
            flags = [v.components["parsed"] >= 1 for v in trace.verdicts.values() if "parsed" in v.components]
            says_parsed = says_parsed or bool(flags)
            rewards.append(reward)
            correct.append(reward >= full - 1e-9)
            parsed.append(all(flags))
    traces = [trace for group in groups for trace in group.traces]
    among = [right for right, found in zip(correct, parsed, strict=True) if found]
    return EvalResult(
        name=name,
        step=step,
        accuracy=fmean(correct) if correct else 0.0,
        reward=fmean(rewards) if rewards else 0.0,
        parse_rate=fmean(parsed) if says_parsed else None,
        accuracy_parsed=fmean(among) if says_parsed and among else None,
        responses=len(correct),
        failed=len(traces) - len(correct),
        skipped=skipped,
        truncated=fmean(trace.truncated for trace in traces) if traces else 0.0,
        mean_response_tokens=fmean(trace.response_tokens for trace in traces) if traces else 0.0,
        fingerprint=fingerprint,
    )
