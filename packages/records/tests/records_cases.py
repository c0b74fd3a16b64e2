"""Groups, runs and stores for tests of the records."""

import json
from dataclasses import replace
from pathlib import Path

from reroll.api import (
    Decision,
    Group,
    Node,
    Protocol,
    RenderedPrompt,
    RunContext,
    Seeds,
    Task,
    Trace,
    Verdict,
    VersionSpan,
)
from reroll_records.store.lines import complete_lines, parse
from reroll_records.writing.config import RecordsSection
from reroll_records.writing.writer import StoreWriter

PROTOCOL = Protocol(
    sampling={"temperature": 1.0, "stop": [], "stop_token_ids": []},
    max_context=64,
    harness="single_turn",
    group_filters=["zero_variance"],
    template_sha256="a" * 64,
    tokenizer_sha256="b" * 64,
    generation_config_sha256="",
    verifiers={"math": {"distribution": "x", "version": "1", "weight": 1.0, "options": {}}},
    failure_policy="exclude",
    deterministic_inference=True,
)
CHECKPOINT = {
    "config.json": {"size": 2, "mtime": 1.5, "sha256": "c" * 64},
    "model.safetensors": {"size": 9, "mtime": 2},
}
CONTEXT = RunContext(
    run_id="run",
    name="name",
    attempt="first",
    fresh=True,
    start_rollout_id=0,
    model="a/model",
    checkpoint=CHECKPOINT,
    protocol=PROTOCOL,
    seeds=Seeds(0, 0, 7),
    output=Path("nowhere"),
    data={"name": "numbers"},
)


def make_trace(task, verdict=None, *, versions=(0,), text="an answer é 🙂", stop="stop", tokens=3):
    """A response whose tokens are of these versions, one after the other; without versions nothing was sampled."""
    trace = Trace("t", task, is_completed=stop in ("stop", "length"), stop_condition=stop)
    if versions:
        spans = [
            VersionSpan(version, number * tokens, (number + 1) * tokens) for number, version in enumerate(versions)
        ]
        count = tokens * len(versions)
        finish = stop if stop != "error" else "stop"
        message = {"role": "assistant", "content": text}
        trace.nodes = [Node(None, message, True, [1] * count, [True] * count, [-1.0] * count, spans, finish, 5)]
    if verdict is not None:
        trace.verdicts = {"math": verdict} if isinstance(verdict, Verdict) else dict(verdict)
    return trace


def make_group(number=0, rewards=(0.0, 1.0), *, prompt="what?", traces=None, targets=None, attempt=0):
    """A group whose responses have these rewards, judged by `math` unless `traces` says otherwise."""
    task = Task(prompt, {"math": "4"} if targets is None else targets, "numbers", number, str(number))
    if traces is None:
        traces = [make_trace(task, Verdict(reward) if reward is not None else None) for reward in rewards]
    return Group(
        observation_id=f"observation-{number}",
        group_index=number,
        attempt=attempt,
        rollout_id=number // 2,
        task=task,
        rendered=RenderedPrompt(f"<{prompt}>", (1, 2, 3), "a" * 64, "b" * 64),
        traces=traces,
        seeds=[100 * number + place for place in range(len(traces))],
        verifier_weights={"math": 2.0},
        rewards=list(rewards),
    )


PASSED = Decision("passed")
FILTERED = Decision("filtered", "zero_variance_0")


def open_writer(root, context=CONTEXT, **settings):
    writer = StoreWriter(RecordsSection(enabled=True, root=root, **settings))
    writer.open(context)
    return writer


def write(root, groups, context=CONTEXT, decisions=None, **settings):
    """One attempt with these groups, ended in order; gives its folder."""
    writer = open_writer(root, context, **settings)
    for number, group in enumerate(groups):
        writer.group_scored(group.observation_id, group, decisions[number] if decisions else PASSED)
    writer.close(30)
    return run_folder(root, context)


def run_folder(root, context=CONTEXT):
    (found,) = Path(root).glob(f"*/{context.name}-{context.run_id}")
    return found


def rows_of(folder, attempt="first"):
    return [parse(line) for line in complete_lines(folder / f"records-{attempt}.jsonl")]


def manifest_of(folder, attempt="first"):
    return json.loads((folder / f"manifest-{attempt}.json").read_text())


def other_run(name, **changes):
    """The context of another run, with an attempt of its own."""
    return replace(CONTEXT, run_id=name, attempt=f"of-{name}", **changes)
