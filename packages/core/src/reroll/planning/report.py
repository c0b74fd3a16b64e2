"""Everything that a run file resolves to, for `reroll plan`. Starts nothing; of the model, only headers are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reroll.api import PlannedEngine, PlannedModel
from reroll.checkpoints.config import CheckpointSection
from reroll.config import LoadedRunFile
from reroll.config.run import RunSection
from reroll.models.config import ModelSection
from reroll.models.files import ModelError, model_directory
from reroll.models.sizes import ModelSizes
from reroll.placement.config import PlacementSection
from reroll.plan import (
    collection_size,
    constant_length,
    correction,
    global_batch_size,
    scoring_reasons,
    source_limits,
    total_steps,
    updates_per_collection,
)
from reroll.planning.memory import Estimate, rank_memory, sizes_or_reason
from reroll.planning.settings import split_settings
from reroll.reporting.config import OutputSection
from reroll.rollouts.async_config import AsyncSection
from reroll.rollouts.config import EvalSection, RolloutSection, seeds
from reroll.serving.config import ServingSection
from reroll.serving.environment import engine_environment
from reroll.tasks.config import DataSection
from reroll.tasks.manifest import adopted
from reroll.training.config import ObjectiveSection, TrainerSection
from reroll.training.environment import trainer_environment

Settings = dict[str, dict[str, Any]]
"""Section → key → value, of given ones and defaults."""
NOT_CHECKED = (
    "nothing was started: whether model, tokenizer, prompts and targets can be read (reroll validate), whether the "
    "programs and servers that are installed take their options, and whether memory suffices was not checked"
)


def make_plan(run: LoadedRunFile) -> dict[str, Any]:
    """What the engine, a server or the machine decides by itself is None."""
    settings = run.to_toml()
    sizes, reason = sizes_or_reason(run)
    engine = planned_engine(run, sizes)
    explicit, defaults = split_settings(run)
    return {
        "run": _run(run),
        "model": run.get(ModelSection).path,
        "placement": _placement(run, engine),
        "serving": _serving(run, settings),
        "servers": _servers(run, engine),
        "trainer_environment": trainer_environment(run),
        "sizes": _sizes(run),
        "async": _asynchronous(run),
        "lengths": _lengths(run),
        "objective": _objective(run, settings),
        "scoring_pass": _scoring_pass(run),
        "data": {**_tasks(run, settings), "verifiers": run.get(DataSection).weights()},
        "checkpoint": _checkpoint(run),
        "eval": [item.name for item in run.get(EvalSection).sets],
        "plugins": {key: f"{given.distribution} {given.version}" for key, given in sorted(run.used_plugins().items())},
        "memory": {
            "trainer_rank": rank_memory(run, sizes, reason).to_json(),
            "engine_device": _engine_memory(engine, reason).to_json(),
        },
        "explicit": explicit,
        "defaults": defaults,
        "runtime_validated": False,
        "not_checked": NOT_CHECKED,
    }


def planned_engine(run: LoadedRunFile, sizes: ModelSizes | None) -> PlannedEngine:
    """One of the run's engines, of which all are alike."""
    selection = run.get(ServingSection).engine
    cls: Any = run.component("engines", selection.name)
    path = run.get(ModelSection).path
    try:
        directory = model_directory(path)
    except ModelError:  # of a package that is not installed, which `reroll validate` says
        directory = Path(path)
    model = PlannedModel(directory, sizes.parameters if sizes else None, sizes.dtype if sizes else None)
    planned: PlannedEngine | None = cls.planned(cls.Config(**selection.options), run, model)
    return planned or PlannedEngine()


def _placement(run: LoadedRunFile, engine: PlannedEngine) -> dict[str, Any]:
    trainer, serving, section = run.get(TrainerSection), run.get(ServingSection), run.get(PlacementSection)
    ranks = {"cpu": 0, "cuda": trainer.num_ranks, "auto": None}[trainer.device]
    engines = None if engine.gpus is None else engine.gpus * serving.num_engines
    total = None
    if ranks is not None and engines is not None:
        total = max(ranks, engines) if section.colocate else ranks + engines
    return {
        "backend": section.backend.name,
        "trainer_ranks": trainer.num_ranks,
        "trainer_device": None if trainer.device == "auto" else trainer.device,
        "trainer_gpus": ranks,
        "engines": serving.num_engines,
        "engine_gpus": engine.gpus,
        "gpus": total,
        "colocate": section.colocate,
        "processes": 1 + trainer.num_ranks + serving.num_engines + run.get(RolloutSection).scoring.workers,
    }


def _servers(run: LoadedRunFile, engine: PlannedEngine) -> dict[str, Any]:
    """What is started for each engine: a server's command line, or a worker's arguments. Of servers that run already,
    nothing."""
    serving = run.get(ServingSection)
    return {
        "launched": 0 if serving.urls else serving.num_engines,
        "argv": list(engine.argv),
        "told": list(engine.told),
        "worker": dict(engine.worker) if engine.worker is not None else None,
        "environment": {**engine.environment, **engine_environment(run)},
    }


def _run(run: LoadedRunFile) -> dict[str, Any]:
    run_seed, data_seed, rollout_seed = seeds(run)
    name = run.get(RunSection).name
    return {
        "name": name,
        "seeds": {"run": run_seed, "data": data_seed, "rollout": rollout_seed},
        "output": str(run.get(OutputSection).dir or f"outputs/{name}-<date>-<time>"),
    }


def _serving(run: LoadedRunFile, settings: Settings) -> dict[str, Any]:
    serving = run.get(ServingSection)
    return {
        "engine": settings["serving"]["engine"],
        "publication_mode": serving.publication_mode.name,
        "transport": serving.transport.name,
    }


def _sizes(run: LoadedRunFile) -> dict[str, Any]:
    rollout, total = run.get(RolloutSection), total_steps(run)
    return {
        "collections": rollout.num_rollout,
        "collection_prompts": rollout.rollout_batch_size,
        "collection_responses": rollout.collection_size,
        "optimizer_batch_responses": global_batch_size(run),
        "updates_per_collection": updates_per_collection(run),
        "optimizer_steps": total,
        "warmup_steps": run.get(TrainerSection).warmup_steps(total),
    }


def _asynchronous(run: LoadedRunFile) -> dict[str, Any]:
    section, size = run.get(AsyncSection), collection_size(run)
    return {
        "fully_async": section.fully_async,
        "max_weight_staleness": size.max_staleness,
        "collections_ahead": size.ahead,
        "buffer_groups": section.capacity(size),
        "concurrent_groups": section.concurrent_groups(run.get(RolloutSection)),
    }


def _lengths(run: LoadedRunFile) -> dict[str, Any]:
    rollout = run.get(RolloutSection)
    return {
        "prompt": rollout.rollout_max_prompt_len,
        "response": rollout.rollout_max_response_len,
        "context": rollout.max_context,
        "sequence": run.get(TrainerSection).max_sequence_length or rollout.max_context,
    }


def _objective(run: LoadedRunFile, settings: Settings) -> dict[str, Any]:
    objective, chosen = run.get(ObjectiveSection), correction(run)
    return {
        "advantage_estimator": settings["objective"]["advantage_estimator"],
        "correction": chosen.name if chosen else None,
        "policy_loss": objective.policy_loss,
        "aggregation": _aggregation(run),
        "ratio_anchor": "engine" if objective.use_rollout_logprobs else "trainer",
        "reference_model": objective.needs_reference,
    }


def _scoring_pass(run: LoadedRunFile) -> dict[str, Any]:
    reasons = scoring_reasons(run)
    return {
        "runs": "standalone" if reasons else "skipped",
        "because": reasons or ["one optimizer step a collection: the training forward serves"],
    }


def _checkpoint(run: LoadedRunFile) -> dict[str, Any]:
    section = run.get(CheckpointSection)
    return {
        "interval": section.save_interval or "none is made",
        "keep_last": section.keep_last,
        "load": str(section.load) if section.load else None,
    }


def _engine_memory(engine: PlannedEngine, reason: str) -> Estimate:
    unknown = {name: reason for name, value in engine.memory.items() if value is None and reason}
    return Estimate(engine.memory or {"weights": None}, unknown | dict(engine.because))


def _tasks(run: LoadedRunFile, settings: Settings) -> dict[str, Any]:
    sources = run.get(DataSection).sources
    if not sources:
        return {"task_set": settings["data"]["task_set"], **adopted(run.get(DataSection).task_set)}
    listed = zip(sources, settings["data"]["sources"], strict=True)
    return {
        "sources": {
            source.name: {**given, **source_limits(run, source)._asdict(), **adopted(source.task_set)}
            for source, given in listed
        }
    }


def _aggregation(run: LoadedRunFile) -> str:
    if (length := constant_length(run)) is not None:
        return f"per response, divided by {length}"
    return "per token" if run.get(ObjectiveSection).calculate_per_token_loss else "per response"
