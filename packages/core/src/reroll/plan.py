"""Numbers that follow from a run file, and the faults that only show across rooms. Starts nothing, reads no model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from reroll.api import Problem, Selection
from reroll.config import LoadedRunFile
from reroll.placement.config import PlacementSection
from reroll.rollouts.async_config import AsyncSection
from reroll.rollouts.buffer import CollectionSize
from reroll.rollouts.config import EvalSection, RolloutSection
from reroll.serving.config import ServingSection
from reroll.serving.sglang.section import SGLangSection
from reroll.tasks.config import DataSection, DataSource
from reroll.training.config import ObjectiveSection, TrainerSection


def global_batch_size(run: LoadedRunFile) -> int:
    """Responses of one optimizer step."""
    return run.get(TrainerSection).global_batch_size or run.get(RolloutSection).collection_size


def updates_per_collection(run: LoadedRunFile) -> int:
    """Optimizer steps of one collection."""
    return run.get(RolloutSection).collection_size // global_batch_size(run)


class Limits(NamedTuple):
    """Bounds of a data source, in tokens. `max_context` is of prompt and responses together, None for the model's
    positions; `max_response_len` is of one turn."""

    max_prompt_len: int
    max_response_len: int
    max_context: int | None


def source_limits(run: LoadedRunFile, source: DataSource) -> Limits:
    """What a data source may have. A listed one is bound by what the trainer takes, unless it says otherwise."""
    rollout, trained = run.get(RolloutSection), run.get(TrainerSection).max_sequence_length
    context: int | None = rollout.max_context
    if source.max_total_tokens == "None":
        context = None
    elif source.max_total_tokens is not None:
        context = source.max_total_tokens
    elif run.get(DataSection).sources and trained is not None:
        context = trained
    return Limits(
        source.max_prompt_len or rollout.rollout_max_prompt_len,
        source.max_response_len or rollout.rollout_max_response_len,
        context,
    )


def source_problems(run: LoadedRunFile) -> Iterator[Problem]:
    """Do a source's lengths leave room for an answer, and can they be trained on?"""
    trained = run.get(TrainerSection).max_sequence_length
    for index, source in enumerate(run.get(DataSection).sources):
        total, limits = source.max_total_tokens, source_limits(run, source)
        if isinstance(total, int) and trained is not None and total > trained:
            yield Problem(
                f"data.sources[{index}].max_total_tokens",
                f"{total} is longer than the {trained} tokens of trainer.max_sequence_length",
                'lower it, raise trainer.max_sequence_length, or set it to "None" to train on whatever comes',
            )
        if limits.max_context is not None and limits.max_prompt_len >= limits.max_context:
            key = "max_prompt_len" if source.max_prompt_len else "max_total_tokens"
            yield Problem(
                f"data.sources[{index}].{key}",
                f"a prompt of {limits.max_prompt_len} tokens leaves no room for an answer within {limits.max_context}",
                "lower max_prompt_len, or raise max_total_tokens",
            )


def collection_size(run: LoadedRunFile) -> CollectionSize:
    """What a collection may hold."""
    return run.get(AsyncSection).size(run.get(RolloutSection), updates_per_collection(run))


def correction(run: LoadedRunFile) -> Selection | None:
    """The off-policy correction: the run file's, or what it resolves to without one."""
    objective = run.get(ObjectiveSection)
    if objective.correction is None and run.get(AsyncSection).fully_async and not objective.use_rollout_logprobs:
        return Selection(name="tis")
    return objective.correction


def scoring_reasons(run: LoadedRunFile) -> list[str]:
    """Why the standalone scoring pass runs at every collection; empty where the training forward serves."""
    objective, trainer = run.get(ObjectiveSection), run.get(TrainerSection)
    updates = updates_per_collection(run)
    reasons = {
        "trainer.scoring_pass_required": trainer.scoring_pass_required,
        f"{updates} optimizer steps a collection": updates > 1,
        "objective.kl_coef": objective.kl_coef > 0,
        "objective.use_kl_loss": objective.use_kl_loss,
        "trainer.disable_dropout = false": not trainer.disable_dropout,
    }
    return [reason for reason, holds in reasons.items() if holds]


def scoring_problems(run: LoadedRunFile) -> Iterator[Problem]:
    """Comparisons with a pass that runs in any case would compare nothing."""
    section = run.get(TrainerSection)
    reasons = scoring_reasons(run)
    for key in ("scoring_check_interval", "scoring_check_tolerance"):
        if reasons and getattr(section, key) != type(section).model_fields[key].default:
            yield Problem(
                f"trainer.{key}",
                f"does nothing: the scoring pass runs at every collection ({', '.join(reasons)})",
                "leave it out",
            )


def constant_length(run: LoadedRunFile) -> int | None:
    """What the loss divides every response by, where the advantage estimator wants a constant."""
    constant = run.get(ObjectiveSection).constant_length(run)
    return run.get(RolloutSection).rollout_max_response_len if constant else None


def total_steps(run: LoadedRunFile) -> int:
    """Optimizer steps of the run, if every collection is full."""
    return run.get(RolloutSection).num_rollout * updates_per_collection(run)


def schedule_problems(run: LoadedRunFile) -> Iterator[Problem]:
    """Is there room for warm-up and decay?"""
    trainer, total = run.get(TrainerSection), total_steps(run)
    warmup, decay, end = trainer.warmup_steps(total), trainer.lr_wsd_decay_iters, trainer.decay_steps(total)
    if decay is not None and warmup + decay > end:
        yield Problem(
            "trainer.lr_wsd_decay_iters",
            f"{decay} does not fit beside a warm-up of {_steps(warmup)} into the {_steps(end)} until min_lr",
            f"set it to {end - warmup} or less" if end > warmup else "shorten the warm-up",
        )


def staleness_problems(run: LoadedRunFile) -> Iterator[Problem]:
    """Does the staleness bound cover the last step of a collection that is generated while another is trained on?"""
    section, updates = run.get(AsyncSection), updates_per_collection(run)
    bound, least = section.max_weight_staleness, 2 * updates - 1
    if not section.fully_async or (bound or 0) >= least:
        return
    reason = f"{bound} does not cover a collection's last step" if bound else "is not given"
    yield Problem(
        "async.max_weight_staleness",
        f"{reason}: with {_steps(updates)} a collection, what is generated while one collection is trained on is "
        f"{_steps(least)} old at the last one of the next",
        f"set it to {least} or more" + (", or raise trainer.global_batch_size" if updates > 1 else ""),
    )


def _steps(count: int) -> str:
    return f"{count} optimizer step" + "s" * (count != 1)


def colocation_problems(run: LoadedRunFile) -> Iterator[Problem]:
    """Can engines and trainer take turns on the same devices?"""
    if not run.get(PlacementSection).colocate:
        return
    serving = run.get(ServingSection)
    if run.get(AsyncSection).fully_async:
        yield Problem(
            "placement.colocate",
            "is true, but async.fully_async has engines generate while the trainer works, on devices that they would "
            "have to give up",
            "set async.fully_async = false, or leave placement.colocate out",
        )
    engine: Any = run.component("engines", serving.engine.name)
    if not engine.shares_devices:
        yield Problem(
            "placement.colocate",
            f"is true, but serving.engine = {serving.engine.name!r} cannot give its memory up",
            "leave placement.colocate out, or choose another serving.engine",
        )
    elif run.get(SGLangSection).by_name().get("device") == "cpu":
        yield Problem(
            "placement.colocate",
            'is true, but SGLang cannot give memory up with sglang.device = "cpu"',
            "leave placement.colocate out",
        )
    options, on_cpu = serving.transport.options, run.get(TrainerSection).device == "cpu"
    if serving.transport.name == "distributed" and options.get("backend") != "gloo" and not on_cpu:
        yield Problem(
            "serving.transport",
            'is "distributed", but NCCL cannot have two processes on one device, as placement.colocate = true makes it',
            'give it backend = "gloo", or set serving.transport to "disk" or "shared_memory"',
        )


def size_problems(run: LoadedRunFile) -> Iterator[Problem]:
    """Do collection and optimizer batch, and the lengths of both sides, fit each other?"""
    rollout, trainer = run.get(RolloutSection), run.get(TrainerSection)
    size, batch = rollout.collection_size, global_batch_size(run)
    if size % batch:
        divisors = [number for number in range(1, size + 1) if size % number == 0]
        close = sorted(sorted(divisors, key=lambda number: abs(number - batch))[:3])
        yield Problem(
            "trainer.global_batch_size",
            f"{batch} does not divide a collection of {size} responses (rollout_batch_size "
            f"{rollout.rollout_batch_size} x n_samples_per_prompt {rollout.n_samples_per_prompt})",
            f"a collection holds whole optimizer steps; near it would be {', '.join(map(str, close))}",
        )
    else:
        yield from staleness_problems(run)
        yield from scoring_problems(run)
        yield from schedule_problems(run)
    longest = trainer.max_sequence_length
    if longest is not None and longest < rollout.max_context:
        yield Problem(
            "trainer.max_sequence_length",
            f"{longest} is shorter than the {rollout.max_context} tokens that a rollout may have",
            f"set rollout.rollout_max_context_len to {longest}, or raise it to {rollout.max_context}",
        )
    yield from source_problems(run)
    yield from transport_problems(run)
    yield from colocation_problems(run)
    yield from context_problems(run)


def context_problems(run: LoadedRunFile) -> Iterator[Problem]:
    """Can the engine serve the longest conversations?"""
    for key, needed in longest_contexts(run):
        engine = run.get(ServingSection).engine
        cls: Any = run.component("engines", engine.name)
        for reason in cls.problems(cls.Config(**engine.options), needed):
            yield Problem("serving.engine", f"{reason} ({key} needs {needed} tokens of context)")


def transport_problems(run: LoadedRunFile) -> Iterator[Problem]:
    """Can the transport reach the engines?"""
    serving = run.get(ServingSection)
    transport: Any = run.component("transports", serving.transport.name)
    engine: Any = run.component("engines", serving.engine.name)
    config = transport.Config(**serving.transport.options)
    for reason in transport.problems(config, engine, run.get(TrainerSection).device):
        yield Problem("serving.transport", reason)


def longest_contexts(run: LoadedRunFile) -> Iterator[tuple[str, int]]:
    """Most tokens of prompt and response together, of training and of each evaluation set."""
    rollout = run.get(RolloutSection)
    yield "rollout", rollout.max_context
    for index, source in enumerate(run.get(DataSection).sources):
        limits = source_limits(run, source)
        yield f"data.sources[{index}]", limits.max_context or limits.max_prompt_len + limits.max_response_len
    for index, item in enumerate(run.get(EvalSection).sets):
        yield f"eval.sets[{index}]", item.max_context(rollout)
