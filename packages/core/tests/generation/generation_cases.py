"""Attempts to keep, and what a results folder is found to hold: for tests of what writes and mends it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from results_folders import entry_of, protocol_of, trace_of

from reroll.api import Decision, Group, RenderedPrompt
from reroll.generation.mending import mend
from reroll.generation.states import TrialStates
from reroll.generation.store import JOURNAL, TRACE, TRIALS, read_journal, read_trace, traces_path
from reroll.generation.writing import Finished, ResultsWriter
from reroll.traces.saved import SavedGroup

PROTOCOL = protocol_of(tasks=4, n_trials=3)
PAIRS = [(position, trial) for position in range(4) for trial in range(3)]


def finished_of(position, trial, outcome="passed", protocol=PROTOCOL, info=None, **changes):
    """An attempt to keep, or a skipped task."""
    entry = entry_of(protocol, position, trial, outcome, **changes)
    if outcome == "skipped":
        return Finished(entry, None)
    trace = trace_of(entry)
    trace.info |= info or {}
    prompt = RenderedPrompt("q", (1, 2, 3), "", "")
    group = Group(
        f"o{position}-{trial}", position, 0, 0, trace.task, prompt, [trace], [entry.seed], {"v": 1.0}, [entry.reward],
        source="generate", env_name=entry.source,
    )  # fmt: skip
    return Finished(entry, SavedGroup(group, Decision("passed")))


def outcome_of(position, trial):
    """Some outcome, always the same one."""
    return ("passed", "failed", "passed", "error")[(position * 5 + trial * 3) % 4]


def write(folder, finished, layout="journal"):
    """Writes attempts one after another."""

    async def main():
        writer = ResultsWriter(folder, layout)
        try:
            for item in finished:
                await writer.add([item])
        finally:
            writer.close()

    asyncio.run(main())


def stamps(folder):
    """Stamp of every whole trace that is on disk, read without a journal."""
    found = []
    path = traces_path(folder)
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    trials = sorted((folder / TRIALS).glob(f"*/*/{TRACE}")) if (folder / TRIALS).exists() else []
    for text in [*lines, *(trial.read_bytes() for trial in trials)]:
        try:
            found.append(json.loads(text)["info"]["reroll"]["generation"])
        except ValueError:
            continue
    return found


def told(stamp):
    return stamp["position"], stamp["trial"], stamp["outcome"], stamp["seed"]


def files(folder):
    """Every file with its bytes."""
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def check_mended(folder, protocol=PROTOCOL):
    """Mends the folder, checks all that must hold of it afterwards, and gives its entries and how trials stand."""
    states, noted = TrialStates(protocol.tasks, protocol.n_trials), []

    def note(entry):
        noted.append(entry)
        states.note(entry)

    mend(folder, note, lambda text: None)
    warnings = []
    entries = list(read_journal(folder, warnings.append)) if (folder / JOURNAL).exists() else []
    assert warnings == []
    kept = [entry for entry in entries if entry.outcome != "skipped"]
    for entry in kept:
        stamp = read_trace(folder, entry)["info"]["reroll"]["generation"]
        if entry.final:
            assert stamp == entry.stamp()
    by_place = Counter(entry.place for entry in kept if entry.final)
    assert not by_place or max(by_place.values()) == 1, "each trace counts once"
    on_disk = Counter(map(told, stamps(folder)))
    counted = Counter(told(entry.stamp()) for entry in kept)
    assert counted.keys() >= on_disk.keys(), "what is on disk is not lost"
    assert {key for key in counted if key[2] != "error"} <= on_disk.keys(), "what is not on disk does not count"
    assert set(map(str, entries)) <= set(map(str, noted))
    for position, trial in {(entry.position, entry.trial) for entry in kept if entry.final}:
        assert trial not in states.missing(position)
    before = files(folder)
    again = TrialStates(protocol.tasks, protocol.n_trials)
    mend(folder, again.note, warnings.append)
    assert warnings == []
    assert files(folder) == before, "a second time changes nothing"
    positions = range(protocol.tasks)
    assert again.count(positions) == states.count(positions)
    return entries, states


def finish(folder, states, layout="journal", protocol=PROTOCOL):
    """Writes what is missing, and checks that each attempt is there once then."""
    left = [(position, trial) for position in range(protocol.tasks) for trial in states.missing(position)]
    write(folder, [finished_of(*pair, "passed", protocol) for pair in left], layout)
    entries, states = check_mended(folder, protocol)
    final = Counter((entry.position, entry.trial) for entry in entries if entry.final and entry.outcome != "skipped")
    skipped = {entry.position for entry in entries if entry.outcome == "skipped"}
    asked = {(position, trial) for position in range(protocol.tasks) for trial in range(protocol.n_trials)}
    assert {pair for pair in asked if pair[0] not in skipped} <= final.keys()
    assert not final or max(final.values()) == 1
    assert states.count(range(protocol.tasks))["left"] == 0
