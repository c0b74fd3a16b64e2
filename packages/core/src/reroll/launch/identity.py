"""Who a run is: what its checkpoints, records and plugins know it by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

from reroll.api import Engine, PromptFilter, Protocol, RunContext, SamplingParams, Seeds
from reroll.config import LoadedRunFile
from reroll.config.run import RunSection
from reroll.launch.start import Start
from reroll.models.config import ModelSection
from reroll.models.files import ModelFiles
from reroll.rollouts.config import RolloutSection
from reroll.serving.config import ServingSection
from reroll.tasks.config import DataSection
from reroll.tasks.render import Renderer


def make_context(
    run: LoadedRunFile,
    files: ModelFiles,
    renderer: Renderer,
    start: Start,
    seeds: Seeds,
    filters: Mapping[str, PromptFilter],
    source: str = "train",
    sampling: SamplingParams | None = None,
) -> RunContext:
    """The run's identity, made once a start.

    Args:
        sampling: how responses are drawn, where it is not as `[rollout]` says.
    """
    state = start.resumed.state if start.resumed else None
    data = run.to_toml()["data"]
    return RunContext(
        run_id=start.run_id,
        name=run.get(RunSection).name,
        attempt=start.attempt.attempt,
        fresh=state is None,
        start_rollout_id=state.collection if state else 0,
        start_version=state.version if state else 0,
        model=run.get(ModelSection).path,
        checkpoint=files.inventory(),
        loaded=start.resumed.folder if start.resumed else None,
        protocol=make_protocol(run, files, renderer, sampling),
        seeds=seeds,
        output=start.output,
        source=source,
        data=data.get("task_set", data["sources"]),
        filters={name: prompt_filter.fingerprint for name, prompt_filter in filters.items()},
    )


def make_protocol(
    run: LoadedRunFile, files: ModelFiles, renderer: Renderer, sampling: SamplingParams | None = None
) -> Protocol:
    """How the run draws and judges; for `sampling` see `make_context`."""
    data, rollout, settings = run.get(DataSection), run.get(RolloutSection), run.to_toml()
    serving = run.get(ServingSection).engine
    engine = cast(type[Engine], run.component("engines", serving.name))
    judges: dict[str, Any] = {}
    for item in data.verifiers:
        given = run.plugins.get("verifiers", item.name)
        judges[item.name] = {
            "distribution": given.distribution,
            "version": given.version,
            "weight": data.weights()[item.name],
            "options": item.options,
        }
    drawn = asdict(sampling or rollout.sampling(seed=0))
    drawn.pop("seed")
    return Protocol(
        sampling=drawn,
        max_context=rollout.max_context,
        harness=settings["rollout"]["harness"],
        group_filters=settings["rollout"]["group_filters"],
        template_sha256=renderer.template_sha256,
        tokenizer_sha256=renderer.tokenizer_sha256,
        generation_config_sha256=files.generation_config_sha256,
        verifiers=judges,
        failure_policy=rollout.failure_policy,
        deterministic_inference=engine.deterministic(engine.Config(**serving.options), run),
    )
