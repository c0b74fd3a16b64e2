"""What a generation measures with, and how that differs from what will be trained with."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from reroll.api import PromptFilter, SamplingParams
from reroll.checkpoints.state import differences, model_identity
from reroll.config import LoadedRunFile
from reroll.config.problems import shown
from reroll.config.run import RunSection
from reroll.generation.config import GenerationSection
from reroll.generation.protocol import GenerationProtocol, SourceTasks
from reroll.generation.tasklist import Part, TaskList
from reroll.launch.identity import make_protocol
from reroll.models.files import ModelFiles
from reroll.rollouts.config import RolloutSection, seeds
from reroll.tasks.config import DataSection
from reroll.tasks.render import Renderer

TRAINING_KEYS = {
    "rollout": (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "rollout_max_response_len",
        "rollout_max_prompt_len",
        "rollout_max_context_len",
        "stop",
        "stop_token_ids",
        "harness",
        "failure_policy",
    ),
    "data": ("verifiers", "verifier_weights", "tools"),
    "model": ("path", "chat_template"),
}
"""Section → its keys by which a pass rate may be another one in training."""


def sampling_of(run: LoadedRunFile) -> SamplingParams:
    """The training sampling parameters, with the temperature of the generation."""
    sampling, own = run.get(RolloutSection).sampling(seed=0), run.get(GenerationSection).temperature
    return sampling if own is None else SamplingParams(**{**asdict(sampling), "temperature": own})


def make_generation_protocol(
    run: LoadedRunFile,
    files: ModelFiles,
    renderer: Renderer,
    tasks: TaskList,
    filters: Mapping[str, PromptFilter],
    shard: tuple[int, int] | None,
    instances: list[int] | None,
) -> GenerationProtocol:
    """Everything that the outcomes follow from."""
    section = run.get(GenerationSection)
    how = asdict(make_protocol(run, files, renderer, sampling_of(run)))
    for name in ("group_filters", "deterministic_inference"):
        del how[name]  # nothing of an attempt follows from them
    how["pass_reward"] = section.pass_reward
    how["prompt_filters"] = {name: prompt_filter.fingerprint for name, prompt_filter in filters.items()}
    how["sources"] = {part.name: _how_drawn(part) for part in tasks.parts}
    selections = {source.name: source.task_set for source in run.get(DataSection).all_sources()}
    return GenerationProtocol(
        name=run.get(RunSection).name,
        run_id=secrets.token_hex(8),
        how=json.loads(json.dumps(how, default=str)),
        model=model_identity(files),
        seed=seeds(run)[2],
        sources=[
            SourceTasks(
                name=part.name,
                task_set=run.table_of("task_sets", part.task_set.origin() or selections[part.name]),
                size=part.size,
                fingerprint=_fingerprint(part),
            )
            for part in tasks.parts
        ],
        n_trials=section.n_trials,
        shard=shard,
        instances=instances,
    )


def _how_drawn(part: Part) -> dict[str, Any]:
    plan = part.plan
    return {
        "max_prompt_len": part.max_prompt_len,
        "max_response_len": plan.sampling.max_new_tokens,
        "max_context": plan.max_context,
        "harness": plan.harness and plan.harness.name,
        "harness_options": plan.harness and plan.harness.config.model_dump(mode="json"),
        "verifier_weights": dict(plan.judging.weights) if plan.judging else None,
    }


def _fingerprint(part: Part) -> str:
    if part.walked is None:
        return part.task_set.fingerprint()
    digest = hashlib.sha256()
    for task in part.walked:
        digest.update(json.dumps([task.key, task.prompt, dict(task.targets)], default=repr, sort_keys=True).encode())
    return digest.hexdigest()


def training_differences(run: LoadedRunFile, training: LoadedRunFile) -> Iterator[str]:
    """What a training run does otherwise than this generation, as `key: value here, value there`."""
    mine, theirs = run.to_toml(), training.to_toml()
    temperature = run.get(GenerationSection).temperature
    if temperature is not None:
        mine["rollout"]["temperature"] = temperature
    for section, keys in TRAINING_KEYS.items():
        for name in keys:
            before, after = mine[section].get(name), theirs[section].get(name)
            for key, here, there in differences(f"{section}.{name}", before, after):
                yield f"{key}: {_told(key, here)} here, {_told(key, there)} there"


def _told(key: str, value: Any) -> str:
    return "unset" if value is None else str(value) if repr(value) == "unset" else shown(key, value)
