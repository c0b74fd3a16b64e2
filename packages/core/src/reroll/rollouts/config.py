"""`[rollout]` and `[eval]`: how responses are drawn, and what is measured on the way."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import floor
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from reroll.api import Config, ConfigSection, Hook, Problem, RunFile, SamplingParams, Selection
from reroll.config.run import RunSection
from reroll.models.config import ModelSection
from reroll.models.files import ModelError, resolve_model
from reroll.rollouts.scoring.config import ScoringConfig
from reroll.serving.limits import MOST_TOP_K
from reroll.tasks.config import DataSection, check_task_set, data_seed, task_set_problems


class RolloutSection(ConfigSection):
    section: ClassVar[str] = "rollout"

    num_rollout: int = Field(10, gt=0)
    """Collections of the run, which ends after them."""
    rollout_batch_size: int = Field(16, gt=0)
    """Prompts of one collection: with more, its optimizer steps are larger, or more with trainer.global_batch_size."""
    n_samples_per_prompt: int = Field(8, gt=1)
    """Responses of one group: more estimate advantages better, and cost as much more generation."""
    temperature: float = Field(1.0, ge=1e-3)
    """Logits are divided by it, in the engine and in the trainer."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling; below 1 the trainer's distribution is not the one that was drawn from."""
    top_k: int = Field(-1, ge=-1)
    """Draw among the k most likely tokens; -1 switches it off."""
    min_p: float = Field(0.0, ge=0, lt=1)
    """Draw among tokens at least this likely, relative to the most likely one."""
    rollout_max_response_len: int = Field(128, gt=0)
    """Most tokens of a response; a longer one is cut off there."""
    rollout_max_prompt_len: int = Field(512, gt=0)
    """Longer prompts are skipped, and counted."""
    rollout_max_context_len: int | None = Field(None, gt=1)
    """Most tokens of prompt and response together; by default the two lengths added."""
    stop: list[Annotated[str, Field(min_length=1)]] = []
    """Strings that end a response where they appear in it."""
    stop_token_ids: list[Annotated[int, Field(ge=0)]] = []
    """Tokens that end a response, beside the model's own end-of-sequence ids."""
    seed: int | None = None
    """Sampling: another seed draws other responses; by default `run.seed`."""
    harness: Annotated[Selection, Hook("harnesses")] = Selection(name="single_turn")
    """How a task becomes a conversation: one answer, or turns in which tools are called."""
    group_filters: Annotated[list[Selection], Hook("group_filters")] = [Selection(name="zero_variance")]
    """What decides whether a scored group is trained on; the first that does not pass it decides."""
    failure_policy: Literal["exclude"] | float = "exclude"
    """A response whose verifier failed: `exclude` leaves it out of statistics and loss; a number is its score."""
    over_sampling_factor: float = Field(1.0, ge=1)
    """A collection is full with rollout_batch_size groups that pass the filters, and closed when so many times as many
    were decided. At 1 nothing is generated in place of groups that do not pass."""
    max_empty_collections: int = Field(3, gt=0)
    """So many collections in a row without a group to train on end the run."""
    observe_sibling_timing: bool = False
    """Writes `<output>/sibling_timing_<attempt>.jsonl`: start, first token and end of every response, by group."""
    scoring: ScoringConfig = ScoringConfig()
    """The processes in which verifiers run."""

    @field_validator("top_k")
    @classmethod
    def _top_k(cls, value: int) -> int:
        return checked_top_k(value)

    @property
    def max_context(self) -> int:
        return self.rollout_max_context_len or self.rollout_max_prompt_len + self.rollout_max_response_len

    @property
    def collection_size(self) -> int:
        """Responses of one collection."""
        return self.rollout_batch_size * self.n_samples_per_prompt

    @property
    def most_groups(self) -> int:
        """Decided groups that close a collection."""
        return times(self.over_sampling_factor, self.rollout_batch_size)

    def sampling(self, seed: int, max_new_tokens: int | None = None) -> SamplingParams:
        """The training sampling parameters with a response's own seed, and with another limit where one is given."""
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            max_new_tokens=max_new_tokens or self.rollout_max_response_len,
            stop_token_ids=tuple(self.stop_token_ids),
            stop=tuple(self.stop),
            seed=seed,
        )

    def problems(self, run: RunFile) -> Iterator[Problem]:
        if self.over_sampling_factor > 1 and self.most_groups == self.rollout_batch_size:
            yield Problem(
                "rollout.over_sampling_factor",
                f"{self.over_sampling_factor} of {self.rollout_batch_size} groups is less than one group more",
                "raise it, or leave it out",
            )
        limit = self.rollout_max_context_len
        if limit is not None and limit < self.rollout_max_response_len + 1:
            yield Problem(
                "rollout.rollout_max_context_len",
                f"{limit} leaves no room for a prompt beside a response of {self.rollout_max_response_len} tokens",
                "raise it, or lower rollout_max_response_len",
            )
        sum_of_both = self.rollout_max_prompt_len + self.rollout_max_response_len
        harness: Any = run.component("harnesses", self.harness.name)
        turns = harness.calls_tools or bool(run.get(DataSection).sources)  # sources have their own
        if limit is not None and limit > sum_of_both and not turns:
            yield Problem(
                "rollout.rollout_max_context_len",
                f"{limit} can never be reached: prompt and response together have at most {sum_of_both} tokens",
                f"set it to {sum_of_both}, or leave it out",
            )

    def _stop_token_problems(self, run: RunFile) -> Iterator[Problem]:
        size = _vocabulary(run)
        for index, token in enumerate(self.stop_token_ids):
            if size is not None and token >= size:
                yield Problem(f"rollout.stop_token_ids[{index}]", f"{token}: the model has ids up to {size - 1}")

    def validate_files(self, run: RunFile, thorough: bool) -> Iterator[Problem]:
        yield from check_context("rollout", self.max_context, run)
        yield from self._stop_token_problems(run)
        yield from check_harness("rollout.harness", self.harness, run)
        for index, source in enumerate(run.get(DataSection).sources):
            yield from check_harness(f"data.sources[{index}].harness", source.harness, run)


def times(factor: float, groups: int) -> int:
    """Whole groups of a multiple, as the factor is written: 1.4 times 45 is 63, which floats make 62.99."""
    return floor(Fraction(str(factor)) * groups)


def _vocabulary(run: RunFile) -> int | None:
    try:
        size = resolve_model(run.get(ModelSection).path).config.get("vocab_size")
    except ModelError:
        return None
    return int(size) if size else None


def checked_top_k(value: int) -> int:
    if value == 0:
        raise ValueError("give at least 1, or -1 to switch it off")
    if value > MOST_TOP_K:
        raise ValueError(f"give at most {MOST_TOP_K}, or -1 to switch it off")
    return value


def check_context(key: str, needed: int, run: RunFile) -> Iterator[Problem]:
    """Does the model have so many positions?"""
    try:
        available = resolve_model(run.get(ModelSection).path).max_context
    except ModelError:
        return  # told by [model] itself
    if available is not None and needed > available:
        yield Problem(
            key, f"needs {needed} tokens of context, the model has {available} positions", "lower the lengths"
        )


def check_harness(key: str, selection: Selection | None, run: RunFile) -> Iterator[Problem]:
    """Can the harness run here?"""
    if selection is None:
        return
    try:
        lacks = run.make("harnesses", selection).lacks()
    except Exception as error:  # a harness is anybody's code
        lacks = f"{selection.name!r} cannot say what it lacks: {type(error).__name__}: {error}"
    if lacks:
        yield Problem(key, lacks)


class EvalSet(Config):
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Names the set in metrics and in the summary."""
    task_set: Annotated[Selection, Hook("task_sets")]
    """The tasks."""
    eval_interval: int | None = Field(None, gt=0)
    """Optimizer steps between evaluations; by default `eval.eval_interval`."""
    n_samples_per_eval_prompt: int = Field(1, gt=0)
    """Responses of each task: more of them measure it more closely."""
    temperature: float = Field(0.0, ge=0)
    """0 takes the most likely token; otherwise at least 0.001."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling: draw among the most likely tokens that have this probability together; 1 switches it off."""
    top_k: int = Field(-1, ge=-1)
    """Draw among the k most likely tokens; -1 switches it off."""
    max_response_len: int | None = Field(None, gt=0)
    """Most tokens of a response; by default `rollout.rollout_max_response_len`."""
    harness: Annotated[Selection | None, Hook("harnesses")] = None
    """How its tasks become conversations; by default `rollout.harness`, or for replayed rollouts their own harness."""
    max_prompt_len: int | None = Field(None, gt=0)
    """Longer prompts are left out and counted; by default `rollout.rollout_max_prompt_len`."""

    @field_validator("temperature")
    @classmethod
    def _temperature(cls, value: float) -> float:
        if 0 < value < 1e-3:
            raise ValueError("give 0 for the most likely token, or at least 0.001")
        return value

    @field_validator("top_k")
    @classmethod
    def _top_k(cls, value: int) -> int:
        return checked_top_k(value)

    def max_context(self, rollout: RolloutSection) -> int:
        """Most tokens of prompt and response together."""
        prompt = self.max_prompt_len or rollout.rollout_max_prompt_len
        return prompt + (self.max_response_len or rollout.rollout_max_response_len)


class EvalSection(ConfigSection):
    section: ClassVar[str] = "eval"

    sets: list[EvalSet] = []
    """Held-out sets, each `[[eval.sets]]` with a name and a task set."""
    eval_interval: int | None = Field(None, gt=0)
    """Optimizer steps between evaluations; by default only before and after training."""
    skip_eval_before_train: bool = False
    """Leaves out the evaluation of the starting checkpoint."""

    def problems(self, run: RunFile) -> Iterator[Problem]:
        names = [item.name for item in self.sets]
        for index, item in enumerate(self.sets):
            if names.index(item.name) != index:
                yield Problem(f"eval.sets[{index}].name", f"{item.name!r} is the name of another set as well")
            yield from task_set_problems(f"eval.sets[{index}].task_set", item.task_set, run)
            if item.n_samples_per_eval_prompt > 1 and item.temperature == 0:
                yield Problem(
                    f"eval.sets[{index}].n_samples_per_eval_prompt",
                    f"{item.n_samples_per_eval_prompt} responses at temperature 0 are all the same",
                    "set a temperature, or take one sample",
                )
        if not self.sets and self.eval_interval is not None:
            yield Problem("eval.eval_interval", "does nothing without [[eval.sets]]")
        if not self.sets and self.skip_eval_before_train:
            yield Problem("eval.skip_eval_before_train", "does nothing without [[eval.sets]]")

    def validate_files(self, run: RunFile, thorough: bool) -> Iterator[Problem]:
        rollout, data = run.get(RolloutSection), run.get(DataSection)
        for index, item in enumerate(self.sets):
            key = f"eval.sets[{index}].task_set"
            yield from check_task_set(key, item.task_set, data, run, thorough, sized=True)
            yield from check_context(f"eval.sets[{index}]", item.max_context(rollout), run)
            yield from check_harness(f"eval.sets[{index}].harness", item.harness, run)


def seeds(run: RunFile) -> tuple[int, int, int]:
    """`run.seed`, and the data and rollout seeds that follow it where they are not given."""
    base = run.get(RunSection).seed
    rollout = run.get(RolloutSection).seed
    return base, data_seed(run), base if rollout is None else rollout
