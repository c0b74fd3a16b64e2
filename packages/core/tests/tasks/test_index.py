"""Indexes: rows that point at tasks of other sets."""

import json
import sys
from functools import lru_cache
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from reroll.api import Binding, Judge, Problem, RunFileError, Selection, TaskError
from reroll.config import load_run_file
from reroll.plugins import load_plugins
from reroll.rollouts.verifiers import ExactMatch
from reroll.tasks.arithmetic import Addition, ArithmeticConfig
from reroll.tasks.config import DataSection, check_task_set, open_task_set
from reroll.tasks.cursor import Cursor
from reroll.tasks.file import FileConfig, FileTaskSet
from reroll.tasks.index import IndexConfig, IndexTaskSet
from reroll.tasks.pointers import task_digest

sys.path.insert(0, str(Path(__file__).parent))

from cursor_cases import Numbers, Streaming, render

FIELDS = ("source_dataset", "source_row", "prepared_sample_id")
SIZE = 40


def selection(**options):
    return json.dumps({"name": "addition", "size": SIZE, **options})


def rows_of(tasks, task_set=None, **more):
    rows = [{name: getattr(task, name) for name in FIELDS} | more for task in tasks]
    return [row | {"task_set": task_set} for row in rows] if task_set else rows


def addition(**options):
    return list(Addition(ArithmeticConfig(size=SIZE, **options)))


def write(path, rows):
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@lru_cache
def plugins():
    return load_plugins()


def run_of(task_set='"addition"', *more):
    return load_run_file(
        None,
        ['model.path="builtin:tiny-math"', 'data.verifiers=["exact_match"]', f"data.task_set={task_set}", *more],
        plugins(),
    )


def opened(path, of=None):
    run = run_of()
    return open_task_set(run, Selection(name="index", options={"path": path} | ({"of": of} if of else {})), None, 0)


class Parts:
    """A run file whose task sets are given ones, for sets that no plugin brings."""

    def __init__(self, **made):
        self.made = made

    def make(self, hook, selection):
        return self.made[selection.name]


def index_over(tmp_path, **made):
    """An index of the first two tasks of each of these sets."""
    rows = [row for name, tasks in made.items() for row in rows_of([tasks.first(0), tasks.first(1)], f'"{name}"')]
    index = IndexTaskSet(IndexConfig(path=write(tmp_path / "i.parquet", rows)))
    index.open(Parts(**made), None, 0)
    return index


class Plain(Numbers):
    def __init__(self, dataset="numbers"):
        super().__init__(5)
        self.dataset = dataset

    def first(self, row):
        from dataclasses import replace

        return replace(super().task(row), source_dataset=self.dataset)

    task = first


class Lazy(Plain):
    lazy = True
    container = True

    def __init__(self):
        super().__init__("lazy")
        self.patience = 7.0

    def bind(self, task, request, tries=0):
        return Binding(task, metrics={"request": float(request), "tries": float(tries)})

    def recover(self, saved):
        return self.first(int(saved["row"]))


class Judging(Plain):
    def __init__(self):
        super().__init__("judged")

    def judges(self):
        return {"v": Judge(ExactMatch(), 0.5, "mine")}


class Growing(Plain):
    online = True


class Endless(Streaming):
    def __init__(self):
        super().__init__(5)

    def first(self, row):
        return Numbers(5).task(row)


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_rows_give_the_tasks_that_they_point_at(tmp_path, split):
    tasks = addition(split=split)
    chosen = [tasks[7], tasks[3], tasks[39]]
    index = opened(write(tmp_path / "i.parquet", rows_of(chosen, selection(split=split), pass_rate=0.5)))
    assert list(index) == chosen and len(index) == 3
    with pytest.raises(IndexError):
        index.task(3)
    with pytest.raises(IndexError):
        index.task(-1)


def test_of_stands_for_the_column_and_wins_over_it(tmp_path):
    tasks = addition(split="held_out")
    of = {"name": "addition", "split": "held_out", "size": SIZE}
    assert list(opened(write(tmp_path / "a.parquet", rows_of(tasks)), of)) == tasks
    assert list(opened(write(tmp_path / "b.parquet", rows_of(tasks, selection())), of)) == tasks


def test_rows_of_several_sets_lie_beside_each_other(tmp_path):
    train, held_out = addition(), addition(split="held_out")
    rows = [*rows_of(train[:3], selection()), *rows_of(held_out[:3], selection(split="held_out"))]
    rows.append(rows_of(train[3:4], json.dumps({"size": SIZE, "name": "addition"}))[0])  # the same set in other words
    index = opened(write(tmp_path / "i.parquet", rows[::-1]))
    assert list(index) == [train[3], *held_out[2::-1], *train[2::-1]]
    assert len(index._bases) == 2


def prompts(path, rows):
    """A prompt file whose rows are numbered by another file than this one."""
    path.write_text(
        "".join(
            json.dumps(
                {
                    "prompt": f"q{row}",
                    "targets": {"exact_match": str(row)},
                    "source_dataset": "elsewhere",
                    "source_row": row,
                    "prepared_sample_id": f"s{row}",
                    "level": row,
                }
            )
            + "\n"
            for row in rows
        )
    )
    return path


def test_a_prompt_file_that_numbers_its_rows_in_its_own_way_is_searched(tmp_path):
    path = prompts(tmp_path / "p.jsonl", [900, 4, 1, 0, 77])
    of_file = json.dumps({"name": "file", "path": str(path)})
    base = list(open_task_set(run_of(), Selection(name="file", options={"path": path}), None, 0))
    index = opened(write(tmp_path / "i.parquet", rows_of([base[3], base[0], base[2]], of_file)))
    assert [task.prompt for task in index] == ["q0", "q900", "q1"]
    assert list(index) == [base[3], base[0], base[2]]
    assert index.task(1).metadata == {"level": 900}


def test_a_row_that_cannot_be_read_stops_only_what_points_at_it(tmp_path):
    path = prompts(tmp_path / "p.jsonl", [3, 2, 1])
    good = rows_of(open_task_set(run_of(), Selection(name="file", options={"path": path}), None, 0))
    path.write_text(path.read_text().replace("q2", ""))
    index = opened(write(tmp_path / "i.parquet", good), {"name": "file", "path": path})
    assert [index.task(0).prompt, index.task(2).prompt] == ["q3", "q1"]
    with pytest.raises(TaskError, match=r"i.parquet:2: no task of 'file'.*source_row = 2,.*not all.*prompt is empty"):
        index.task(1)


def test_an_index_of_an_index(tmp_path):
    tasks = addition()
    inner = write(tmp_path / "inner.parquet", rows_of(tasks[10:20], selection()))
    of_index = json.dumps({"name": "index", "path": str(inner)})
    outer = opened(write(tmp_path / "outer.parquet", rows_of(tasks[15:12:-1], of_index)))
    assert list(outer) == tasks[15:12:-1]


def test_an_index_of_itself_is_refused(tmp_path):
    a, b = tmp_path / "a.parquet", tmp_path / "b.parquet"
    for path, other in ((a, b), (b, a)):
        write(path, rows_of(addition()[:2], json.dumps({"name": "index", "path": str(other)})))
    with pytest.raises(TaskError, match="a.parquet is an index of itself; set `of`"):
        opened(a)


def test_what_a_lazy_set_says_of_itself_is_passed_through(tmp_path):
    base = Lazy()
    index = index_over(tmp_path, lazy=base)
    assert (index.lazy, index.container, index.patience) == (True, True, 7.0)
    assert not IndexTaskSet.lazy and not IndexTaskSet.container
    assert index.bind(index.task(1), 3, 2) == base.bind(base.task(1), 3, 2)
    assert index.recover({"row": "1"}) == base.task(1)
    assert index.judges() is None
    assert index.fingerprint() != index_over(tmp_path, lazy=Plain("lazy")).fingerprint()


def test_judges_of_an_only_set_are_passed_through(tmp_path):
    judges = index_over(tmp_path, judged=Judging()).judges()
    assert judges["v"].weight == 0.5


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"plain": Plain, "lazy": Lazy}, "'numbers' binds its tasks when they are dispatched"),
        ({"judged": Judging, "plain": Plain}, "'numbers' brings verifiers of its own"),
        ({"growing": Growing}, "has tasks only once a run goes on"),
        ({"endless": Endless}, "is streaming: no row can be found in it"),
    ],
)
def test_sets_that_no_row_can_point_into(tmp_path, made, words):
    with pytest.raises(TaskError, match=words):
        index_over(tmp_path, **{name: cls() for name, cls in made.items()})


def test_a_container_among_several_sets_counts(tmp_path):
    class Contained(Plain):
        container = True

    assert index_over(tmp_path, plain=Plain(), boxed=Contained("boxed")).container
    assert not index_over(tmp_path, plain=Plain(), other=Plain("other")).container


TASKS = addition()


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (rows_of(TASKS[:2]), "has no column 'task_set' that says which.*set `of`"),
        ([{"source_dataset": "x", "source_row": 1}], "has no column 'prepared_sample_id' and is no index"),
        (rows_of([*TASKS[:3], TASKS[1]], selection()), r"i.parquet:4: points at the task that row 2.*drop_duplicates"),
        (
            [*rows_of(TASKS[:1], selection()), *rows_of(TASKS[:1], selection(seed=0))],
            r"i.parquet:2: points at the task that row 1",
        ),
        ([*rows_of(TASKS[:1], selection()), *rows_of(TASKS[1:2])], r"i.parquet:2: task_set is missing.*set `of`"),
        ([{**rows_of(TASKS[:1], selection())[0], "source_row": 0.5}], "'source_row' holds double, not whole numbers"),
        ([{**rows_of(TASKS[:1], selection())[0], "source_dataset": 3}], "'source_dataset' holds int64, not text"),
        (rows_of(TASKS[:1], "{"), "i.parquet:1: task_set = '{' is no selection.*set `of`"),
        (rows_of(TASKS[:1], "[1]"), "is no selection of a task set in JSON"),
        (rows_of(TASKS[:1], "[" * 100_000), "is no selection of a task set in JSON"),
        (rows_of(TASKS[:1], '{"name": "nowhere"}'), "i.parquet: task_set: 'nowhere'"),
        (rows_of(TASKS[:1], selection(sise=3)), "task_set.sise.*did you mean 'size'"),
    ],
)
def test_faults_of_a_file_are_told_when_it_is_opened(tmp_path, rows, words):
    with pytest.raises(TaskError, match=words):
        opened(write(tmp_path / "i.parquet", rows))


def test_files_that_hold_nothing_and_files_that_are_not_there(tmp_path):
    with pytest.raises(TaskError, match="no.parquet does not exist"):
        opened(tmp_path / "no.parquet")
    (tmp_path / "text.parquet").write_text("text")
    with pytest.raises(TaskError, match="text.parquet is no readable Parquet file"):
        opened(tmp_path / "text.parquet")
    full = pyarrow.Table.from_pylist(rows_of(TASKS, selection()))
    parquet.write_table(full.slice(0, 0), tmp_path / "empty.parquet")
    with pytest.raises(TaskError, match="empty.parquet holds no rows"):
        opened(tmp_path / "empty.parquet")


def test_a_row_that_no_task_has_is_named(tmp_path):
    rows = rows_of(TASKS[:2], selection())
    rows[1]["prepared_sample_id"] = "1+x"
    index = opened(write(tmp_path / "i.parquet", rows))
    assert index.task(0) == TASKS[0]
    words = r"i.parquet:2: no task of 'addition' has source_dataset = 'addition/train', source_row = 1, .* = '1\+x'"
    with pytest.raises(TaskError, match=f"{words}; drop the row, or set `of`"):
        index.task(1)


def test_a_run_file_with_an_index_is_checked_and_walked(tmp_path):
    chosen = TASKS[5:25]
    path = write(tmp_path / "i.parquet", rows_of(chosen, selection(verifier="exact_match")))
    run = run_of(f'{{ name = "index", path = "{path}" }}')
    data = run.get(DataSection)
    assert list(check_task_set("data.task_set", data.task_set, data, run, thorough=True)) == []
    walk = Cursor(open_task_set(run, data.task_set, None, 0), lambda task: render(Numbers(1).task(0)), {}, 100, seed=1)
    taken = {walk.take().task.key for _ in chosen}
    assert taken == {task.key for task in chosen}


def test_faults_of_rows_are_told_by_row_before_the_run(tmp_path):
    rows = rows_of(TASKS[:3], selection(verifier="exact_match"))
    rows[1]["prepared_sample_id"] = "nobody"
    rows += rows_of(addition(split="held_out")[:1], selection(split="held_out", verifier="unlisted"))
    path = write(tmp_path / "i.parquet", rows)
    run = run_of(f'{{ name = "index", path = "{path}" }}')
    data = run.get(DataSection)
    found = [str(problem) for problem in check_task_set("data.task_set", data.task_set, data, run, thorough=True)]
    assert len(found) == 2
    assert f"{path}:2: no task of 'addition'" in found[0]
    assert "unlisted" in found[1] and f"{path}:4" in found[1]


def test_a_resolved_run_file_loads_from_anywhere(tmp_path, monkeypatch):
    prompts(tmp_path / "p.jsonl", [5, 6])
    base = open_task_set(run_of(), Selection(name="file", options={"path": tmp_path / "p.jsonl"}), None, 0)
    write(tmp_path / "i.parquet", rows_of(base))
    monkeypatch.chdir(tmp_path)
    run = run_of('{ name = "index", path = "i.parquet", of = { name = "file", path = "p.jsonl" } }')
    resolved = run.to_toml()["data"]["task_set"]
    assert Path(resolved["path"]).is_absolute() and Path(resolved["of"]["path"]).is_absolute()
    monkeypatch.chdir("/")
    again = Selection.model_validate(resolved)
    assert list(open_task_set(run_of(), again, None, 0)) == list(base)
    assert "task_sets/file" in run.used_plugins()


def test_faults_of_the_selected_set_show_in_the_plan(tmp_path):
    of = '{ name = "replay.nowhere" }'
    with pytest.raises(RunFileError, match="data.task_set.of"):
        run_of(f'{{ name = "index", path = "i.parquet", of = {of} }}')
    with pytest.raises(RunFileError, match="is no .parquet file"):
        run_of('{ name = "index", path = "i.jsonl" }')

    class Run(Parts):
        def component(self, hook, name):
            return type(self.made[name])

    growing = IndexConfig(path=tmp_path / "i.parquet", of="growing")
    (found,) = IndexTaskSet.problems(growing, Run(growing=Growing()), "data.task_set")
    assert isinstance(found, Problem) and found.key == "data.task_set.of" and "once a run goes on" in found.message


def test_data_frames_of_shards_are_joined_shuffled_and_filtered(tmp_path):
    pandas = pytest.importorskip("pandas")
    held_out = addition(split="held_out")
    parts = [rows_of(TASKS, selection(), pass_rate=0.25), rows_of(held_out, selection(split="held_out"), pass_rate=0.5)]
    frames = [pandas.read_parquet(write(tmp_path / f"{number}.parquet", rows)) for number, rows in enumerate(parts)]
    frame = pandas.concat(frames).sample(frac=1.0, random_state=3)
    frame = frame[frame["source_row"] % 3 == 0]
    frame["source_dataset"] = frame["source_dataset"].astype("category")
    frame.to_parquet(tmp_path / "joined.parquet")
    assert "__index_level_0__" in parquet.read_schema(tmp_path / "joined.parquet").names
    wanted = {task.key: task for task in (*TASKS[::3], *held_out[::3])}
    joined = list(opened(tmp_path / "joined.parquet"))
    assert [task.key for task in joined] == [f"{d}:{s}" for d, s in frame[[FIELDS[0], FIELDS[2]]].to_numpy().tolist()]
    assert {task.key: task for task in joined} == wanted


@settings(max_examples=30)
@given(st.permutations(range(SIZE)), st.integers(1, SIZE), st.booleans())
def test_any_choice_in_any_order_is_what_it_was_chosen_from(tmp_path_factory, order, number, of_file):
    folder = tmp_path_factory.mktemp("choice")
    if of_file:
        base = Selection(name="file", options={"path": prompts(folder / "p.jsonl", [row * 7 % 41 for row in order])})
    else:
        base = Selection(name="addition", options={"size": SIZE})
    tasks = list(open_task_set(run_of(), base, None, 0))
    chosen = [tasks[row] for row in order[:number]]
    index = opened(write(folder / "i.parquet", rows_of(chosen)), {"name": base.name, **base.options})
    assert list(index) == chosen


def test_a_task_that_is_another_one_now_is_refused(tmp_path):
    rows = [{"prompt": f"What is {number} + 1?", "targets": {"exact_match": str(number + 1)}} for number in range(3)]
    path, index = tmp_path / "sums.jsonl", tmp_path / "index.parquet"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = FileTaskSet(FileConfig(path=path))
    columns = {"source_dataset": ["sums"] * 2, "source_row": [0, 2], "prepared_sample_id": ["0", "2"]}
    columns["task_set"] = [json.dumps({"name": "file", "path": str(path)})] * 2
    columns["task_digest"] = [task_digest(tasks.task(0)), None]
    parquet.write_table(pyarrow.table(columns), index)
    chosen = Selection(name="index", options={"path": index})
    run = load_run_file(None, ['model.path="builtin:tiny-math"', 'data.verifiers=["exact_match"]'], load_plugins())
    assert [task.prompt for task in open_task_set(run, chosen, None, 0)] == ["What is 0 + 1?", "What is 2 + 1?"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[::-1]))
    changed = open_task_set(run, chosen, None, 0)
    assert changed.task(1).prompt == "What is 0 + 1?"  # whose digest nobody wrote down
    with pytest.raises(TaskError, match=r"index.parquet:1: the task of 'file' .* is another one than when the index"):
        changed.task(0)
