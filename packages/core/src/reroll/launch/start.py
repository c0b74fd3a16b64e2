"""Starting a run in its folder: for the first time, or once more from what an earlier start left."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from reroll.api import CheckpointError, RerollError, counted
from reroll.checkpoints.config import CheckpointSection
from reroll.checkpoints.state import (
    Identity,
    RunState,
    changed_settings,
    data_identity,
    identity_problems,
    model_identity,
    read_state,
)
from reroll.checkpoints.store import FOLDER, MANIFEST, CheckpointStore, find_checkpoint
from reroll.config import LoadedRunFile
from reroll.config.run import RunSection
from reroll.launch.attempts import Attempt, AttemptsError, register_attempt, run_lock
from reroll.launch.config import LaunchSection
from reroll.launch.folder import was_started
from reroll.launch.outputs import OUTPUTS, make_new_folder
from reroll.models.config import ModelSection
from reroll.models.files import resolve_model
from reroll.reporting.config import RUN_FILE, OutputSection
from reroll.rollouts.config import seeds
from reroll.rollouts.debug_config import DebugSection
from reroll.tasks.config import DataSection, open_task_set
from reroll.traces.saved import move_aside


@dataclass(frozen=True)
class Resumed:
    """What a start goes on from.

    Attributes:
        same_run: whether it is a checkpoint of this very run, and not one that another run starts from.
    """

    folder: Path
    state: RunState
    same_run: bool


@dataclass(frozen=True)
class Start:
    """One start of a run, and the folder that it holds.

    Attributes:
        identity: what the run's checkpoints are known by; None where none is made or gone on from.
    """

    output: Path
    attempt: Attempt
    resumed: Resumed | None
    run_id: str
    identity: Identity | None


@contextmanager
def held_output(run: LoadedRunFile, warn: Callable[[str], None]) -> Iterator[Path]:
    """The run's folder, in which nobody else starts meanwhile."""
    output = make_output(run)
    with run_lock(output, warn):
        yield output


def begin(run: LoadedRunFile, output: Path, tell: Callable[[str], None], warn: Callable[[str], None]) -> Start:
    """Counts a start in the folder, which the caller holds, and finds what it goes on from. What an earlier start left
    beyond that is moved aside.

    Args:
        tell: told where the run begins; warn: told of checkpoints that are not whole.
    """
    before = was_started(output)
    replayed = run.get(DebugSection).load_rollouts
    if replayed is not None and replayed.resolve() == output.resolve():
        raise RerollError(f"debug.load_rollouts: {replayed} is output.dir itself; give another output.dir")
    if run.path is not None and run.path.resolve() == (output / RUN_FILE).resolve() and not before:
        raise RerollError(
            f"output.dir: {run.path} is where the run writes what its run file resolves to; give another folder"
        )
    if before and not run.get(LaunchSection).auto_resume:
        raise AttemptsError(
            f"output.dir: {output} holds a run already, and a run never writes over another; give another folder, or "
            "set launch.auto_resume = true to go on with it"
        )
    resumed = _resumed(run, output, before, warn)
    run_id = resumed.state.identity.run_id if resumed and resumed.same_run else secrets.token_hex(8)
    identity = _identity(run, output, run_id, resumed)
    if resumed:
        _check_identity(resumed, identity)
        for change in changed_settings(resumed.state.settings, run.to_toml()):
            tell(f"changed since the checkpoint: {change}")
    version = resumed.state.version if resumed else None
    most = run.get(LaunchSection).max_retries
    attempt = register_attempt(output, secrets.token_hex(8), version, most, warn)
    first, step = (resumed.state.collection, resumed.state.version) if resumed and resumed.same_run else (0, -1)
    moved = move_aside(output, first, step, attempt.number - 1) if before else []
    if resumed:
        tell(
            f"start {attempt.number}: goes on after {counted(resumed.state.collection, 'collection')}, at step "
            f"{resumed.state.version}, from {resumed.folder}"
        )
    elif before:
        tell(f"start {attempt.number}: begins anew, since {output} holds no whole checkpoint")
    if moved:
        tell(f"{len(moved)} folders and files of rollouts beyond it were moved to …/superseded/attempt_N beside them")
    return Start(output, attempt, resumed, run_id, identity)


def _identity(run: LoadedRunFile, output: Path, run_id: str, resumed: Resumed | None) -> Identity | None:
    if run.get(CheckpointSection).save_interval is None and resumed is None:
        return None
    run_seed, data_seed, rollout_seed = seeds(run)
    sources = run.get(DataSection).all_sources()
    task_sets = {source.name: open_task_set(run, source.task_set, output, data_seed) for source in sources}
    return Identity(
        run_id=run_id,
        seeds={"run": run_seed, "data": data_seed, "rollout": rollout_seed},
        data=data_identity(run.to_toml(), task_sets),
        model=model_identity(resolve_model(run.get(ModelSection).path)),
    )


def _check_identity(resumed: Resumed, identity: Identity | None) -> None:
    """CheckpointError if the checkpoint is of other data, another model or another seed."""
    assert identity is not None
    if problems := identity_problems(resumed.state.identity, identity):
        remedy = (
            "start a new run in another output.dir"
            if resumed.same_run
            else "leave checkpoint.load out; `reroll export` and model.path take its weights alone"
        )
        listed = "\n  ".join(problems)
        raise CheckpointError(f"{resumed.folder} is of another run:\n  {listed}\nUndo the change, or {remedy}")


def _resumed(run: LoadedRunFile, output: Path, before: bool, warn: Callable[[str], None]) -> Resumed | None:
    """This run's newest whole checkpoint, else the one that the run file names."""
    if before:
        store, damaged = CheckpointStore(output / FOLDER), []
        for folder in store.folders():
            try:
                store.check(folder)
                return Resumed(folder, read_state(folder), same_run=True)
            except CheckpointError as error:
                warn(f"passed over: {error}")
                if (folder / MANIFEST).exists():  # without one it never was a checkpoint: its save was broken off
                    damaged.append(str(error))
        if damaged:
            listed = "\n  ".join(damaged)
            raise CheckpointError(
                f"{store.root} holds checkpoints, and none of them is whole:\n  {listed}\nRepair one, or delete "
                f"{store.root} to begin anew"
            )
    load = run.get(CheckpointSection).load
    if load is None:
        return None
    found = find_checkpoint(load)
    return Resumed(found.folder, read_state(found.folder), same_run=False)


def make_output(run: LoadedRunFile) -> Path:
    """The run's folder: the given one, or a new one that no other run has."""
    given = run.get(OutputSection).dir
    try:
        if given is not None:
            given.mkdir(parents=True, exist_ok=True)
            return given
        return make_new_folder(run.get(RunSection).name)
    except (OSError, ValueError) as error:
        raise RerollError(f"output.dir: {given or OUTPUTS} cannot be used: {error}") from None
