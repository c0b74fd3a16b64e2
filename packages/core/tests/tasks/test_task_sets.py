"""Generated task sets and prompt files."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.api import TaskError
from reroll.tasks.arithmetic import Addition, ArithmeticConfig, Multiplication, is_held_out
from reroll.tasks.file import FileConfig, FileTaskSet


def test_splits_share_no_pair_in_either_order():
    def pairs(split):
        tasks = Addition(ArithmeticConfig(split=split))
        return {tuple(sorted(map(int, task.prepared_sample_id.split("+")))) for task in tasks}

    train, held_out = pairs("train"), pairs("held_out")
    assert not train & held_out
    assert len(train | held_out) == 100 * 101 // 2
    assert 0.08 < len(held_out) / len(train | held_out) < 0.12


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_both_orders_are_in_one_split(a, b):
    assert is_held_out("+", a, b) == is_held_out("+", b, a)


def test_targets_are_right_and_tasks_do_not_repeat():
    for cls, apply in ((Addition, lambda a, b: a + b), (Multiplication, lambda a, b: a * b)):
        tasks = list(cls(ArithmeticConfig(high=20, size=100)))
        assert len({task.key for task in tasks}) == 100
        for task in tasks:
            a, b = map(int, task.prepared_sample_id.split(cls.operation))
            assert task.targets == {"math": str(apply(a, b))}
            assert task.prompt[0]["content"] == f"What is {a} {cls.operation} {b}?"


def test_a_seed_gives_one_order_and_another_seed_another():
    def order(seed, high=99):
        return [task.key for task in Addition(ArithmeticConfig(seed=seed, size=50, high=high))]

    for high in (99, 10**6):
        assert order(0, high) == order(0, high)
        assert order(0, high) != order(1, high)


def test_tasks_of_a_wide_range_are_of_their_split():
    for task in Addition(ArithmeticConfig(high=10**6, size=200, split="held_out")):
        assert is_held_out("+", *map(int, task.prepared_sample_id.split("+")))


def test_asking_for_more_than_there_is():
    with pytest.raises(ValueError, match="size = 500 asks for more"):
        len(Addition(ArithmeticConfig(high=9, size=500)))


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ROWS = [
    {"messages": [{"role": "user", "content": "2+2"}], "targets": {"math": "4"}, "level": 3},
    {"prompt": "plain", "targets": {"exact_match": "x", "math": "1"}, "prepared_sample_id": "p7"},
]


def test_jsonl_rows_become_tasks(tmp_path):
    path = write(tmp_path / "prompts.jsonl", ROWS)
    path.write_text(path.read_text() + "\n\n")
    first, second = FileTaskSet(FileConfig(path=path))
    assert first.metadata == {"level": 3}
    assert (first.source_dataset, first.source_row, first.prepared_sample_id) == ("prompts", 0, "0")
    assert (second.prompt, second.prepared_sample_id) == ("plain", "p7")
    assert second.targets == {"exact_match": "x", "math": "1"}


def test_parquet_gives_the_same_tasks(tmp_path):
    import pyarrow
    from pyarrow import parquet

    rows = [
        {"messages": [{"role": "user", "content": "2+2"}], "targets": {"math": "4"}},
        {"messages": [{"role": "user", "content": "1", "name": "n"}], "targets": {"exact_match": "x"}},
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "prompts.parquet")
    from_parquet = list(FileTaskSet(FileConfig(path=tmp_path / "prompts.parquet")))
    from_jsonl = list(FileTaskSet(FileConfig(path=write(tmp_path / "prompts.jsonl", rows))))
    assert from_parquet == from_jsonl


def test_label_key_names_one_verifiers_target(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"question": "q", "answer": "42", "unit": "m"}])
    (task,) = FileTaskSet(FileConfig(path=path, input_key="question", label_key="answer", verifier="math"))
    assert (task.prompt, task.targets, task.metadata) == ("q", {"math": "42"}, {"unit": "m"})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("[1]", "row is list"),
        ("{", "row 1 is no JSON"),
        ('{"prompt": ""}', "prompt is empty"),
        ('{"prompt": 3}', "neither text nor a list"),
        ('{"prompt": "x"}', "targets = None"),
        ('{"prompt": "x", "targets": []}', "is not a table"),
        ('{"messages": [{"role": "robot", "content": "x"}], "targets": {"a": 1}}', r"messages\[0\] needs a role"),
        ('{"messages": [{"role": "user"}], "targets": {"a": 1}}', r"messages\[0\].content is missing"),
        (
            r'{"prompt": "x", "targets": {"a": 1}, "prepared_sample_id": "\ud800"}',
            r"bad.jsonl:1: prepared_sample_id = '\\ud800' holds half of a surrogate pair",
        ),
        (
            r'{"prompt": "x", "targets": {"a": 1}, "source_dataset": "a\udfff"}',
            r"bad.jsonl:1: source_dataset = 'a\\udfff' holds half of a surrogate pair",
        ),
        (
            '{"prompt": "x", "targets": {"a": 1}, "source_row": 9223372036854775808}',
            "source_row = 9223372036854775808 is no whole number of 64 bits",
        ),
    ],
)
def test_a_bad_row_is_named(tmp_path, row, message):
    path = tmp_path / "bad.jsonl"
    path.write_text(row + "\n")
    with pytest.raises(TaskError, match=f"bad.jsonl:.*{message}|{message}"):
        FileTaskSet(FileConfig(path=path)).task(0)


@given(st.text(max_size=200))
def test_any_text_is_tasks_or_a_task_error(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "any.jsonl"
    path.write_text(text)
    try:
        tasks = list(FileTaskSet(FileConfig(path=path)))
    except TaskError as error:
        assert "any.jsonl" in str(error)
    else:
        assert tasks and all(task.targets for task in tasks)


def test_missing_and_empty_files(tmp_path):
    with pytest.raises(TaskError, match="does not exist"):
        len(FileTaskSet(FileConfig(path=tmp_path / "no.jsonl")))
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(TaskError, match="holds no rows"):
        len(FileTaskSet(FileConfig(path=tmp_path / "empty.jsonl")))


def test_tools_of_a_row_may_be_named_and_their_schemas_stand_for_them(tmp_path):
    from reroll.config import load_run_file
    from reroll.plugins import load_plugins
    from reroll.tasks.calculator import Calculator

    rows = tmp_path / "rows.jsonl"
    own = {"type": "function", "function": {"name": "own", "parameters": {}}}
    lines = [{"prompt": "q", "targets": {"v": "1"}, "tools": tools} for tools in (["calculator", own], ["abacus"], "x")]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tasks = FileTaskSet(FileConfig(path=rows))
    run = load_run_file(None, ['model.path="builtin:tiny-math"', 'data.verifiers=["exact_match"]'], load_plugins())
    tasks.open(run, None, 0)
    assert tasks.task(0).tools == [Calculator().schema(), own]
    with pytest.raises(TaskError, match=r"rows.jsonl:2: tools names 'abacus'.*there are: .*calculator"):
        tasks.task(1)
    with pytest.raises(TaskError, match="rows.jsonl:3: tools = 'x' is no list"):
        tasks.task(2)
