import gc
import subprocess
import sys
import tracemalloc
from collections import defaultdict
from pathlib import Path

import pytest
from written_store import LINEAGE, compact, consumed, expired, key, manifest, snippet_rewards, write
from written_store import group as scored
from written_store import response as made

import reroll_records
from reroll_records.store.rows import DispositionRow, GroupRow


@pytest.fixture
def store(tmp_path):
    """Two runs of one lineage and one of another."""
    judged = [made(0, 1.0), made(1, 0.0, "timeout"), made(2, 0.5, "unknown"), made(3, None, versions=[])]
    rows = [
        scored("1", "x", [0.0, 1.0], texts=["é", "\U0001f600"]),
        consumed("1", staleness=2),
        expired("2"),  # within one attempt a disposition may stand before its group
        scored("2", "y", responses=judged),
    ]
    write(tmp_path, manifest("a"), rows)
    write(tmp_path, manifest("b", run="second"), [scored("3", "x", [1.0, 1.0], versions=[4, 5])])
    write(tmp_path, manifest("c", lineage="1" * 16, protocol_digest=key("other")), [scored("4", "x", versions=[3])])
    return tmp_path


def test_the_reading_snippet_of_the_specification_works_on_a_store_as_it_stands(store):
    rewards = snippet_rewards(Path(store, LINEAGE))
    assert rewards == {key("x"): [0.0, 1.0], key("y"): [1.0]}

    by_package = defaultdict(list)
    for _, group, response in reroll_records.open(store).responses(
        scope="start_checkpoint", valid=True, lineage=LINEAGE
    ):
        by_package[group.input_key].append(response.reward)
    assert by_package == rewards


def test_rows_are_typed_and_say_which_attempt_recorded_them(store):
    opened = reroll_records.open(store)
    assert [attempt.id for attempt in opened.attempts] == ["a", "b", "c"]
    found = list(opened.groups())
    assert all(type(row) is GroupRow for _, row in found)
    assert [attempt.id + row.observation_id for attempt, row in found] == ["a1", "a2", "b3", "c4"]
    assert found[0][1] == scored("1", "x", [0.0, 1.0], texts=["é", "\U0001f600"])
    left = list(opened.dispositions())
    assert left == [(opened.attempts[0], consumed("1", staleness=2)), (opened.attempts[0], expired("2"))]
    assert type(left[0][1]) is DispositionRow
    assert opened.warnings == []


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, "1234"),
        ({"lineage": LINEAGE}, "123"),
        ({"protocol": key("other")}, "4"),
        ({"run": "second-id"}, "3"),
        ({"run": "second"}, "3"),
        ({"input_key": key("x")}, "134"),
        ({"input_key": key("x"), "lineage": LINEAGE}, "13"),
        ({"run": "no such"}, ""),
    ],
)
def test_groups_of_a_lineage_a_protocol_a_run_or_a_prompt(store, chosen, expected):
    opened = reroll_records.open(store)
    assert "".join(row.observation_id for _, row in opened.groups(**chosen)) == expected
    assert "".join(row.observation_id for _, row, _ in opened.responses(**chosen) if _.index == 0) == expected


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"scope": "start_checkpoint"}, [0.0, 1.0, 1.0, 0.0, 0.5]),
        ({"scope": "run_version"}, [0.0, 1.0]),
        ({"scope": "mixed"}, [1.0, 1.0]),
        ({"scope": None}, [None]),
        ({"valid": False}, [0.0]),
        ({"valid": None}, [0.5]),
        ({"valid": True, "run": "first", "lineage": LINEAGE}, [0.0, 1.0, 1.0, None]),
        ({"valid": True, "scope": "start_checkpoint"}, [0.0, 1.0, 1.0]),
    ],
)
def test_responses_of_a_scope_and_a_validity(store, chosen, expected):
    assert [found.reward for _, _, found in reroll_records.open(store).responses(**chosen)] == expected


def test_a_scope_or_validity_that_does_not_exist_is_named_before_anything_is_read(store):
    opened = reroll_records.open(store)
    with pytest.raises(ValueError, match="scope = 'begin' must be 'start_checkpoint'"):
        opened.responses(scope="begin")
    with pytest.raises(ValueError, match="valid = 'yes' must be True, False, None or 'any'"):
        opened.responses(valid="yes")


def test_what_cannot_be_read_is_skipped_and_told_once(store):
    (path,) = store.glob("*/*/records-b.jsonl")
    with path.open("ab") as file:
        file.write(b'not JSON\n{"kind": "group"}\n{"kind": "disp')
    path.with_name("records-z.jsonl").write_bytes(b"")
    opened = reroll_records.open(store)
    assert len(opened.warnings) == 2  # of the file without a manifest, and of the incomplete line
    for _ in range(2):
        assert len(list(opened.groups())) == 4
    assert [warning.partition("records-b.jsonl")[2] for warning in opened.warnings[1:]] == [
        " ends with an incomplete line, which is not counted",
        ": 2 lines are no rows of this schema and are counted nowhere",
    ]


def test_an_attempt_that_recorded_nothing_yet_has_no_rows(tmp_path):
    write(tmp_path, manifest("a"), []).unlink()
    opened = reroll_records.open(tmp_path)
    assert (len(opened.attempts), list(opened.groups()), opened.warnings) == (1, [], [])


def test_where_there_is_no_store_opening_says_so(tmp_path):
    with pytest.raises(reroll_records.StoreError, match="holds no inference records"):
        reroll_records.open(str(tmp_path))


def test_an_attempt_of_which_only_parquet_is_left_is_read_as_its_json_lines_were(store):
    opened = reroll_records.open(store)
    groups, dispositions = list(opened.groups()), list(opened.dispositions())
    for path in list(store.glob("*/*/records-*.jsonl")):
        compact(path)
    opened = reroll_records.open(store)
    assert list(opened.groups()) == groups
    assert list(opened.dispositions()) == dispositions
    assert opened.warnings == []


def test_json_lines_are_read_while_both_are_there(store):
    (path,) = store.glob("*/*/records-b.jsonl")
    content = path.read_bytes()
    compact(path)
    path.write_bytes(content)
    assert [row.observation_id for _, row in reroll_records.open(store).groups()] == ["1", "2", "3", "4"]


def test_a_parquet_file_that_is_none_of_ours_is_told_and_counted_nowhere(store):
    (path,) = store.glob("*/*/records-b.jsonl")
    path.rename(path.with_suffix(".parquet"))
    opened = reroll_records.open(store)
    assert [row.observation_id for _, row in opened.groups()] == ["1", "2", "4"]
    assert ["records-b.parquet does not say what it was compacted from" in told for told in opened.warnings] == [True]


def test_a_damaged_parquet_file_is_named(store):
    (path,) = store.glob("*/*/records-b.jsonl")
    target = compact(path)
    content = target.read_bytes()
    target.write_bytes(b"PAR1" + bytes(len(content) // 2) + content[len(content) // 2 + 4 :])
    with pytest.raises(reroll_records.StoreError, match="records-b.parquet cannot be read: .*; restore it"):
        list(reroll_records.open(store).groups())


def run_python(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


HIDE = "import sys; sys.modules.update(dict.fromkeys(sys.argv[2].split(',')));"  # an import of None fails


def test_parquet_without_duckdb_tells_the_remedy_and_json_lines_need_none(store):
    (path,) = store.glob("*/*/records-c.jsonl")
    compact(path)
    code = (
        HIDE + "import reroll_records\n"
        "store = reroll_records.open(sys.argv[1])\n"
        "print(len(list(store.groups(lineage=sys.argv[3]))))\n"
        "try: list(store.groups())\n"
        "except reroll_records.StoreError as error: print(error)"
    )
    counted, remedy = run_python(code, str(store), "duckdb,orjson", LINEAGE).splitlines()
    assert counted == "3"
    assert remedy.endswith("pip install 'reroll-records[analysis]'")


def test_importing_the_package_and_reading_take_the_standard_library_alone(store):
    hidden = "duckdb,orjson,pydantic,rich,typer,reroll,numpy"
    code = HIDE + "import reroll_records; print(sum(1 for _ in reroll_records.open(sys.argv[1]).responses()))"
    assert run_python(code, str(store), hidden) == "10\n"
    loaded = run_python("import sys; from reroll_records import *; print(*sys.modules)").split()
    assert not {"pydantic", "rich", "typer", "reroll", "duckdb"} & set(loaded)


def _peak(root: Path) -> int:
    opened = reroll_records.open(root)
    gc.collect()
    tracemalloc.start()
    try:
        for _ in opened.responses():
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_rows(tmp_path):
    texts = ["x" * 2000] * 8
    for name, count in (("few", 300), ("many", 1200)):
        write(tmp_path / name, manifest("a"), (scored(str(i), str(i), [0.0] * 8, texts=texts) for i in range(count)))
    _peak(tmp_path / "few")
    # Four times the rows. When garbage is collected moves the peak by a quarter.
    assert _peak(tmp_path / "many") < 2 * _peak(tmp_path / "few")


def test_runs_of_one_name_are_told_apart(tmp_path):
    runs = [("one", "aaaaaaaa1"), ("one", "aaaaaaab2"), ("two", "c")]
    for number, (name, run_id) in enumerate(runs):
        found = manifest(str(number))
        found["run"] |= {"name": name, "id": run_id}
        write(tmp_path, found, [])
    opened = reroll_records.open(tmp_path)
    assert [opened.run_label(attempt) for attempt in opened.attempts] == ["one-aaaaaaaa", "one-aaaaaaab", "two"]


def test_every_public_name_is_there_and_no_other():
    for name in reroll_records.__all__:
        assert getattr(reroll_records, name) is not None
        assert name in dir(reroll_records)
    with pytest.raises(AttributeError, match="has no attribute 'close'"):
        getattr(reroll_records, "close")  # noqa: B009
