"""Inference records of whole runs: recording changes nothing, every state occurs, and what was recorded is skipped."""

import asyncio
import json
import logging
import os
import re
import shutil
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import record_strangers
from driving import RUN, run_and_watch, session_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from killing import kill_when, run_to_end, whole
from simulated_parts import MODES, Recorder
from simulation import Scenario, simulate
from written_store import snippet_rewards

from reroll.api import RerollError
from reroll.models.files import resolve_model
from reroll_records.selection.selecting import Rule, select, write_table
from reroll_records.store.layout import scan
from reroll_records.store.lines import complete_lines, parse
from reroll_records.writing.config import RecordsSection
from reroll_records.writing.writer import StoreWriter

ASYNC = ["async.fully_async=true", "async.max_weight_staleness=1", "serving.publication_mode='refresh'"]


def recording(root, **settings):
    class Recording(StoreWriter):
        @classmethod
        def from_run(cls, run):
            return cls(RecordsSection(enabled=True, root=root, **settings))

    return Recording


def rows_of(root):
    return [parse(line) for path in sorted(Path(root).glob("*/*/records-*.jsonl")) for line in complete_lines(path)]


def groups_of(root):
    return [row for row in rows_of(root) if row["kind"] == "group"]


SCENARIOS = st.builds(
    Scenario,
    seed=st.integers(0, 2**32),
    collections=st.integers(1, 4),
    batch=st.integers(1, 3),
    bound=st.sampled_from([1, 2, 3]),
    retry=st.booleans(),
    engines=st.integers(1, 2),
    mode=st.sampled_from(sorted(set(MODES) - {"careless"})),
    unscored=st.sampled_from([0.0, 0.3]),
    aborted=st.sampled_from([0.0, 0.1]),
    refused=st.sampled_from([0.0, 0.1]),
    slow=st.sampled_from([0.0, 0.1]),
    losses=st.sampled_from([0.0, 0.01]),
)


def happened(run):
    """Everything that two equal runs share."""
    told = [(kind, identity, *rest) for kind, identity, *rest in run.heard]
    names = {identity: number for number, identity in enumerate(dict.fromkeys(item[1] for item in told))}
    heard = [(kind, names[identity], rest[-1]) for kind, identity, *rest in told]
    return run.events, run.trained, run.published, repr(run.error), heard


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scenario=SCENARIOS)
def test_recording_never_changes_admission_filtering_or_training(scenario, tmp_path):
    """The same schedule, whether nobody records, the store takes rows, or it cannot be opened."""
    logging.getLogger("reroll").disabled = True
    try:
        alone = simulate(scenario)
        recorded = simulate(scenario, (recording(tmp_path / "store", responses="all"), Recorder))
        (tmp_path / "file").touch()
        failing = simulate(scenario, (recording(tmp_path / "file" / "store"), Recorder))
    finally:
        logging.getLogger("reroll").disabled = False
    assert happened(recorded) == happened(alone) == happened(failing)


def test_what_simulated_runs_record_is_what_happened(tmp_path):
    """Every group that reaches the buffer is recorded, in every publication mode; what the homogeneity check returns
    before is not, and neither are evaluations."""
    for number, mode in enumerate(sorted(set(MODES) - {"careless"})):
        root = tmp_path / mode
        scenario = Scenario(
            seed=number,
            collections=12,
            batch=4,
            siblings=4,
            bound=1,
            mode=mode,
            engines=2,
            slow=0.2,
            eval_tasks=3,
            tasks=40,
        )
        run = simulate(scenario, (recording(root), Recorder))
        assert run.error is None
        run.session.events.close()
        rows = rows_of(root)
        scored = {
            identity: (group, decision)
            for kind, identity, *rest in run.heard
            if kind == "scored"
            for group, decision in [rest]
        }
        groups = {row["observation_id"]: row for row in rows if row["kind"] == "group"}
        assert set(groups) == set(scored)
        for identity, (group, decision) in scored.items():
            assert [item["reward"] for item in groups[identity]["responses"]] == group.rewards
            assert groups[identity]["filter_decision"] == decision.outcome
        left = {
            (identity, how, staleness)
            for kind, identity, *rest in run.heard
            if kind == "left"
            for how, staleness in [rest]
            if how in ("consumed", "expired")
        }
        assert {
            (r["observation_id"], r["disposition"], r["staleness"]) for r in rows if r["kind"] == "disposition"
        } == left
        returned = run.session.events.ledger.summary()["returned"]
        if mode == "restart":
            assert returned, "the case must occur, or this test shows nothing"
        assert len(run.evaluated) and not any(row["source_row"] >= 1_000_000 for row in groups.values())


FAILURES = ["timeout", "rejected", "service_error", "judge_error", "unknown"]


def moody_run(folder, name, moods, *overrides):
    """A run on tasks of these moods, recorded in the folder's store."""
    data, path = folder / f"{name}.jsonl", folder / f"{name}.toml"
    rows = [
        {"messages": [{"role": "user", "content": f"{number} + {number % 7} ="}], "targets": {"moody": mood}}
        for number, mood in enumerate(moods)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = f"task_set = {{ name = 'file', path = '{data}' }}\nverifiers = ['moody']"
    path.write_text(re.sub(r"task_set = .*\nverifiers = .*", lambda _: lines, RUN))
    run_and_watch(
        path,
        folder / name,
        *ASYNC,
        "rollout.max_empty_collections=100",
        "rollout.temperature=3.0",
        "rollout.scoring={deadline_seconds=4.0}",
        "records.enabled=true",
        f"records.root={str(folder / 'store')!r}",
        "records.responses='all'",
        *overrides,
        plugin=record_strangers,
    )


@pytest.fixture(scope="module")
def eventful(tmp_path_factory):
    """The store of two real runs in which everything happens that can be recorded. In the second, one response at a
    time is drawn, so that publications come in the middle of some."""
    folder = tmp_path_factory.mktemp("eventful")
    moods = ["ok"] * 18 + ["completed"] * 4 + ["slow"] * 4 + FAILURES * 2
    moody_run(folder, "failing", moods, "rollout.num_rollout=12", "async.unused_samples_handler='drop'")
    one_by_one = "serving.engine={name='local', max_running_requests=1}"
    moody_run(folder, "mixing", ["ok"] * 40, "rollout.num_rollout=6", "rollout.rollout_max_response_len=64", one_by_one)
    return folder / "store"


def test_every_record_state_occurs_in_a_real_run(eventful):
    rows = rows_of(eventful)
    responses = [item for row in rows if row["kind"] == "group" for item in row["responses"]]
    states = Counter(state for item in responses for state in item["validity"]["components"].values())
    assert set(states) == {"ok", "completed", "timeout", "rejected", "service_error", "judge_error", "unknown"}
    assert {item["validity"]["valid"] for item in responses} == {True, False, None}
    assert {item["policy_scope"] for item in responses} == {"start_checkpoint", "run_version", "mixed"}
    assert {True, False} == {item["truncated"] for item in responses}
    decisions = Counter(row["filter_decision"] for row in rows if row["kind"] == "group")
    assert set(decisions) == {"passed", "filtered", "aborted"}
    assert {row["disposition"] for row in rows if row["kind"] == "disposition"} == {"consumed", "expired"}
    passed = {row["observation_id"] for row in rows if row.get("filter_decision") == "passed"}
    assert {row["observation_id"] for row in rows if row["kind"] == "disposition"} <= passed
    assert all(item["seed"] is not None and item["response"] is not None for item in responses)


def test_the_specifications_reading_snippet_works_as_it_stands(eventful):
    (lineage,) = eventful.iterdir()
    expected = defaultdict(list)
    for row in groups_of(eventful):
        for item in row["responses"]:
            if item["validity"]["valid"] is True and item["policy_scope"] == "start_checkpoint":
                expected[row["input_key"]].append(item["reward"])
    assert snippet_rewards(lineage) == expected and expected


# Selection: evidence of real runs, then one that skips by it

ADDITION = RUN.replace("high = 40", "high = 15, size = 150").replace("[rollout]", "[rollout]\ntemperature = 0.7")
EVIDENCE = [
    "rollout.num_rollout=1",
    "rollout.rollout_batch_size=150",
    "rollout.n_samples_per_prompt=8",
    "rollout.max_empty_collections=9",
]


@pytest.fixture(scope="module")
def selected(tmp_path_factory):
    """Store and table of three runs: one whose weights as good as do not change, and two that train. Each has a rollout
    seed of its own."""
    folder = tmp_path_factory.mktemp("selected")
    path = folder / "run.toml"
    path.write_text(ADDITION)
    root = folder / "store"
    for number, extra in enumerate((["trainer.lr=1e-12"], [], [])):
        records = ["records.enabled=true", f"records.root={str(root)!r}", f"rollout.seed={number}"]
        run_and_watch(path, folder / f"evidence-{number}", *ASYNC, *EVIDENCE, *records, *extra)
    built = select(root, Rule(skip=("zero_variance",)), processes=1)
    write_table(folder / "table.json", built)
    return root, folder / "table.json", built


def test_evidence_of_the_starting_checkpoint_is_pooled_over_runs(selected):
    root, _, built = selected
    assert len(list(root.iterdir())) == 1, "the runs share a lineage"
    assert len(built.content["excluded"]) >= 20
    rewards = defaultdict(list)
    for row in groups_of(root):
        rewards[row["input_key"]] += [item["reward"] for item in row["responses"]]
    for item in built.content["excluded"]:
        assert len(set(rewards[item["input_key"]])) == 1 and len(rewards[item["input_key"]]) == 24
        assert (item["observations"], item["units"]) == (24, 3)
    varied = {key for key, values in rewards.items() if len(set(values)) > 1}
    assert varied and not varied & {item["input_key"] for item in built.content["excluded"]}


def pinned(table, built):
    return [f"selection.table={str(table)!r}", f"selection.sha256={built.sha256!r}"]


def test_a_run_with_a_pinned_table_never_generates_for_an_excluded_prompt(selected, run_file, tmp_path):
    _, table, built = selected
    root = tmp_path / "store"
    records = ["records.enabled=true", f"records.root={str(root)!r}"]
    one_pass = [
        "data.epochs=1",
        "rollout.num_rollout=100",
        "rollout.rollout_batch_size=10",
        "rollout.max_empty_collections=100",
    ]
    size = ["rollout.n_samples_per_prompt=8", "rollout.seed=9"]
    seen = run_and_watch(
        run_file(ADDITION), tmp_path / "out", *ASYNC, *one_pass, *size, *records, *pinned(table, built)
    )
    excluded = {item["input_key"] for item in built.content["excluded"]}
    generated = {row["input_key"] for row in groups_of(root)}
    assert len(generated) == 150 - len(excluded) and not generated & excluded
    assert seen.summary.skipped == {"selection: zero_variance (regex)": len(excluded)}, "skips are told by domain"
    assert seen.summary.ledger["dispatched"] == len(generated) + seen.summary.ledger["returned"]
    (attempt,) = scan(root).attempts
    assert attempt.manifest["selection_sha256"] == built.sha256
    log = (tmp_path / "out" / "run.log").read_text() if (tmp_path / "out" / "run.log").exists() else ""
    assert "Traceback" not in log


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_skips(selected, run_file, tmp_path):
    _, table, built = selected
    root, output = tmp_path / "store", tmp_path / "out"
    options = [
        *ASYNC,
        "data.epochs=1",
        "rollout.num_rollout=100",
        "rollout.rollout_batch_size=10",
        "rollout.n_samples_per_prompt=8",
        "rollout.max_empty_collections=100",
        "checkpoint.save_interval=2",
        "launch.auto_resume=true",
        "records.enabled=true",
        f"records.root={str(root)!r}",
        *pinned(table, built),
    ]
    path = run_file(ADDITION)
    assert kill_when(path, output, lambda: whole(output, 2), *options)
    run_to_end(path, output, *options)
    excluded = {item["input_key"] for item in built.content["excluded"]}
    generated = Counter(row["input_key"] for row in groups_of(root))
    assert len(generated) == 150 - len(excluded) and not set(generated) & excluded
    summary = json.loads((output / "summary.json").read_text())
    assert summary["skipped"] == {"selection: zero_variance (regex)": len(excluded)}
    attempts = scan(root).attempts
    assert len(attempts) == 2 and len({attempt.run_id for attempt in attempts}) == 1
    assert {attempt.manifest["run"]["fresh"] for attempt in attempts} == {True, False}
    assert sum(attempt.manifest["run"]["loaded_checkpoint"] is not None for attempt in attempts) == 1


def refusal(path, output, *overrides):
    async def body():
        async with session_of(path, output, *overrides):
            raise AssertionError("the run was started")

    with pytest.raises(RerollError) as caught:
        asyncio.run(body())
    return str(caught.value)


def test_a_changed_table_checkpoint_template_or_sampling_setting_is_refused_by_name(selected, run_file, tmp_path):
    _, table, built = selected
    path = run_file(ADDITION)
    good = [*ASYNC, "rollout.n_samples_per_prompt=8", *pinned(table, built)]
    changed = tmp_path / "table.json"
    changed.write_bytes(table.read_bytes().replace(b'"reward": 1.0', b'"reward": 0.0', 1))
    told = refusal(path, tmp_path / "a", *good, f"selection.table={str(changed)!r}")
    assert "SHA-256" in told and built.sha256 in told
    told = refusal(path, tmp_path / "b", *good, "rollout.temperature=0.5")
    assert "sampling.temperature: 0.7 there, 0.5 in this run" in told
    told = refusal(path, tmp_path / "c", *good, "rollout.stop=['x']")
    assert "sampling.stop" in told
    template = tmp_path / "template.jinja"
    template.write_text("{% for message in messages %}{{ message['content'] }}{% endfor %}=")
    told = refusal(path, tmp_path / "d", *good, f"model.chat_template={str(template)!r}")
    assert "template_sha256" in told and "sampling" not in told
    model = tmp_path / "model"
    shutil.copytree(resolve_model("builtin:tiny-math").directory, model)
    os.utime(model / "model.safetensors", (1, 1))
    told = refusal(path, tmp_path / "e", *good, f"model.path={str(model)!r}")
    assert "model.safetensors.mtime" in told and "starting checkpoint" in told and "sampling" not in told


def test_a_table_that_excludes_a_whole_data_set_fails_the_run(selected, run_file, tmp_path):
    _, _, built = selected
    root, _, _ = selected
    rows = {item["source_row"] for item in built.content["excluded"]}
    data = tmp_path / "tasks.jsonl"
    tasks = driving_tasks(rows)
    data.write_text("".join(json.dumps(row) + "\n" for row in tasks))
    path = run_file(ADDITION)
    everything = select(root, Rule(skip=("zero_variance",), readmit_fraction=0.0), processes=1)
    write_table(tmp_path / "everything.json", everything)
    settings = [*ASYNC, "rollout.n_samples_per_prompt=8", *pinned(tmp_path / "everything.json", everything)]
    source = f"data.task_set={{name='file', path={str(data)!r}}}"
    with pytest.raises(
        RerollError, match=rf"all of them are skipped \(selection: zero_variance \(regex\): {len(tasks)}\)"
    ):
        run_and_watch(path, tmp_path / "out", *settings, source)


def driving_tasks(rows):
    """The excluded tasks as a file of prompts: other positions, the same input keys."""
    from reroll.tasks.arithmetic import Addition, ArithmeticConfig

    tasks = Addition(ArithmeticConfig(high=15, size=150, verifier="regex"))
    return [
        {"messages": task.prompt, "targets": task.targets}
        for task in (tasks.task(index) for index in range(150))
        if task.source_row in rows
    ]


def test_a_run_that_cannot_record_says_so_and_trains(run_file, tmp_path, capfd):
    (tmp_path / "file").touch()
    records = ["records.enabled=true", f"records.root={str(tmp_path / 'file' / 'x')!r}"]
    seen = run_and_watch(run_file(), tmp_path / "out", *ASYNC, *records, "rollout.group_filters=[]")
    assert seen.summary.steps == 3
    told = capfd.readouterr().err
    assert told.count("record writer 'records' failed and records nothing further") == 1
