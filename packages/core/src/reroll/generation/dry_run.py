"""What a generation would do: `reroll generate --dry-run`. Reads, and starts nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from reroll.config import LoadedRunFile
from reroll.generation.assembly import Measured, measure
from reroll.generation.config import GenerationSection
from reroll.generation.entries import Entry
from reroll.generation.program import index_path, policy_warnings, results_folder
from reroll.generation.protocol import ResultsError, Shard, check_results
from reroll.generation.states import TrialStates
from reroll.generation.store import JOURNAL, read_journal, read_trace
from reroll.serving.config import ServingSection

RENDERED = 20_000
"""Prompts that are rendered to see which are too long."""
LAST = 1000
"""Attempts that the speed is told from."""


class Done(NamedTuple):
    """What an earlier start left.

    Attributes:
        tokens_per_second: None where nothing tells it.
    """

    states: TrialStates
    judged: int
    tokens: int
    tokens_per_second: float | None


def dry_run(run: LoadedRunFile, shard: Shard | None) -> dict[str, Any]:
    """Shards, counts, what would be skipped, and an estimate; tokens are sampled ones, times in seconds."""
    warned: list[str] = []
    measured, folder = measure(run, shard, warned.append), results_folder(run, shard)
    protocol = measured.protocol
    if folder.exists():
        check_results(folder, protocol)
    done = _done(folder, measured, warned.append)
    counts = done.states.count(protocol.positions())
    rendered, too_long = _too_long(measured, done.states)
    left = counts["left"] - too_long * protocol.n_trials
    longest = max(part.plan.sampling.max_new_tokens for part in measured.tasks.parts)
    tokens = round(left * done.tokens / done.judged) if done.judged else None
    rate = done.tokens_per_second
    return {
        "results": str(folder),
        "index": str(index_path(run, shard)),
        "engines": run.get(ServingSection).num_engines,
        "concurrent": run.get(GenerationSection).n_concurrent,
        "tasks_in_all": protocol.tasks,
        "shard": None if shard is None else f"{shard[0]}/{shard[1]}",
        "tasks": len(protocol.positions()),
        "trials_a_task": protocol.n_trials,
        "finished": {name: counts[name] for name in ("passed", "failed", "skipped")},
        "errors": counts["error"],
        "left": left,
        "skipped": {"too_long": too_long, "of_rendered": rendered, "prompt_filters": list(measured.filters)},
        "estimate": {
            "tokens": tokens,
            "tokens_at_most": left * longest,
            "seconds": tokens / rate if rate and tokens is not None else None,
        },
        "warnings": [*warned, *policy_warnings(run)],
    }


def _done(folder: Path, measured: Measured, warn: Callable[[str], None]) -> Done:
    states = TrialStates(measured.protocol.tasks, measured.protocol.n_trials)
    last: deque[Entry] = deque(maxlen=LAST)
    judged = tokens = 0
    if (folder / JOURNAL).exists():
        for entry in read_journal(folder, warn):
            states.note(entry)
            if entry.judged:
                judged, tokens = judged + 1, tokens + entry.tokens
                last.append(entry)
    return Done(states, judged, tokens, _speed(folder, list(last), warn))


def _speed(folder: Path, entries: list[Entry], warn: Callable[[str], None]) -> float | None:
    """Sampled tokens per second of attempts that were made one after another and together."""
    tokens, begins, ends = 0, list[float](), list[float]()
    for entry in entries:
        try:
            timing = (read_trace(folder, entry) or {}).get("timing") or {}
        except ResultsError as error:
            warn(str(error))
            continue
        if "queued" in timing and "end" in timing:
            tokens += entry.tokens
            begins.append(timing["queued"])
            ends.append(timing["end"])
    seconds = max(ends) - min(begins) if ends else 0.0
    return tokens / seconds if seconds > 0 else None


def _too_long(measured: Measured, states: TrialStates) -> tuple[int, int]:
    """How many prompts of unfinished tasks were rendered, and how many of them are too long."""
    rendered = found = 0
    for position in measured.protocol.positions():
        part = measured.tasks.part(position)
        if part.task_set.lazy or not states.missing(position):
            continue
        if rendered == RENDERED:
            break
        rendered += 1
        found += len(measured.renderer.render(part.task(position)).token_ids) > part.max_prompt_len
    return rendered, found


def as_text(found: dict[str, Any]) -> str:
    """What `dry_run` found, for a person."""
    shard = f"shard {found['shard']} of the {found['tasks_in_all']} tasks: " if found["shard"] else ""
    finished = ", ".join(f"{count} {name}" for name, count in found["finished"].items())
    skipped, estimate = found["skipped"], found["estimate"]
    names = ", ".join(skipped["prompt_filters"])
    filters = f"; prompt filters are asked then: {names}" if names else ""
    tokens, seconds = estimate["tokens"], estimate["seconds"]
    lines = [
        f"tasks:    {shard}{found['tasks']}, {found['trials_a_task']} trials each",
        f"finished: {finished}; {found['errors']} ended as errors and are tried again unless they are final",
        f"skipped:  {skipped['too_long']} of {skipped['of_rendered']} prompts that are left are too long{filters}",
        f"left:     {found['left']} trials, {found['concurrent']} at a time on {found['engines']} engines",
        f"tokens:   {'about ' + format(tokens, ',') if tokens is not None else 'unknown before the first attempts'}, "
        f"at most {estimate['tokens_at_most']:,}",
        f"time:     {f'about {seconds:,.0f} s' if seconds is not None else 'unknown before the first attempts'}",
        f"results:  {found['results']}",
        f"index:    {found['index']}",
    ]
    return "\n".join([*lines, *(f"warning: {text}" for text in found["warnings"]), "nothing was started"])
