"""What a folder of saved rollouts offers to derivations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, cast

from pydantic import ValidationError

from reroll.api import Anchor, Derivation, Message, RerollError
from reroll.config.problems import from_validation
from reroll.plugins import installed_plugins
from reroll.replay.buffer import ReplayBuffer
from reroll.replay.calls import check
from reroll.replay.folders import rollouts_folder
from reroll.replay.steps import Counts, Handle


class Wanted(NamedTuple):
    """What is asked for; see `reroll replay inspect`."""

    folder: Path
    derivation: str | None
    options: dict[str, Any]
    source_envs: list[str] | None
    online: bool
    capacity: int
    candidate: int


@dataclass(frozen=True)
class Offer:
    """What one derivation could draw. `mean_reward` is of its candidates' rollouts; None where none was scored."""

    name: str
    candidates: int
    offered: int
    mean_reward: float | None


@dataclass(frozen=True)
class ShownPrompt:
    """One derived prompt; `where` says the file, the step and the rollout that it is from."""

    derivation: str
    index: int
    where: str
    messages: list[Message]


@dataclass(frozen=True)
class Inspection:
    """`sources` holds the name, usable rollouts and mean reward of each data source."""

    counts: Counts
    sources: list[tuple[str, int, float | None]]
    derivations: list[Offer]
    prompt: ShownPrompt | None
    why_no_prompt: str

    def to_json(self) -> dict[str, Any]:
        # `asdict` cannot copy a Counter.
        counts = {**vars(self.counts), "env_names": dict(self.counts.env_names)}
        return {
            "counts": counts,
            "sources": [{"name": name, "usable": usable, "mean_reward": mean} for name, usable, mean in self.sources],
            "derivations": [asdict(offer) for offer in self.derivations],
            "prompt": asdict(self.prompt) if self.prompt else None,
        }


class _Everything(Derivation):
    """Every rollout once: for counting."""

    name = "everything"

    def prompt(self, record: Any, anchor: Anchor) -> list[Message]:
        raise AssertionError("nothing is derived")


def inspect_folder(wanted: Wanted, warn: Callable[[str], None]) -> Inspection:
    """Reads the folder once for each installed derivation; RerollError for one that does not exist."""
    folder = rollouts_folder(wanted.folder)
    if not folder.is_dir():
        raise RerollError(f"{wanted.folder} holds no rollouts: give a run's folder, or one with step_N/ in it")
    plugins = installed_plugins()
    installed = sorted(plugins.all("derivations"))
    if wanted.derivation is not None:
        plugins.get("derivations", wanted.derivation)  # says what to install
    elif wanted.options:
        raise RerollError("--option needs --derivation: it says whose option it is")
    names = [wanted.derivation] if wanted.derivation else installed
    everything = _buffer(wanted, folder, _Everything(), warn)
    _check(wanted, folder, everything.describe())
    offers: list[Offer] = []
    why = "nothing is offered" if names else "no derivation is installed: pip install reroll-replay-recheck, for one"
    prompt: ShownPrompt | None = None
    for name in names:
        derivation = _made(cast(type[Derivation], plugins.get("derivations", name).cls), wanted)
        buffer = _buffer(wanted, folder, derivation, lambda text: None)
        handles = _handles(buffer)
        offers.append(Offer(name, buffer.describe().candidates, len(buffer), _mean(handles)))
        if prompt is None and handles:
            try:
                prompt = _prompt(derivation, buffer, wanted.candidate)
            except RerollError as error:
                if wanted.derivation:
                    raise
                why = str(error)
    return Inspection(everything.describe(), _sources(_handles(everything)), offers, prompt, why)


def _check(wanted: Wanted, folder: Path, found: Counts) -> None:
    """RerollError where there is nothing to look at, and why."""
    if not found.steps:
        which = "whole steps" if wanted.online else "steps"
        raise RerollError(f"{folder} holds no {which}: give a run's folder, or one with step_N/ in it")
    for name in wanted.source_envs or ():
        if name not in found.env_names:
            there = ", ".join(sorted(filter(None, found.env_names))) or "no name at all"
            raise RerollError(f"--source-env {name}: no rollout is of a data source of that name; there is: {there}")


def _made(cls: type[Derivation], wanted: Wanted) -> Derivation:
    try:
        return cls(cls.Config(**(wanted.options if wanted.derivation else {})))
    except ValidationError as error:
        raise RerollError("\n".join(str(problem) for problem in from_validation(error, cls.name, cls.Config))) from None


def _buffer(wanted: Wanted, folder: Path, derivation: Derivation, warn: Callable[[str], None]) -> ReplayBuffer:
    return ReplayBuffer(
        folder,
        derivation,
        source_envs=wanted.source_envs,
        capacity=wanted.capacity,
        online=wanted.online,
        seed=0,
        warn=warn,
    )


def _handles(buffer: ReplayBuffer) -> list[Handle]:
    return [handle for index in range(len(buffer)) if (handle := buffer.pick(index)) is not None]


def _sources(handles: Iterable[Handle]) -> list[tuple[str, int, float | None]]:
    found: dict[str, list[Handle]] = {}
    for handle in handles:
        found.setdefault(handle.env_name or "", []).append(handle)
    return [(name, len(own), _mean(own)) for name, own in sorted(found.items())]


def _mean(handles: Iterable[Handle]) -> float | None:
    rewards = [handle.reward for handle in handles if handle.reward is not None]
    return fmean(rewards) if rewards else None


def _prompt(derivation: Derivation, buffer: ReplayBuffer, index: int) -> ShownPrompt:
    if index >= len(buffer):
        raise RerollError(f"--index {index}: {derivation.name!r} has {len(buffer)} candidates, counted from 0")
    handle = buffer.pick(index)
    record = buffer.read(handle) if handle is not None else None
    if handle is None or record is None:
        raise RerollError(f"candidate {index} has gone while it was looked at; try again")
    try:
        messages = derivation.prompt(record, Anchor(handle.node))
    except Exception as error:  # a derivation is anybody's code
        raise RerollError(
            f"{derivation.name!r} failed on rollout {handle.source_id}: {type(error).__name__}: {error}"
        ) from error
    if why := check(messages):
        raise RerollError(f"{derivation.name!r} makes a prompt of rollout {handle.source_id} that is refused: {why}")
    return ShownPrompt(derivation.name, index, f"{handle.path}, rollout {handle.source_id}", messages)
