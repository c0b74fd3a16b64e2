"""Conversations for supervised training."""

import json
import re
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from reroll.api import Task
from reroll.generation.corpus import Choice, export
from reroll.generation.corpus_files import message_columns, messages_of, tools_of, writing
from reroll.generation.merging import results_folders
from reroll.generation.protocol import ResultsError
from reroll.generation.store import JOURNAL, TRACE, traces_path
from reroll.models.files import resolve_model
from reroll.tasks.render import Renderer

sys.path.insert(0, str(Path(__file__).parent))

from results_folders import TOOL, Results, entry_of, protocol_of, trace_of, whole_run

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [2]}}}
CALLS = [
    {"role": "system", "content": "Use tools."},
    {"role": "user", "content": "1 + 2?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "3", "tool_call_id": "c1", "name": "add"},
    {"role": "assistant", "content": "3"},
]


def nothing_said(text):
    raise AssertionError(text)


def rows_of(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def exported(folders, output, choice=Choice(), warn=nothing_said):  # noqa: B008
    done = export(results_folders(folders), output, choice, warn)
    return done, rows_of(output) if output.suffix == ".jsonl" else parquet.read_table(output).to_pylist()


@pytest.fixture(params=["journal", "tree"])
def results(request, tmp_path):
    return Results(tmp_path / "results", protocol_of(), request.param)


def test_passed_answers_are_taken_in_the_order_of_tasks_and_trials(tmp_path, results):
    results.add_all(list(whole_run(results.protocol))[::-1])
    done, rows = exported([results.folder], tmp_path / "c.jsonl")
    assert [(row["prepared_sample_id"], row["trial"]) for row in rows] == [
        ("main-1", 0), ("main-2", 0), ("main-2", 1), ("more-0", 0), ("more-0", 1), ("more-0", 2),
    ]  # fmt: skip
    assert rows[0] == {
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "answer 0 to main-1"}],
        "tools": [],
        "source_dataset": "set-main",
        "source_row": 1,
        "prepared_sample_id": "main-1",
        "trial": 0,
        "reward": 1.0,
        "tokens": 2,
        "model": "builtin:tiny-math",
        "run": "measured",
    }
    assert (done.conversations, done.tasks, list(done.lines())) == (6, 3, [])


@pytest.mark.parametrize(("outcome", "count"), [("passed", 6), ("failed", 9), ("judged", 15)])
def test_what_is_taken_is_by_outcome(tmp_path, results, outcome, count):
    results.add(entry_of(results.protocol, 0, 0, "error"))
    results.add_all(whole_run(results.protocol))
    assert len(exported([results.folder], tmp_path / "c.jsonl", Choice(outcome))[1]) == count


def test_the_attempt_that_counts_is_taken_once_from_two_folders(tmp_path):
    protocol = protocol_of(n_trials=2)
    one, two = (Results(tmp_path / name, protocol) for name in ("one", "two"))
    first, second = entry_of(protocol, 0, 0), entry_of(protocol, 0, 1)
    one.add(first, trace_of(first, answer="first"))
    two.add(first, trace_of(first, answer="second"))
    two.add(second, trace_of(second, answer="other"))
    _, rows = exported([one.folder, two.folder], tmp_path / "c.jsonl")
    assert [row["messages"][-1]["content"] for row in rows] == ["first", "other"]


def test_truncated_answers_are_left_out_unless_they_are_asked_for(tmp_path, results):
    results.add(replace(entry_of(results.protocol, 0, 0), truncated=True))
    results.add(entry_of(results.protocol, 0, 1))
    done, rows = exported([results.folder], tmp_path / "c.jsonl")
    assert ([row["trial"] for row in rows], done.truncated) == ([1], 1)
    assert any("--keep-truncated" in line for line in done.lines())
    assert len(exported([results.folder], tmp_path / "c.jsonl", Choice(keep_truncated=True))[1]) == 2


def test_equal_conversations_of_a_task_are_taken_once_and_then_counted(tmp_path, results):
    protocol = protocol_of(n_trials=4)
    results = Results(tmp_path / "four", protocol)
    for position in (0, 1):
        for trial, answer in enumerate(["a", "a", "b", "c"]):
            entry = entry_of(protocol, position, trial)
            results.add(entry, trace_of(entry, answer=answer))
    done, rows = exported([results.folder], tmp_path / "c.jsonl", Choice(deduplicate=True, most_per_task=2))
    said = [(row["prepared_sample_id"], row["messages"][-1]["content"]) for row in rows]
    assert said == [("main-0", "a"), ("main-0", "b"), ("main-1", "a"), ("main-1", "b")]
    assert (done.repeated, done.tasks) == (2, 2)


def test_the_last_branch_is_the_conversation(tmp_path, results):
    entry = entry_of(results.protocol, 0, 0)
    trace = trace_of(entry, CALLS)
    trace.nodes.append(replace(trace.nodes[-1], parent=1, message={"role": "assistant", "content": "again"}))
    results.add(entry, trace)
    _, rows = exported([results.folder], tmp_path / "c.jsonl")
    assert rows[0]["messages"] == trace.messages == [*CALLS[:2], {"role": "assistant", "content": "again"}]


MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"])},
    optional={
        "content": st.none()
        | st.text()
        | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text()})),
        "name": st.none() | st.text(),
        "tool_call_id": st.text() | st.integers(),
        "tool_calls": st.none() | st.lists(st.just(CALL)) | st.text(),
        "reasoning_content": st.none() | st.text(),
        "other": st.text(),
    },
)


@given(st.lists(MESSAGES))
def test_no_part_of_a_message_is_lost_in_columns(messages):
    columns = [message_columns(message) for message in messages]
    assert all(value is None or isinstance(value, str) for message in columns for value in message.values())
    assert messages_of({"messages": columns}) == messages


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_datasets_reads_it_and_the_chat_template_renders_it(tmp_path, suffix, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    import datasets

    protocol = protocol_of(n_trials=2)
    results = Results(tmp_path / "results", protocol)
    calls, plain = entry_of(protocol, 0, 0), entry_of(protocol, 1, 1)
    results.add(plain, trace_of(plain, answer="4"))
    results.add(calls, trace_of(calls, CALLS, [TOOL]))
    output = tmp_path / f"corpus{suffix}"
    exported([results.folder], output)
    kind = "json" if suffix == ".jsonl" else "parquet"
    rows = datasets.load_dataset(kind, data_files=str(output), split="train", cache_dir=str(tmp_path / "cache"))
    assert [(row["prepared_sample_id"], row["trial"]) for row in rows] == [("main-0", 0), ("main-1", 1)]
    renderer = Renderer(resolve_model("builtin:tiny-tools"))
    originals = [(CALLS, [TOOL]), (trace_of(plain, answer="4").messages, [])]
    for row, (messages, tools) in zip(rows, originals, strict=True):
        texts = [
            renderer.render(Task(given, {"v": "1"}, "t", 0, "0", tools=schemas)).text
            for given, schemas in ((messages_of(row), tools_of(row)), (messages, tools))
        ]
        assert texts[0] == texts[1]
    assert messages_of(rows[1]) == originals[1][0]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_what_no_text_file_can_hold_is_replaced(tmp_path, suffix):
    row = {"messages": [{"role": "user", "content": "a\ud800\U0001f600 b\udfff", "x\udc00": "\ud83d"}], "tools": []}
    output = tmp_path / f"c{suffix}"
    with writing(output) as write:
        write({**row, "run": "\ud800"})
        write({**row, "messages": [{"role": "user", "content": "\U0001f600"}], "run": "r"})
    rows = rows_of(output) if suffix == ".jsonl" else parquet.read_table(output).to_pylist()
    assert messages_of(rows[0]) == [{"role": "user", "content": "a\ufffd\U0001f600 b\ufffd", "x\ufffd": "\ufffd"}]
    assert (rows[0]["run"], messages_of(rows[1])[0]["content"]) == ("\ufffd", "\U0001f600")


def test_many_rows_are_all_in_the_parquet_file(tmp_path, monkeypatch):
    monkeypatch.setattr("reroll.generation.corpus_files.ROWS", 4)
    results = Results(tmp_path / "results", protocol_of()).add_all(whole_run(protocol_of()))
    _, rows = exported([results.folder], tmp_path / "c.parquet", Choice("judged"))
    _, lines = exported([results.folder], tmp_path / "c.jsonl", Choice("judged"))
    assert [messages_of(row) for row in rows] == [row["messages"] for row in lines]
    assert len(rows) == 15


def test_nothing_passed_is_an_empty_file(tmp_path, results):
    for suffix in (".jsonl", ".parquet"):
        done, rows = exported([results.folder], tmp_path / f"c{suffix}")
        assert (done.conversations, rows) == (0, [])


def test_traces_are_not_gathered_in_memory(tmp_path):
    protocol = protocol_of(tasks=12, n_trials=4)
    results = Results(tmp_path / "results", protocol)
    for position in range(12):
        for trial in range(4):
            entry = entry_of(protocol, position, trial)
            results.add(entry, trace_of(entry, answer="x" * 200_000))
    tracemalloc.start()
    try:
        done = export(results_folders([results.folder]), tmp_path / "c.jsonl", Choice(), nothing_said)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert done.conversations == 48
    assert peak < 3_000_000 < (tmp_path / "c.jsonl").stat().st_size


def test_a_trace_that_was_taken_out_is_counted(tmp_path, results):
    with (results.folder / JOURNAL).open("ab") as file:
        file.write(entry_of(results.protocol, 0, 0).line())
    done, rows = exported([results.folder], tmp_path / "c.jsonl")
    assert (rows, list(done.lines())) == ([], ["1 attempt left out: the traces were removed"])


def test_a_trace_that_a_later_entry_finds_again_is_taken(tmp_path, results):
    entry = entry_of(results.protocol, 0, 0)
    with (results.folder / JOURNAL).open("ab") as file:
        file.write(entry.line())
    results.add(entry)
    assert len(exported([results.folder], tmp_path / "c.jsonl")[1]) == 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda line: b"\0" * len(line), "the trace of task 0, trial 0"),
        (lambda line: line.replace(b'"nodes": [', b'"moved": ['), "KeyError: 'nodes'"),
        (lambda line: line.replace(b'"parent": 0', b'"parent": 1'), r"nodes\[1\] is no node"),
        (
            lambda line: line.replace(b'"trial": 0', b'"trial": 2'),
            "that of task 0, trial 2: journal.jsonl does not fit",
        ),
        (lambda line: line.replace(b'"generation": {', b'"generation": [{'), "task 0, trial 0"),
    ],
)
def test_a_damaged_trace_is_named_and_left_out(tmp_path, results, damage, message):
    results.add(entry_of(results.protocol, 0, 0))
    kept = results.add(entry_of(results.protocol, 0, 1))
    path = traces_path(results.folder)
    if results.layout == "tree":
        path = results.folder / str(kept.place)[:-1] / "0" / TRACE
    first, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([damage(first)[: len(first)], *rest]))
    done, rows = exported([results.folder], tmp_path / "c.jsonl")
    assert ([row["trial"] for row in rows], done.unreadable) == ([1], 1)
    assert re.search(message, done.first)


def test_the_results_are_not_written_over(tmp_path, results):
    for path in (results.folder / JOURNAL, traces_path(results.folder)):
        with pytest.raises(ResultsError, match="file of the results themselves"):
            export(results_folders([results.folder]), path, Choice(), nothing_said)


@settings(max_examples=20)
@given(st.sampled_from(["", "[", "[model]", "model = 3", "[model]\nname = 1", "\xff"]))
def test_without_a_run_file_conversations_have_no_model(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("results")
    results = Results(folder / "results", protocol_of()).add_all(whole_run(protocol_of()))
    (results.folder / "run.toml").write_text(text, encoding="latin-1")
    said = []
    _, rows = exported([results.folder], folder / "c.jsonl", warn=said.append)
    assert {row["model"] for row in rows} == {None}
    assert len(said) == 1 and "run.toml does not say the model's path" in said[0]
