"""Results folders as a generation leaves them: the trace first, then the line of the journal."""

import json
from dataclasses import replace

from reroll.api import Decision, Group, Node, RenderedPrompt, Task, Trace, Verdict, VersionSpan
from reroll.generation.entries import Entry
from reroll.generation.protocol import GenerationProtocol, SourceTasks
from reroll.generation.store import JOURNAL, TRACE, traces_path
from reroll.rollouts.seeds import response_seed
from reroll.traces.saved import SavedGroup, trace_record

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def protocol_of(tasks=6, n_trials=3, **changes):
    half = tasks // 2
    sources = [
        SourceTasks(name="main", task_set={"name": "addition", "split": "train"}, size=half, fingerprint="a"),
        SourceTasks(name="more", task_set={"name": "file", "path": "/d/t.jsonl"}, size=tasks - half, fingerprint=None),
    ]
    given = {"name": "measured", "how": {"temperature": 1.0}, "model": {"m": {"size": 1}}, "seed": 0}
    return GenerationProtocol(**{"run_id": "r", **given, "sources": sources, "n_trials": n_trials, **changes})


def entry_of(protocol, position, trial, outcome="passed", **changes):
    half = protocol.sources[0].size
    source, row = ("main", position) if position < half else ("more", position - half)
    judged = outcome in ("passed", "failed")
    entry = Entry(
        position=position,
        trial=trial,
        outcome=outcome,
        final=outcome != "error",
        reward=float(outcome == "passed") if judged else None,
        prompt_tokens=3,
        tokens=2 if outcome != "skipped" else 0,
        truncated=False,
        seed=response_seed(protocol.seed, f"set-{source}:{source}-{row}", trial, 0),
        source=source,
        source_dataset=f"set-{source}",
        source_row=row,
        prepared_sample_id=f"{source}-{row}",
        detail="" if judged else f"why {outcome}",
    )
    return replace(entry, **changes)


def trace_of(entry, messages=None, tools=(), answer=None):
    """A trace of one answer, or of a conversation whose assistant's messages were sampled."""
    said = f"answer {entry.trial} to {entry.prepared_sample_id}" if answer is None else answer
    messages = messages or [{"role": "user", "content": "q"}, {"role": "assistant", "content": said}]
    first = next(index for index, message in enumerate(messages) if message["role"] == "assistant")
    task = Task(
        messages[:first], {"v": "1"}, entry.source_dataset, entry.source_row, entry.prepared_sample_id, list(tools)
    )
    nodes = []
    for index, message in enumerate(messages):
        sampled = message["role"] == "assistant"
        logprobs, spans = ([-0.5, -0.5], [VersionSpan(0, 0, 2)]) if sampled else ([], [])
        end = ("length" if entry.truncated else "stop") if sampled else None
        parent = index - 1 if index else None
        nodes.append(Node(parent, message, sampled, [4, 5], [sampled] * 2, logprobs, spans, end))
    found = Trace(f"t{entry.position}-{entry.trial}", task, nodes, is_completed=True, stop_condition="stop")
    if entry.judged:
        found.rewards, found.verdicts = {"v": entry.reward}, {"v": Verdict(entry.reward)}
    found.info["generation"] = "the harness's own"
    return found


def record_of(entry, trace=None):
    """What is saved of an attempt: a group of one, with the entry in `info.reroll.generation`."""
    trace = trace or trace_of(entry)
    prompt = RenderedPrompt("q", (1, 2, 3), "", "")
    group = Group(
        f"o{entry.position}-{entry.trial}", entry.position, entry.trial, 0, trace.task, prompt, [trace],
        [entry.seed], {"v": 1.0}, [entry.reward], env_name=entry.source,
    )  # fmt: skip
    record = trace_record(SavedGroup(group, Decision("passed"), "consumed"), 0)
    record["info"]["reroll"]["generation"] = entry.stamp()
    return record


class Results:
    """A folder of one shard, written to as by a generation."""

    def __init__(self, folder, protocol, layout="journal"):
        self.folder, self.protocol, self.layout = folder, protocol, layout
        folder.mkdir(parents=True, exist_ok=True)
        traces_path(folder).parent.mkdir(parents=True, exist_ok=True)
        protocol.write(folder)
        (folder / JOURNAL).touch()
        (folder / "run.toml").write_text('[model]\npath = "builtin:tiny-math"\n')

    def add(self, entry, trace=None, journal=True):
        """Gives the entry with its place; without `journal`, as where the process was killed in between."""
        if entry.outcome != "skipped":
            line = json.dumps(record_of(entry, trace)).encode() + b"\n"
            if self.layout == "tree":
                place = f"tasks/{entry.prepared_sample_id}/{entry.trial}"
                (self.folder / place).mkdir(parents=True, exist_ok=True)
                (self.folder / place / TRACE).write_bytes(line)
            else:
                with traces_path(self.folder).open("ab") as file:
                    place = file.tell(), len(line)
                    file.write(line)
            entry = entry.at(place)
        if journal:
            with (self.folder / JOURNAL).open("ab") as file:
                file.write(entry.line())
        return entry

    def add_all(self, entries):
        for entry in entries:
            self.add(entry)
        return self


def whole_run(protocol):
    """Entries of an unbroken run: position p passes p of its trials, the last task is skipped."""
    for position in protocol.positions():
        if position == protocol.tasks - 1:
            yield entry_of(protocol, position, 0, "skipped")
            continue
        for trial in range(protocol.n_trials):
            yield entry_of(
                protocol, position, trial, "passed" if trial < position % (protocol.n_trials + 1) else "failed"
            )
