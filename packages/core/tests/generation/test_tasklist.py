"""The tasks of all sources in one row, and those that a file names."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pytest
from pyarrow import parquet

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "replay"))

import replay_cases
from measuring_cases import addition, inline, measured, run_of

from reroll.api import RerollError, RunFileError, TaskError
from reroll.generation.entries import Entry
from reroll.generation.tasklist import named_positions
from reroll.generation.trials import Job
from reroll.generation.work_left import WorkLeft
from reroll.tasks.pointers import POINTER

TWO = {"sums": addition(4), "products": {"name": "multiplication", "size": 3}}


def positions(tasks):
    return [(position, task.key) for position, task in tasks]


def test_tasks_of_several_sources_follow_each_other():
    tasks = measured(run_of(TWO)).tasks
    assert len(tasks) == 7
    assert [tasks.part(position).name for position in range(7)] == ["sums"] * 4 + ["products"] * 3
    alone = [measured(run_of(TWO[name])).tasks for name in TWO]
    assert [key for _, key in positions(tasks)] == [key for found in alone for _, key in positions(found)]
    assert [position for position, _ in tasks] == list(range(7))
    assert [part.plan.purpose for part in tasks.parts] == ["generate:sums", "generate:products"]
    assert [part.plan.purpose for part in alone[0].parts] == ["generate"]
    assert {part.plan.size for part in tasks.parts} == {1}


@pytest.mark.parametrize("limit", range(1, 9))
def test_a_limit_counts_across_sources(limit):
    tasks = measured(run_of(TWO, f"generation.limit={limit}")).tasks
    assert positions(tasks) == positions(measured(run_of(TWO)).tasks)[:limit]
    assert len(tasks) == min(limit, 7)
    assert [part.name for part in tasks.parts] == (["sums"] if limit <= 4 else ["sums", "products"])


def test_the_temperature_of_the_generation_is_drawn_at():
    (part,) = measured(run_of(addition(), "rollout.temperature=0.5")).tasks.parts
    assert part.plan.sampling.temperature == 0.5
    (part,) = measured(run_of(addition(), "rollout.temperature=0.5", "generation.temperature=0")).tasks.parts
    assert part.plan.sampling.temperature == 0


def test_a_streaming_set_is_walked_as_far_as_the_limit():
    tasks = measured(run_of("endless", "generation.limit=3")).tasks
    assert positions(tasks) == [(0, "endless:n0"), (1, "endless:n1"), (2, "endless:n2")]
    with pytest.raises(
        RunFileError, match=r"(?s)data\.task_set.*'endless' is streaming and never ends.*generation\.limit"
    ):
        measured(run_of("endless"))


def test_a_streaming_set_may_end_before_the_limit():
    tasks = measured(run_of({"a": "ending", "b": addition(4)}, "generation.limit=5")).tasks
    assert [part.size for part in tasks.parts] == [3, 2]
    assert len(list(tasks)) == 5


def test_a_set_without_tasks_is_passed_over_and_nothing_but_such_is_refused():
    assert len(measured(run_of({"a": "empty", "b": addition(2)})).tasks) == 2
    with pytest.raises(TaskError, match=r"data\.task_set: there are no tasks"):
        measured(run_of("empty"))


def test_tasks_that_come_to_be_while_a_run_goes_on_are_refused(tmp_path):
    replay_cases.write_run_file(tmp_path, replay_cases.SOURCE_DATA)
    replayed = {"name": "again", "buffer_dir": str(tmp_path), "online": True}
    run = replay_cases.run_file(tmp_path, replayed)
    with pytest.raises(RunFileError, match=r"data\.sources\[1\].*'again' come to be while a training run goes on"):
        measured(run)


# Named tasks


def named(tmp_path, tasks, text=None, rows=None):
    if rows is None:
        path = tmp_path / "named.txt"
        path.write_text(text)
    else:
        path = tmp_path / "named.parquet"
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return named_positions(path, tasks)


def test_tasks_are_named_by_id_or_key(tmp_path):
    tasks = measured(run_of(TWO)).tasks
    found = [task for _, task in tasks]
    lines = ["", f"  {found[5].prepared_sample_id}  ", found[1].key, found[1].prepared_sample_id, ""]
    assert named(tmp_path, tasks, "\n".join(lines)) == [1, 5]
    assert named(tmp_path, tasks, "\r\n".join(lines)) == [1, 5]


def test_an_id_that_two_sources_have_names_both_and_its_key_names_one(tmp_path):
    tasks = measured(run_of({"a": addition(3), "b": addition(3, split="held_out")})).tasks
    same = measured(run_of({"a": addition(3), "b": addition(3)})).tasks
    first = same.parts[0].task(1)
    assert named(tmp_path, same, first.prepared_sample_id) == [1, 4]
    assert named(tmp_path, tasks, tasks.parts[1].task(4).key) == [4]


def test_tasks_are_named_by_an_index_with_all_three_pointers(tmp_path):
    tasks = measured(run_of(TWO)).tasks
    rows = [
        {"note": "x", **{name: getattr(task, name) for name in reversed(POINTER)}}
        for position, task in tasks
        if position in (0, 4, 6)
    ]
    assert named(tmp_path, tasks, rows=rows[::-1] + rows) == [0, 4, 6]
    wrong = [{**rows[0], "source_row": 77}]
    with pytest.raises(RerollError, match=r"names 1 task that the task set does not have: .*77"):
        named(tmp_path, tasks, rows=wrong)


def test_names_that_no_task_has_are_said(tmp_path):
    tasks = measured(run_of(TWO)).tasks
    known = tasks.parts[0].task(0).prepared_sample_id
    with pytest.raises(RerollError, match=r"named\.txt names 7 tasks that .* does not have: x0, x1, x2, x3, x4…"):
        named(tmp_path, tasks, "\n".join([known, *(f"x{n}" for n in range(7))]))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"\n \n", "names no task"),
        ("binary.txt", b"\xff\xfe", "cannot be read"),
        ("none.txt", None, "cannot be read"),
        ("text.parquet", b"main-1\n", "is no readable Parquet file"),
        ("none.parquet", None, "does not exist"),
    ],
)
def test_a_file_that_names_nothing_is_refused(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RerollError, match=rf"generation\.instances: .*{message}"):
        named_positions(path, measured(run_of(TWO)).tasks)


def test_an_index_without_rows_names_no_task(tmp_path):
    path = tmp_path / "named.parquet"
    kinds = [("source_dataset", pyarrow.string()), ("source_row", pyarrow.int64())]
    schema = pyarrow.schema([*kinds, ("prepared_sample_id", pyarrow.string())])
    parquet.write_table(schema.empty_table(), path)
    with pytest.raises(RerollError, match=r"generation\.instances: .* holds no rows"):
        named_positions(path, measured(run_of(TWO)).tasks)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"x": 1}, "has no column 'source_dataset'"),
        ({"source_dataset": ["a"], "source_row": 1, "prepared_sample_id": "b"}, "'source_dataset' holds list"),
        ({"source_dataset": "a", "source_row": 1.5, "prepared_sample_id": "b"}, "'source_row' holds double"),
    ],
)
def test_a_table_that_is_no_index_is_refused(tmp_path, row, message):
    with pytest.raises(RerollError, match=rf"generation\.instances: .*{message}"):
        named(tmp_path, measured(run_of(TWO)).tasks, rows=[row])


def test_named_tasks_are_cut_into_shards(tmp_path):
    tasks = measured(run_of(TWO)).tasks
    path = tmp_path / "named.txt"
    path.write_text("\n".join(task.key for position, task in tasks if position != 2))
    run = run_of(TWO, f"generation.instances={inline(str(path))}")
    parts = [list(measured(run, (number, 2)).protocol.positions()) for number in (1, 2)]
    assert parts == [[0, 4, 6], [1, 3, 5]]


# Tasks that have to be bound


async def work_left_of(run, missing):
    """The jobs, and position and reason of what is skipped."""
    found = measured(run)
    states = SimpleNamespace(missing=missing)
    left = WorkLeft(found.protocol, found.tasks, states, found.renderer, found.filters, together=False)
    items = [item async for item in left.jobs()]
    jobs = [item for item in items if isinstance(item, Job)]
    return jobs, [(item.position, item.detail) for item in items if isinstance(item, Entry)]


def test_saved_rollouts_are_asked_about_again(tmp_path):
    before = tmp_path / "before"
    long = replay_cases.record(2, answer="3 " * 200)
    replay_cases.write_step(before, 0, [replay_cases.record(0), replay_cases.record(1), long])
    replay_cases.write_run_file(before, replay_cases.SOURCE_DATA)
    replayed = {"name": "again", "buffer_dir": str(before)}
    run = replay_cases.run_file(tmp_path, replayed, rollout={"rollout_max_prompt_len": 100})
    size = len(measured(run).tasks.parts[0].task_set)
    jobs, skipped = asyncio.run(work_left_of(run, lambda position: [0, 1] if position >= size else []))
    assert [job.position - size for job in jobs] == [0, 0, 1, 1]
    assert [list(job.trials) for job in jobs] == [[0], [1]] * 2
    for job in jobs[::2]:
        asked = [message["content"] for message in job.dispatch.task.messages]
        assert asked[1:] == ["3", "Again?"]
        assert job.dispatch.rendered.text.count("Again?") == 1
        assert job.dispatch.binding.task is job.dispatch.task
        row = job.position - size
        assert job.pointers == tuple(getattr(job.part.task(job.position), name) for name in POINTER)
        assert job.dispatch.task.prompt[0]["content"] == f"What is {row}?"
    assert skipped == [(size + 2, "too_long")]
