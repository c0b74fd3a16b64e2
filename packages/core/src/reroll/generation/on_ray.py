"""Shards on the nodes of a Ray cluster: each is a whole generation of its own, in a folder that all nodes share."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import ray
import tomli_w
from ray.exceptions import RayError

from reroll.api import counted
from reroll.config import LoadedRunFile
from reroll.config.atomic import write_whole
from reroll.generation.program import results_folder
from reroll.generation.store import JOURNAL, count_lines
from reroll.models.config import ModelSection
from reroll.models.files import resolve_model
from reroll.parts import engine_class, engine_context
from reroll.placement.config import PlacementSection
from reroll.placement.local import LocalPlacement
from reroll.placement.ray.cluster import Cluster, in_thread
from reroll.serving.config import ServingSection

RUN_FILE = "shards.toml"
ASKING_SECONDS = 1.0
TELLING_SECONDS = 30.0
RETRIES = 2
"""Starts of a shard in place of one whose node was lost; each goes on where that one was."""


async def run_shards(run: LoadedRunFile, shards: int, tell: Callable[[str], None]) -> dict[int, str]:
    """Runs every shard that is not finished, as many at a time as the cluster has room for.

    Args:
        tell: told how far they are.

    Returns:
        Shard, counted from 1 → why it failed; empty where all are finished.
    """
    folder = results_folder(run, None).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / RUN_FILE, tomli_w.dumps(_for_nodes(run, folder)))
    selection = run.get(PlacementSection).backend
    cluster = Cluster(run.make("placements", selection).config)
    await cluster.connect()
    waiting: dict[Any, int] = {}
    try:
        # A process of its own for each: a generation sets up signals and logging for the whole process.
        options = {"max_calls": 1, "max_retries": RETRIES, "scheduling_strategy": "SPREAD", **_resources(run, folder)}
        remote = ray.remote(**options)(run_shard)
        environment = {"env_vars": {name: os.environ[name] for name in ("HF_HUB_OFFLINE",) if name in os.environ}}
        for number in range(1, shards + 1):
            start = remote.options(runtime_env=environment, name=f"shard {number} of {shards}")
            waiting[start.remote(str(folder / RUN_FILE), number, shards)] = number
        return await _until_done(waiting, folder, shards, tell)
    finally:
        for call in waiting:
            with suppress(Exception):  # Ray itself may have ended
                ray.cancel(call, force=True)
        await cluster.close()


async def _until_done(
    waiting: dict[Any, int], folder: Path, shards: int, tell: Callable[[str], None]
) -> dict[int, str]:
    failed: dict[int, str] = {}
    clock = asyncio.get_running_loop().time
    told = clock()
    while waiting:
        done, _ = await in_thread(partial(ray.wait, list(waiting), num_returns=1, timeout=ASKING_SECONDS))
        for call in done:
            number = waiting.pop(call)
            fault = await in_thread(partial(_fault, call))
            if fault is not None:
                failed[number] = fault
            tell(f"shard {number} of {shards}: {'finished' if fault is None else 'failed: ' + fault}")
        if clock() - told > TELLING_SECONDS:
            told = clock()
            tell(f"{counted(_kept(folder), 'trial')} kept; {counted(len(waiting), 'shard')} under way")
    return failed


def _fault(call: Any) -> str | None:
    """Why a shard that has ended failed; None where it did not."""
    try:
        code = ray.get(call)
    except RayError as error:
        return (str(error).strip() or type(error).__name__).splitlines()[-1]
    return None if code == 0 else f"it was stopped (exit code {code})"


def _kept(folder: Path) -> int:
    """Lines of all journals: attempts, some of them tried again."""
    return sum(count_lines(path) for path in folder.glob(f"shard_*/{JOURNAL}"))


def _for_nodes(run: LoadedRunFile, folder: Path) -> Mapping[str, Any]:
    """The run file as each node runs it: with workers of its own, and the folder that all share."""
    settings = run.to_toml()
    settings["placement"] = {**settings["placement"], "backend": "local"}
    settings["generation"] = {**settings["generation"], "results_dir": str(folder)}
    return settings


def _resources(run: LoadedRunFile, folder: Path) -> dict[str, float]:
    """What one shard takes of a node: its engines, and a CPU for each of them and for itself."""
    cls, config = engine_class(run)
    files, engines = resolve_model(run.get(ModelSection).path), run.get(ServingSection).num_engines
    contexts = [
        engine_context(run, LocalPlacement(), files, folder, number, lambda text: None, False)
        for number in range(engines)
    ]
    gpus = sum(spec.gpus for context in contexts for spec in cls.worker_specs(config, context))
    each = run.make("placements", run.get(PlacementSection).backend).config.cpus_per_worker
    return {"num_cpus": each * (engines + 1), "num_gpus": float(gpus)}


def run_shard(run_file: str, number: int, shards: int) -> int:
    """On a node: one shard from its start to its end; gives its exit code."""
    from reroll.config import load_run_file
    from reroll.generation.program import run_generation
    from reroll.plugins import installed_plugins
    from reroll.workers.together import leaving_nothing

    run = load_run_file(Path(run_file), [], installed_plugins())
    return asyncio.run(leaving_nothing(run_generation(run, (number, shards))))
