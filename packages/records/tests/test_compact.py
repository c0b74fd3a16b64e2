"""Attempts in Parquet: nothing is lost, nothing reads differently, and lines go only where that was seen."""

import errno
import fcntl
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest
import written_store
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from written_store import changes, take

from reroll_records.compaction import conversion
from reroll_records.compaction.compact import Options, _delete, compact
from reroll_records.compaction.conversion import ConversionError, check, contents, unknown_field
from reroll_records.selection.selecting import Rule, select
from reroll_records.store.appending import Appender, AppendError
from reroll_records.store.compacted import origin_of, rows
from reroll_records.store.database import COLUMNS
from reroll_records.store.layout import StoreError, scan
from reroll_records.store.lines import complete_lines, parse
from reroll_records.store.liveness import hold

SOURCES = Path(__file__).parents[1] / "src"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCES)}
DELETE = Options(delete_originals=True)


def manifest(attempt):
    return {
        "kind": "manifest",
        "schema": 1,
        "source": "train",
        "run": {"name": "r", "id": "r1", "attempt": attempt, "fresh": True},
        "lineage": {"id": "0" * 16, "files": {}},
        "protocol": {"deterministic_inference": False},
        "protocol_digest": "p",
        "rollout_seed": 0,
        "started": 0.0,
    }


def make(root, data=b"", attempt="a", closed=True, name="r-r1"):
    """An attempt with these lines; its folder."""
    folder = root / ("0" * 16) / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"manifest-{attempt}.json").write_text(json.dumps(manifest(attempt)))
    (folder / f"records-{attempt}.jsonl").write_bytes(data)
    if closed:
        (folder / f"closed-{attempt}.json").write_text('{"kind": "closed", "schema": 1}')
    return folder


def response(index=0, **more):
    return {
        "index": index,
        "reward": 0.1,
        "reward_components": [{"name": "math", "score": 1, "weight": 1.0}, {"name": "é", "score": None, "weight": 0.5}],
        "validity": {"valid": True, "components": {"math": "ok", "a.b": "completed", "": "ok"}},
        "response_tokens": 5,
        "status": "completed",
        "truncated": False,
        "policy_versions": [0, 3],
        "policy_scope": "mixed",
        "seed": 2**63 - 1,
    } | more


def group(number=0, **more):
    texts = ("task_key", "task_key_basis", "input_key", "query_sha256", "prompt_token_sha256", "prepared_sample_id")
    return {
        "kind": "group",
        "schema": 1,
        "observation_id": f"o{number}",
        **{name: f"{name} {number}" for name in texts},
        "source_dataset": "",
        "source_row": number,
        "verifiers": ["math", "é"],
        "group_index": number,
        "rollout_id": -1,
        "group_size": 2,
        "group_attempt": 0,
        "filter_decision": "passed",
        "filter_reason": "",
        "responses_included": False,
        "responses": [response(), response(1, reward=None, seed=None, policy_scope=None, response="é\0\n🦊\u2028")],
        "time": 1.5e9,
    } | more


def disposition(number=0, **more):
    return {
        "kind": "disposition",
        "schema": 1,
        "observation_id": f"o{number}",
        "disposition": "consumed",
        "staleness": 2,
        "time": 1,
    } | more


def lines(*found):
    return b"".join(json.dumps(row, ensure_ascii=number % 2).encode() + b"\n" for number, row in enumerate(found))


def plain(count=6):
    return lines(*(row for number in range(count) for row in (disposition(number), group(number))))


def one(root, options=None):
    (outcome,) = compact(root, options).outcomes
    return outcome


def in_parquet(path):
    with duckdb.connect() as connection:
        return list(rows(connection, path))


def in_lines(data, folder):
    path = folder / "copy"
    path.write_bytes(data)
    return [row for row in map(parse, complete_lines(path)) if row is not None]


_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_integers = st.integers(-(2**63), 2**63 - 1)
_numbers = st.floats(-(2.0**62), 2.0**62) | st.integers(-(2**53), 2**53)
_components = st.lists(st.fixed_dictionaries({"name": _texts, "score": st.none() | _numbers, "weight": _numbers}))
_responses = st.builds(
    lambda fields, text: response(**fields) | ({} if text is None else {"response": text}),
    st.fixed_dictionaries(
        {
            "index": _integers,
            "reward": st.none() | _numbers,
            "reward_components": _components,
            "validity": st.fixed_dictionaries(
                {"valid": st.none() | st.booleans(), "components": st.dictionaries(_texts, _texts, max_size=3)}
            ),
            "status": _texts,
            "policy_versions": st.lists(_integers, max_size=3),
            "policy_scope": st.sampled_from([None, "start_checkpoint", "run_version", "mixed"]),
            "seed": st.none() | _integers,
        }
    ),
    st.none() | _texts,
)
_groups = st.builds(
    lambda fields, text: group(**fields) | ({} if text is None else {"prompt": text}),
    st.fixed_dictionaries(
        {
            "observation_id": _texts,
            "source_row": _integers,
            "verifiers": st.lists(_texts, max_size=3),
            "responses": st.lists(_responses, max_size=3),
            "time": _numbers,
        }
    ),
    st.none() | _texts,
)
_dispositions = st.builds(disposition, staleness=_integers, time=_numbers, observation_id=_texts)
_rows = st.lists(_groups | _dispositions, max_size=8)
_rubbish = st.sampled_from([b"\n", b"null\n", b'{"kind": "group"}\n', b"\xff\n", b'{"time": NaN}\n', b" {}\r\n"])


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(_rows, st.lists(_rubbish, max_size=3), st.randoms(use_true_random=False))
def test_every_row_read_back_equals_the_row_of_its_line_in_order(tmp_path_factory, found, rubbish, shuffle):
    parts = [lines(row) for row in found] + rubbish
    shuffle.shuffle(parts)
    root = tmp_path_factory.mktemp("store")
    data = b"".join(parts)
    folder = make(root, data)
    outcome = one(root)
    assert (outcome.status, outcome.reason) == ("compacted", None)
    assert (outcome.rows, outcome.not_compacted) == (len(found), len(rubbish))
    assert in_parquet(folder / "records-a.parquet") == in_lines(data, root)
    assert (folder / "records-a.jsonl").read_bytes() == data


def test_parquet_has_the_columns_of_rows_compressed_with_zstd_and_says_what_it_was_made_of(tmp_path):
    data = plain() + b"no row\n" + b'{"incompl'
    folder = make(tmp_path, data)
    assert one(tmp_path).rows == 12
    path = folder / "records-a.parquet"
    found = duckdb.sql(f"SELECT DISTINCT compression FROM parquet_metadata('{path}')").fetchall()
    assert found == [("ZSTD",)]
    assert duckdb.sql(f"SELECT * FROM '{path}'").columns == list(COLUMNS)
    ((value,),) = duckdb.sql(
        f"SELECT value FROM parquet_kv_metadata('{path}') WHERE key = 'reroll_source'::BLOB"
    ).fetchall()
    assert json.loads(value) == {
        "name": "records-a.jsonl",
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "incomplete": True,
        "unreadable": 1,
        "rows": 12,
    }


def test_an_attempt_without_rows_is_compacted_and_one_without_a_file_is_left(tmp_path):
    folder = make(tmp_path, b"")
    make(tmp_path, b"", attempt="b")
    (folder / "records-b.jsonl").unlink()
    first, second = compact(tmp_path, DELETE).outcomes
    assert (first.status, first.rows, first.lines) == ("compacted", 0, "deleted")
    assert in_parquet(folder / "records-a.parquet") == []
    assert (second.status, second.reason) == ("left", "it has no rows")


def test_originals_go_only_by_the_explicit_option_and_snapshots_keep_their_meaning(tmp_path):
    folder = make(tmp_path, plain())
    make(tmp_path, plain(2), attempt="b")
    before = take(scan(tmp_path))
    compact(tmp_path)
    assert (folder / "records-a.jsonl").is_file()
    assert take(scan(tmp_path)) == before
    found = compact(tmp_path, DELETE)
    assert [outcome.lines for outcome in found.outcomes] == ["deleted", "deleted"]
    assert sorted(path.name for path in folder.iterdir()) == [
        *("closed-a.json", "closed-b.json", "manifest-a.json", "manifest-b.json"),
        *("records-a.parquet", "records-b.parquet"),
    ]
    store = scan(tmp_path)
    assert take(store) == before
    assert changes(store, before) == []
    assert changes(scan(folder), before) == []
    again = compact(tmp_path, DELETE)
    assert [(outcome.status, outcome.lines) for outcome in again.outcomes] == [("present", "gone")] * 2
    assert in_parquet(folder / "records-a.parquet") == in_lines(plain(), tmp_path)


def test_what_a_snapshot_says_of_a_file_that_was_compacted_with_other_bytes_is_named(tmp_path):
    folder = make(tmp_path, plain(3))
    before = take(scan(tmp_path))
    (folder / "records-a.jsonl").write_bytes(plain(4))
    compact(tmp_path, DELETE)
    assert "has grown from" in changes(scan(tmp_path), before)[0]
    (folder / "records-a.parquet").unlink()
    (folder / "records-a.jsonl").write_bytes(plain(3).replace(b"o1", b"o9"))
    compact(tmp_path, DELETE)
    assert "was compacted with another SHA-256" in changes(scan(tmp_path), before)[0]


def test_a_table_of_a_compacted_store_is_that_of_its_lines_to_the_byte_and_so_are_the_warnings(tmp_path):
    for attempt in "ab":
        found = (
            written_store.group(f"{attempt}{number}", f"prompt {number % 5}", [0.0] * 4 if number % 5 else [0.0, 1.0])
            for number in range(30)
        )
        written_store.write(tmp_path, written_store.manifest(attempt), [*found, b"no row\n", b'{"incomplete'])
    rule = Rule(("all_zero",), readmit_fraction=0.0)
    before = select(tmp_path, rule)
    assert len(before.warnings) == 4
    found = compact(tmp_path, Options(delete_originals=True, delete_unreadable=True, idle_seconds=0)).outcomes
    assert [outcome.lines for outcome in found] == ["deleted", "deleted"]
    after = select(tmp_path, rule)
    assert (after.file, after.sha256) == (before.file, before.sha256)
    assert after.warnings == before.warnings
    assert before.content["excluded"]


def test_lines_that_are_no_rows_keep_the_original_unless_a_second_option_says_so(tmp_path):
    for rest, told in ((b"{}\n", "1 line is no row and is"), (b"{}\n{", "2 lines are no rows and are")):
        folder = make(tmp_path, plain() + rest)
        outcome = one(tmp_path, DELETE)
        assert outcome.kept_because == f"{told} not in Parquet"
        assert (folder / "records-a.jsonl").read_bytes() == plain() + rest
        outcome = one(tmp_path, Options(delete_originals=True, delete_unreadable=True))
        assert outcome.lines == "deleted"
        assert in_parquet(folder / "records-a.parquet") == in_lines(plain(), tmp_path)
        (folder / "records-a.parquet").unlink()


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (group(note="x"), "note"),
        (group(disposition=None), "disposition"),
        (group(responses=[response(judge=1)]), "responses.judge"),
        (group(responses=[response(validity={"valid": None, "components": {}, "by": 1})]), "responses.validity.by"),
        (
            group(responses=[response(reward_components=[{"name": "m", "score": 1, "weight": 1, "why": ""}])]),
            "responses.reward_components.why",
        ),
        (disposition(reason="x"), "reason"),
        (disposition(prompt="x"), "prompt"),
    ],
)
def test_an_attempt_with_fields_that_no_column_holds_is_left_as_it_is_with_the_reason(tmp_path, row, field):
    data = b"no row\n" + plain() + lines(row)
    folder = make(tmp_path, data)
    assert unknown_field(row) == field
    outcome = one(tmp_path, Options(delete_originals=True, delete_unreadable=True))
    assert (outcome.status, outcome.reason) == ("left", f"line 14 has {field}, which no column holds")
    assert (folder / "records-a.jsonl").read_bytes() == data
    assert not (folder / "records-a.parquet").exists()


HOSTILE = {
    "half of a surrogate pair": lines(group()).replace(b'"task_key 0"', b'"\\ud800"'),
    "a number that no float is": lines(group(responses=[response(reward=2**53 + 1)])),
    "a name twice in the row": lines(group()).replace(b'"time":', b'"source_row": 7, "time":'),
    "a name twice in a map": lines(group()).replace(b'{"math": "ok"', b'{"math": "rejected", "math": "ok"'),
    "a list that is none": lines(group(responses=[response(policy_versions="")])),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_rows_that_parquet_cannot_hold_or_duckdb_reads_otherwise_are_never_lost(tmp_path, data):
    data = plain() + data
    folder = make(tmp_path, data)
    outcome = one(tmp_path, DELETE)
    if outcome.status == "left":
        assert outcome.reason
        assert (folder / "records-a.jsonl").read_bytes() == data
        assert not (folder / "records-a.parquet").exists()
    else:
        assert outcome.rows + outcome.not_compacted == 13
        assert in_parquet(folder / "records-a.parquet") == in_lines(data, tmp_path)
    assert not list(folder.glob(".compact-*"))


def test_texts_of_tens_of_megabytes_are_compacted(tmp_path):
    long = "é🦊" * 3_000_000
    data = plain() + lines(group(prompt=long), group(responses=[response(response=long)]), group()) + plain()
    folder = make(tmp_path, data)
    outcome = one(tmp_path, DELETE)
    assert (outcome.status, outcome.rows, outcome.lines) == ("compacted", 27, "deleted")
    assert in_parquet(folder / "records-a.parquet") == in_lines(data, tmp_path)


def test_row_groups_hold_no_more_lines_than_memory_should(tmp_path, monkeypatch):
    monkeypatch.setattr(conversion, "GROUP_BYTES", 100_000)
    large = [group(number, prompt="x" * 40_000) for number in range(9)]
    folder = make(tmp_path, lines(*(group(number) for number in range(5000)), *large))
    found = contents(folder / "records-a.jsonl")
    assert found.group_rows == 2
    assert found.longest > 40_000
    outcome = one(tmp_path)
    assert outcome.rows == 5009
    number = "SELECT count(DISTINCT row_group_id) FROM parquet_metadata"
    ((groups,),) = duckdb.sql(f"{number}('{folder / 'records-a.parquet'}')").fetchall()
    assert groups > 1


def test_names_with_characters_of_patterns_and_quotes_mean_themselves(tmp_path):
    name = "r[1]*?'\" é{2}-r1"
    folder = make(tmp_path, plain(), name=name, attempt="a'[b]*")
    make(tmp_path, lines(disposition()), name="r1-r1", attempt="b")
    found = compact(tmp_path, DELETE)
    assert [outcome.reason for outcome in found.outcomes] == [None, None]
    assert in_parquet(folder / "records-a'[b]*.parquet") == in_lines(plain(), tmp_path)
    assert len(take(scan(tmp_path))) == 4


def test_an_attempt_that_nobody_closed_is_finished_only_when_it_is_idle_and_its_writer_does_not_live(tmp_path):
    folder = make(tmp_path, plain(), closed=False)
    later = time.time() + 1000
    os.utime(folder / "records-a.jsonl", (later, later))  # a clock that is ahead: 0 s, however long this test takes
    outcome = one(tmp_path, DELETE)
    assert outcome.status == "left"
    assert "has not closed it and may be at work: its last row came 0 s ago" in outcome.reason
    os.utime(folder / "records-a.jsonl")
    idle = Options(delete_originals=True, idle_seconds=0)
    with hold(folder / "manifest-a.json"):
        assert one(tmp_path, idle).reason == "its writer, or another compaction, is at work on it"
    assert one(tmp_path, idle).lines == "deleted"
    folder = make(tmp_path, plain(), attempt="b", closed=False)
    earlier = time.time() - 4000
    os.utime(folder / "records-b.jsonl", (earlier, earlier))
    assert compact(tmp_path).outcomes[1].status == "compacted"


def test_without_locks_lines_that_nobody_closed_are_compacted_and_kept(tmp_path, monkeypatch):
    """What a file system without locks answers is put in its place: none is at hand."""

    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    folder = make(tmp_path, plain(), closed=False)
    make(tmp_path, plain(), attempt="b")
    (folder / ".compact-b-abcdefgh").mkdir()  # it may be another's that is at work
    first, second = compact(tmp_path, Options(delete_originals=True, idle_seconds=0)).outcomes
    assert (first.status, first.lines) == ("compacted", "kept")
    assert first.kept_because == "this file system knows no locks: whether their writer is dead cannot be told"
    assert second.lines == "deleted"
    assert (folder / ".compact-b-abcdefgh").is_dir()


def test_what_a_stopped_compaction_left_goes_and_what_is_of_another_attempt_stays(tmp_path):
    folder = make(tmp_path, plain())
    for name in (".compact-a-abcdefgh", ".compact-a-b-abcdefgh"):
        (folder / name).mkdir()
        (folder / name / "rows.parquet").write_bytes(b"half")
    assert one(tmp_path).status == "compacted"
    assert [path.name for path in folder.glob(".compact-*")] == [".compact-a-b-abcdefgh"]


def test_a_closed_attempt_is_finished_at_once(tmp_path):
    folder = make(tmp_path, plain())
    with hold(folder / "manifest-a.json"):
        assert one(tmp_path).status == "compacted"


def test_an_attempt_that_another_compaction_is_at_is_left(tmp_path):
    folder = make(tmp_path, plain())
    with hold(folder / "closed-a.json"):
        assert one(tmp_path).reason == "another compaction is at work on it"


def test_lines_that_grew_are_compacted_anew_and_other_lines_are_left(tmp_path):
    folder = make(tmp_path, plain(3))
    one(tmp_path)
    (folder / "records-a.jsonl").write_bytes(plain(5))
    outcome = one(tmp_path)
    assert (outcome.status, outcome.rows) == ("compacted", 10)
    for other in (plain(3), plain(5).replace(b"o1", b"o7")):
        (folder / "records-a.jsonl").write_bytes(other)
        outcome = one(tmp_path, DELETE)
        assert outcome.status == "left"
        assert "records-a.parquet was made of other lines than these" in outcome.reason
        assert (folder / "records-a.jsonl").read_bytes() == other
    assert in_parquet(folder / "records-a.parquet") == in_lines(plain(5), tmp_path)


def test_a_parquet_file_that_is_not_what_it_says_keeps_the_lines(tmp_path):
    """Its footer is right, and a row is missing, another one, or at another place."""
    folder = make(tmp_path, plain())
    one(tmp_path)
    path = folder / "records-a.parquet"
    footer = json.dumps(origin_of(path).to_json())
    for query in ("LIMIT 11", "WHERE staleness IS NULL OR staleness > 2", "ORDER BY kind"):
        whole = tmp_path / "whole.parquet"
        whole.write_bytes(path.read_bytes())
        duckdb.sql(
            f"COPY (FROM '{whole}' {query}) TO '{path}' (FORMAT parquet, KV_METADATA {{reroll_source: '{footer}'}})"
        )
        outcome = one(tmp_path, DELETE)
        assert outcome.lines == "kept"
        assert "records-a.parquet is not what it was" in outcome.kept_because
        path.write_bytes(whole.read_bytes())
    with path.open("r+b") as file:
        file.write(b"\0" * 300)
    outcome = one(tmp_path, DELETE)
    assert (folder / "records-a.jsonl").read_bytes() == plain()
    assert outcome.lines == "kept"


def test_lines_that_changed_while_they_were_compacted_are_not_deleted(tmp_path):
    folder = make(tmp_path, plain())
    one(tmp_path)
    path, parquet = folder / "records-a.jsonl", folder / "records-a.parquet"
    (attempt,) = scan(tmp_path).attempts
    source = origin_of(parquet)
    for data in (plain() + b"{}\n", plain() + b"{", plain().replace(b"o1", b"o9"), plain(5)):
        path.write_bytes(data)
        with pytest.raises(ConversionError):
            check(path, parquet, folder, 1 << 28)
        assert _delete(attempt, DELETE, source, checked=True) == "they changed meanwhile"
        assert path.read_bytes() == data
    path.write_bytes(plain())
    assert check(path, parquet, folder, 1 << 28) == source


def test_a_writer_that_comes_back_after_its_lines_were_deleted_is_told(tmp_path):
    folder = make(tmp_path, plain(), closed=False)
    with Appender.open(folder / "records-a.jsonl") as file:
        assert one(tmp_path, Options(delete_originals=True, idle_seconds=0)).lines == "deleted"
        with pytest.raises(AppendError, match="the file was removed"):
            file.append([b"{}"])
    assert one(tmp_path).rows == 12


COMPACT = """
import sys
from pathlib import Path
from reroll_records.compaction.compact import Options, compact
print("ready", flush=True)
for outcome in compact(Path(sys.argv[1]), Options(delete_originals=True)).outcomes:
    print(outcome.status, outcome.reason, outcome.kept_because)
"""


def test_a_compaction_that_is_killed_at_any_moment_loses_nothing_and_a_rerun_completes(tmp_path):
    chance = random.Random(1)
    data = {attempt: lines(*(group(number) for number in range(400))) for attempt in "ab"}
    for _ in range(2):
        for attempt, found in data.items():
            folder = make(tmp_path, found, attempt=attempt)
            (folder / f"records-{attempt}.parquet").unlink(missing_ok=True)
        before = take(scan(tmp_path))
        for _ in range(4):
            child = subprocess.Popen([sys.executable, "-c", COMPACT, tmp_path], env=ENVIRONMENT, stdout=subprocess.PIPE)
            assert child.stdout.readline()
            time.sleep(chance.uniform(0.1, 0.5))
            child.send_signal(signal.SIGKILL)
            child.communicate()
            for attempt, found in data.items():
                original, parquet = folder / f"records-{attempt}.jsonl", folder / f"records-{attempt}.parquet"
                if original.exists():
                    assert original.read_bytes() == found
                if parquet.exists():
                    assert len(in_parquet(parquet)) == 400
                assert original.exists() or parquet.exists()
            assert take(scan(tmp_path)) == before
        outcomes = compact(tmp_path, DELETE).outcomes
        assert {outcome.lines for outcome in outcomes} <= {"deleted", "gone"}
        assert len(list(folder.iterdir())) == 6
        for attempt, found in data.items():
            assert in_parquet(folder / f"records-{attempt}.parquet") == in_lines(found, tmp_path)


LIMITED = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))\n" + COMPACT


def test_on_a_full_disk_an_attempt_fails_with_the_reason_and_stays_as_it_is(tmp_path):
    chance = random.Random(0)
    data = lines(*(group(number, task_key=f"{chance.getrandbits(2048):x}") for number in range(300)))
    folder = make(tmp_path, data)
    make(tmp_path, plain(), attempt="b")
    child = subprocess.run(
        [sys.executable, "-c", LIMITED, tmp_path], env=ENVIRONMENT, capture_output=True, text=True, timeout=120
    )
    first, second = child.stdout.splitlines()[1:]
    assert first.startswith("failed DuckDB does not convert it: IO Error")
    assert second == "compacted None None"
    assert (folder / "records-a.jsonl").read_bytes() == data
    assert len(list(folder.iterdir())) == 6
    assert compact(tmp_path).outcomes[0].status == "compacted"


def test_too_little_memory_fails_with_the_remedy(tmp_path):
    folder = make(tmp_path, lines(group(prompt="é" * 15_000_000)))
    outcome = one(tmp_path, Options(delete_originals=True, memory_bytes=16 << 20))
    assert outcome.status == "failed"
    assert outcome.reason.endswith("give it more memory")
    assert (folder / "records-a.jsonl").is_file()


def test_without_duckdb_the_remedy_is_told(tmp_path):
    make(tmp_path, plain())
    code = (
        "import sys; sys.modules['duckdb'] = None\n"
        "from pathlib import Path; from reroll_records.compaction.compact import compact\n"
        "compact(Path(sys.argv[1]))"
    )
    child = subprocess.run([sys.executable, "-c", code, tmp_path], env=ENVIRONMENT, capture_output=True, text=True)
    assert "layout.StoreError: DuckDB is needed" in child.stderr
    assert child.stderr.endswith(": pip install 'reroll-records[analysis]'\n")
    with pytest.raises(StoreError, match="holds no inference records"):
        (tmp_path / "empty").mkdir()
        compact(tmp_path / "empty")
