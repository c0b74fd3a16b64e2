"""Evaluation: a held-out set answered by the current weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from reroll.api import Group, Harness, RenderedPrompt, RerollError, SamplingParams, Task, TaskSet
from reroll.rollouts.config import EvalSet, RolloutSection
from reroll.rollouts.groups import GroupMaker, GroupPlan, Judging
from reroll.rollouts.scoring.rewards import is_right
from reroll.tasks.binding import Binder
from reroll.tasks.cursor import Dispatch
from reroll.workers.together import together


class EvaluationError(RerollError):
    """Nothing of an evaluation could be scored; no accuracy can be told."""


@dataclass(frozen=True)
class EvalResult:
    """What an evaluation set came to; shares are of responses, 0 to 1.

    Attributes:
        accuracy: share in which every verifier of positive weight gave at least 1.
        reward: mean reward.
        parse_rate: share in which every verifier that says so (`components["parsed"]`) found an answer; None if no
            verifier says so.
        accuracy_parsed: accuracy among those.
        failed: responses with a verifier that could not judge, whatever `failure_policy` makes of them; in no share.
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

    def __init__(
        self,
        settings: EvalSet,
        task_set: TaskSet,
        maker: GroupMaker,
        rollout: RolloutSection,
        *,
        harness: Harness | None = None,
        judging: Judging | None = None,
        max_context: int | None = None,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.settings = settings
        self.fingerprint = task_set.fingerprint()
        self._maker = maker
        self._warn = warn
        self._limit = settings.max_prompt_len or rollout.rollout_max_prompt_len
        self._lazy = task_set if task_set.lazy else None
        self._prompts = [] if task_set.lazy else [Dispatch(task, maker.renderer.render(task), 0) for task in task_set]
        self._stand_ins = list(task_set) if task_set.lazy else []
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
            max_context=max_context,
            purpose=f"eval:{settings.name}",
            env_name=settings.name,
            harness=harness,
            judging=judging,
        )

    async def run(self, step: int) -> tuple[EvalResult | None, list[Group]]:
        """Answers and scores the whole set with the engines, which training groups may be using as well. No result
        where a lazy set has nothing yet.

        Args:
            step: completed optimizer steps. The engines serve that version until the last answer is there: no
                weights may be published meanwhile.
        """
        plan = replace(self._plan, rollout_id=step)
        dispatches, skipped = await self._dispatches(step)
        if self._lazy is not None and not dispatches:
            short = f" that is short enough ({skipped} prompts are skipped)" if skipped else ""
            self._warn(
                f"evaluation {self.settings.name!r} at step {step} is left out: {self._lazy.name!r} has nothing{short}"
            )
            return None, []
        groups = await together(self._maker.make(index, item, plan) for index, item in enumerate(dispatches))
        versions = {version for group in groups for trace in group.traces for version in trace.weight_versions}
        assert versions <= {step}, f"evaluation at step {step} was answered by weights of versions {sorted(versions)}"
        return summarise(self.settings.name, step, groups, skipped, self.fingerprint), groups

    async def _dispatches(self, step: int) -> tuple[list[Dispatch], int]:
        """The prompts that are short enough, and how many are not. A lazy set is bound anew for every evaluation."""
        if self._lazy is None:
            kept = [item for item in self._prompts if item.rendered and len(item.rendered.token_ids) <= self._limit]
            return kept, len(self._prompts) - len(kept)
        skipped: Counter[str] = Counter()
        binder = Binder(self._lazy, self._maker.renderer.render, self._too_long, skipped, patience=0.0)
        dispatches: list[Dispatch] = []
        for number, stand_in in enumerate(self._stand_ins):
            found = await binder.bind(stand_in, step * len(self._stand_ins) + number)
            if found is not None:
                binding, rendered = found
                dispatches.append(Dispatch(binding.task, rendered, 0, binding=binding))
        return dispatches, skipped.total()

    def _too_long(self, task: Task, rendered: RenderedPrompt) -> str | None:
        return "too_long" if len(rendered.token_ids) > self._limit else None


def summarise(name: str, step: int, groups: Sequence[Group], skipped: int, fingerprint: str) -> EvalResult:
    """The result over all responses of the groups; EvaluationError if none could be scored."""
    correct: list[bool] = []
    parsed: list[bool] = []
    rewards: list[float] = []
    says_parsed = False
    for group in groups:
        for trace, reward in zip(group.traces, group.rewards, strict=True):
            verdicts = trace.verdicts
            if reward is None or not verdicts or not all(verdict.scored for verdict in verdicts.values()):
                continue
            flags = [
                verdict.components["parsed"] >= 1 for verdict in verdicts.values() if "parsed" in verdict.components
            ]
            says_parsed = says_parsed or bool(flags)
            rewards.append(reward)
            correct.append(is_right(verdicts, group.verifier_weights))
            parsed.append(all(flags))
    traces = [trace for group in groups for trace in group.traces]
    if not correct:
        failures = Counter(error["message"] for trace in traces for error in trace.errors)
        reason = failures.most_common(1)[0][0] if failures else f"it has no responses ({skipped} prompts are too long)"
        raise EvaluationError(f"evaluation {name!r} at step {step} scored none of {len(traces)} responses: {reason}")
    among = [right for right, found in zip(correct, parsed, strict=True) if found]
    return EvalResult(
        name=name,
        step=step,
        accuracy=fmean(correct),
        reward=fmean(rewards),
        parse_rate=fmean(parsed) if says_parsed else None,
        accuracy_parsed=(fmean(among) if among else 0.0) if says_parsed else None,
        responses=len(correct),
        failed=len(traces) - len(correct),
        skipped=skipped,
        truncated=fmean(trace.truncated for trace in traces),
        mean_response_tokens=fmean(trace.response_tokens for trace in traces),
        fingerprint=fingerprint,
    )
