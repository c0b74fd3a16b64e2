import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner
from written_store import LINEAGE, compact, consumed, exported_rows, group, line, manifest, odd_store, response, write

from reroll.api import RerollError
from reroll_records.api import RecordStore, open_store
from reroll_records.export.command import export
from reroll_records.export.data_card import COLUMNS, RESPONSE_COLUMNS
from reroll_records.export.dataset import Choice, write_dataset
from reroll_records.store.layout import StoreError
from reroll_records.store.rows import RewardComponent, Validity

app = typer.Typer()
app.command()(export)


@pytest.fixture
def store(tmp_path):
    return odd_store(tmp_path / "store")


def test_a_row_per_response_says_what_the_store_says_of_it_in_the_order_of_the_store(store, tmp_path):
    source = write_dataset(open_store(store), tmp_path / "set", Choice())
    rows = exported_rows(tmp_path / "set")
    expected = list(open_store(store).responses())
    assert (source.rows, source.shards, source.runs, source.attempts) == (len(rows), 1, 1, 2)
    assert list(rows[0]) == [*COLUMNS, *RESPONSE_COLUMNS]
    for row, (attempt, scored, found) in zip(rows, expected, strict=True):
        assert (row["lineage"], row["attempt"], row["run_id"]) == (attempt.lineage, attempt.id, attempt.run_id)
        for name in COLUMNS.keys() & {
            "input_key",
            "observation_id",
            "source_dataset",
            "source_row",
            "verifiers",
            "time",
        }:
            assert row[name] == getattr(scored, name)
        for name in (
            "index",
            "reward",
            "response_tokens",
            "status",
            "truncated",
            "policy_versions",
            "policy_scope",
            "seed",
        ):
            assert row[name] == getattr(found, name)
        assert row["valid"] is found.validity.valid
        assert row["validity"] == [{"name": name, "state": state} for name, state in found.validity.components.items()]
        assert row["reward_components"] == [
            {"name": part.name, "score": part.score, "weight": part.weight} for part in found.reward_components
        ]
        assert row["prompt"] == scored.prompt
        assert row["response"] == (found.response and found.response.replace("\ud800", "\ufffd"))


def test_every_disposition_is_told_and_a_passed_group_without_a_row_was_unused(store, tmp_path):
    write_dataset(open_store(store), tmp_path / "set", Choice("groups"))
    found = [
        (row["attempt"], row["observation_id"], row["disposition"], row["staleness"])
        for row in exported_rows(tmp_path / "set")
    ]
    assert found == [
        ("a", "1", "consumed", 2),
        ("a", "2", "expired", 5),
        ("a", "3", "filtered:zero_std_0.0", None),
        ("a", "4", "aborted", None),
        ("a", "5", "unused", None),
        ("b", "1", "unused", None),
    ]


@pytest.mark.parametrize(
    ("choice", "groups", "rewards"),
    [
        (Choice("groups"), "123451", [2, 5, 2, 2, 2, 1]),
        (Choice("groups", ("run_version",)), "5", [2]),
        (Choice("groups", ("run_version", "mixed")), "51", [2, 1]),
        (Choice("groups", ("start_checkpoint",), valid_only=True), "1234", [2, 3, 2, 2]),
        (Choice("groups", lineage="1" * 16), "1", [1]),
    ],
)
def test_only_chosen_responses_are_in_it_and_no_group_without_any(store, tmp_path, choice, groups, rewards):
    write_dataset(open_store(store), tmp_path / "set", choice)
    rows = exported_rows(tmp_path / "set")
    assert "".join(row["observation_id"] for row in rows) == groups
    assert [len(row["responses"]) for row in rows] == rewards
    flat = Choice("responses", choice.scopes, choice.valid_only, choice.lineage)
    assert write_dataset(open_store(store), tmp_path / "flat", flat).rows == sum(rewards)


def test_a_large_store_becomes_several_shards_with_their_number_in_every_name(store, tmp_path):
    write_dataset(open_store(store), tmp_path / "one", Choice())
    source = write_dataset(open_store(store), tmp_path / "set", Choice(), shard_bytes=2000)
    names = sorted(path.name for path in (tmp_path / "set" / "data").iterdir())
    assert names == [f"train-{number:05d}-of-{source.shards:05d}.parquet" for number in range(source.shards)]
    assert source.shards > 2
    assert exported_rows(tmp_path / "set") == exported_rows(tmp_path / "one")


def test_compacted_attempts_are_exported_as_their_json_lines(store, tmp_path):
    write_dataset(open_store(store), tmp_path / "before", Choice())
    (path,) = store.glob("*/*/records-b.jsonl")
    compact(path)
    write_dataset(open_store(store), tmp_path / "after", Choice())
    assert exported_rows(tmp_path / "after") == exported_rows(tmp_path / "before")


def test_a_card_says_what_is_in_it_and_nothing_that_a_manifest_could_smuggle_in(tmp_path):
    evil = "x`](http://e)\n---\n<script>"
    write(tmp_path / "store", manifest("a", protocol_digest=evil), [group("1")])
    write_dataset(
        open_store(tmp_path / "store"), tmp_path / "set", Choice(scopes=("start_checkpoint",), valid_only=True)
    )
    card = (tmp_path / "set" / "README.md").read_text()
    assert f"- lineage `{LINEAGE}`" in card
    assert "Responses are those of policy scope start_checkpoint, with `validity.valid = true` only." in card
    assert "<script>" not in card and card.count("\n---\n") == 1
    assert str(tmp_path) not in card


def test_a_folder_that_holds_something_is_refused_and_left_as_it_is(store, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "mine.txt").write_text("x")
    with pytest.raises(StoreError, match="set is not empty: name a new folder"):
        write_dataset(open_store(store), tmp_path / "set", Choice())
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["mine.txt"]
    with pytest.raises(StoreError, match="mine.txt is not empty"):
        write_dataset(open_store(store), tmp_path / "set" / "mine.txt", Choice())


def test_the_folder_is_there_whole_or_not_at_all(store, tmp_path):
    (tmp_path / "empty").mkdir()
    (store / LINEAGE / "first-first-id" / "manifest-z.json").write_text("{")
    with pytest.raises(StoreError, match="no response of the store matches"):
        write_dataset(open_store(store), tmp_path / "set", Choice(lineage="no such"))
    (path,) = store.glob("*/*/records-b.jsonl")
    target = compact(path)
    content = target.read_bytes()
    target.write_bytes(bytes(len(content) // 2) + content[len(content) // 2 :])  # so that reading fails in the middle
    with pytest.raises(StoreError, match="records-b.parquet cannot be read"):
        write_dataset(open_store(store), tmp_path / "empty", Choice())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "store"]
    assert list((tmp_path / "empty").iterdir()) == []


def test_the_command_writes_the_folder_and_tells_what_it_left_out(store, tmp_path):
    target = tmp_path / "new" / "set"
    arguments = [str(store), "--to", str(target), "--rows", "groups", "--scope", "mixed", "--scope", "run_version"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert f"2 groups in 1 Parquet file: {target}" in done.output
    assert "records-a.jsonl: 1 lines are no rows" in done.output
    again = CliRunner().invoke(app, arguments)
    assert isinstance(again.exception, RerollError)
    assert CliRunner().invoke(app, [str(store), "--to", "x", "--scope", "begin"]).exit_code == 2


def test_a_store_that_grows_is_exported_as_of_one_moment(store, tmp_path):
    """A group whose disposition was not yet there is not exported as unused beside one that is: neither is."""
    opened = open_store(store)
    (path,) = store.glob("*/*/records-b.jsonl")

    class Growing(RecordStore):
        def rows(self, **options):
            found = super().rows(**options)
            with path.open("ab") as file:
                file.write(line(group("late")) + line(consumed("late")))
            yield from found

    opened.__class__ = Growing
    write_dataset(opened, tmp_path / "set", Choice("groups"))
    assert [row["observation_id"] for row in exported_rows(tmp_path / "set")] == ["1", "2", "3", "4", "5", "1"]
    assert path.read_bytes().count(b'"late"') == 4, "it did grow in both passes"
    write_dataset(open_store(store), tmp_path / "again", Choice("groups"))
    found = {row["observation_id"]: row["disposition"] for row in exported_rows(tmp_path / "again")}
    assert found["late"] == "consumed"


FULL = """
import resource, sys
from pathlib import Path
from reroll_records.api import RecordStore, open_store
from reroll_records.export.dataset import Choice, write_dataset
from reroll_records.store.layout import StoreError
import duckdb
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try: write_dataset(open_store(sys.argv[1]), Path(sys.argv[2]), Choice(), 1)
except StoreError as error: print(error)
"""


@pytest.mark.parametrize("limit", [100, 4000], ids=["rows", "parquet"])
def test_on_a_full_disk_the_remedy_is_told_and_nothing_stays(store, tmp_path, limit):
    """Rows are written by Python, and Parquet by DuckDB: either may find the disk full."""
    target = tmp_path / "set"
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(store), str(target), str(limit)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{target} cannot be written (")
    assert ("IO Error" in done.stdout) is (limit == 4000)
    assert "give a folder where there is room" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_without_duckdb_the_command_tells_the_remedy_and_writes_nothing(store, tmp_path):
    code = (
        "import sys; sys.modules['duckdb'] = None\n"
        "from pathlib import Path\n"
        "from reroll.api import RerollError\n"
        "from reroll_records.export.command import export\n"
        "try: export(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "except RerollError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store), str(tmp_path / "set")], capture_output=True, text=True, timeout=60
    )
    assert "pip install 'reroll-records[analysis]'" in done.stdout, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_without_orjson_the_data_set_is_the_same(store, tmp_path):
    write_dataset(open_store(store), tmp_path / "quick", Choice())
    code = (
        "import sys; sys.modules['orjson'] = None\n"
        "from pathlib import Path\n"
        "from reroll_records.export.command import export\n"
        "export(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store), str(tmp_path / "plain")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert exported_rows(tmp_path / "plain") == exported_rows(tmp_path / "quick")


texts = st.text(st.characters(codec=None), max_size=12)
finite = st.floats(-9e18, 9e18)
integers = st.integers(-(2**63), 2**63 - 1)


states = st.dictionaries(texts, texts, max_size=2)


@st.composite
def odd_groups(draw):
    found = [
        response(
            draw(integers),
            draw(st.none() | finite),
            text=draw(st.none() | texts),
            validity=Validity(draw(st.sampled_from([True, False, None])), draw(states)),
            reward_components=[RewardComponent(draw(texts), draw(st.none() | finite), draw(finite))],
            policy_versions=draw(st.lists(integers, max_size=3)),
            seed=draw(st.none() | integers),
            status=draw(texts),
            response_tokens=draw(integers),
        )
        for _ in range(draw(st.integers(0, 3)))
    ]
    named = {name: draw(texts) for name in ("source_dataset", "filter_reason", "prepared_sample_id", "input_key")}
    named |= {"verifiers": draw(st.lists(texts, max_size=2)), "source_row": draw(integers), "time": draw(finite)}
    return group(draw(texts), responses=found, **named)


@given(st.lists(odd_groups(), min_size=1, max_size=4))
@settings(max_examples=25)
def test_whatever_a_row_can_hold_is_exported_as_it_is_but_halves_of_surrogate_pairs(found):
    def written(value):
        if isinstance(value, str):
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return [written(item) for item in value] if isinstance(value, list) else value

    with TemporaryDirectory() as folder:
        root = Path(folder)
        write(root / "store", manifest("a"), found)
        if not any(row.responses for row in found):
            with pytest.raises(StoreError, match="no response of the store matches"):
                write_dataset(open_store(root / "store"), root / "set", Choice("groups"))
            return
        write_dataset(open_store(root / "store"), root / "set", Choice("groups"))
        exported = exported_rows(root / "set")
    kept = [row for row in found if row.responses]
    assert len(exported) == len(kept)
    for row, scored in zip(exported, kept, strict=True):
        for name in ("observation_id", "source_dataset", "source_row", "prepared_sample_id", "verifiers", "time"):
            assert row[name] == written(getattr(scored, name)), name
        for item, given_response in zip(row["responses"], scored.responses, strict=True):
            for name in ("index", "reward", "status", "policy_versions", "seed", "response"):
                assert item[name] == written(getattr(given_response, name)), name
            states = [(state["name"], state["state"]) for state in item["validity"]]
            assert states == [tuple(map(written, pair)) for pair in given_response.validity.components.items()]
            (component,) = given_response.reward_components
            assert item["reward_components"] == [
                {"name": written(component.name), "score": component.score, "weight": component.weight}
            ]
