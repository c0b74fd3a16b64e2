"""What `summarize` writes, by both engines."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from written_store import consumed, expired, group, manifest, response, write

sys.path.insert(0, str(Path(__file__).parent))
from odd_stores import build, plain, stores
from records_cases import PASSED, make_group

from reroll_records.aggregation import aggregate
from reroll_records.store import forms
from reroll_records.store.layout import StoreError
from reroll_records.store.lines import parse
from reroll_records.summary import duck_aggregate as ducks
from reroll_records.summary import duck_rows, totals
from reroll_records.summary.summarize import summarize, write_parquet
from reroll_records.writing.recording import RowMaker, encode

FILES = ("prompts.jsonl", "tokens.json", "summary.json")


def contents(output):
    return [(output / name).read_bytes() for name in FILES]


def read(output):
    prompts = [json.loads(line) for line in (output / "prompts.jsonl").read_text().splitlines()]
    return prompts, json.loads((output / "tokens.json").read_text())["rows"]


def summary_of(tmp_path, rows, engine="standard", **changed):
    write(tmp_path / "store", manifest("a", **changed), [row if isinstance(row, bytes) else line(row) for row in rows])
    return summarize(tmp_path / "store", tmp_path / "out", engine)


def line(row):
    return encode(row.to_json()) + b"\n"


@given(stores())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_both_engines_write_the_same_bytes_and_a_plain_reading_says_the_same(tmp_path_factory, store):
    folder = tmp_path_factory.mktemp("odd")
    root = build(folder / "store", store)
    summary = summarize(root, folder / "standard", "standard", processes=1)
    summarize(root, folder / "duckdb", "duckdb", processes=1)
    assert contents(folder / "standard") == contents(folder / "duckdb")
    prompts, tokens, counts = plain(root)
    assert read(folder / "standard") == (prompts, tokens)
    for name in ("groups", "dispositions", "unreadable_lines"):
        assert summary["counts"][name] == counts.get(name, 0)
    told = [warning for warning in summary["warnings"] if "of no group row" in warning]
    assert sum(int(warning.split(": ")[1].split()[0]) for warning in told) == counts.get("orphans", 0)
    assert (
        summary["counts"]["responses"]
        == sum(row["responses"] for row in tokens)
        == sum(row["responses"] for row in prompts)
    )


@given(stores())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_spilling_after_every_row_gives_the_same_files(tmp_path_factory, store):
    folder = tmp_path_factory.mktemp("spilled")
    root = build(folder / "store", store)
    summarize(root, folder / "held", "standard", processes=1)
    summarize(root, folder / "spilled", "standard", processes=1, memory=1)
    assert contents(folder / "held") == contents(folder / "spilled")


def test_pieces_of_files_in_several_processes_give_the_same_files(tmp_path, monkeypatch):
    rows = [group(f"o{number}", f"p{number % 9}") for number in range(60)]
    rows += [consumed(f"o{number}") for number in range(0, 70, 2)]
    write(tmp_path / "store", manifest("a"), map(line, rows))
    write(tmp_path / "store", manifest("b", "second"), map(line, rows[::-1]))
    summarize(tmp_path / "store", tmp_path / "one", "standard", processes=1)
    monkeypatch.setattr(aggregate, "PAYS", 0)
    monkeypatch.setattr(aggregate, "SHARE", 3000)
    summarize(tmp_path / "store", tmp_path / "two", "standard", processes=2, memory=20_000)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_duckdb_takes_what_writers_wrote_and_leaves_the_rest(tmp_path):
    path = write(tmp_path / "s", manifest("a"), map(line, [group("o", texts=['é "x" \\ 🎲\n', ""]), consumed("o")]))
    odd = write(tmp_path / "s", manifest("b"), [line(group("o")), b"\n"])
    torn = write(tmp_path / "s", manifest("c"), [line(group("o")), b"{"])
    from reroll_records.store.layout import scan
    from reroll_records.store.sources import snapshot

    taken = snapshot(scan(tmp_path / "s"))
    collected, refused = ducks.aggregate_with_duckdb(
        taken.sources, totals.provenances(taken.store), tmp_path, 1, 1 << 28
    )
    assert [source.path for source in refused] == [odd, torn]
    assert collected.rows == {0: 2}
    assert path not in refused


@given(st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_line_of_the_writers_form_is_a_row_and_gives_what_decoding_it_gives(data):
    from odd_stores import encoded, odd_lines, rows

    content = data.draw(st.one_of(rows.map(encoded), odd_lines()))
    raw, slow = totals.Totals([totals.Provenance("l", "p")]), totals.Totals([totals.Provenance("l", "p")])
    if raw.add_line(0, content):
        row = parse(content)
        assert row is not None
        slow.add(0, row)
        assert sorted(raw.take()) == sorted(slow.take())
        import duckdb

        text = content.decode()
        assert duckdb.execute("SELECT regexp_full_match(?, ?)", [text, forms.WITHOUT_POSSESSION]).fetchone() == (True,)


def test_what_a_writer_writes_has_the_form():
    """Else every summary would be slow."""
    rows = [
        group("o", texts=['é "x" \\ 🎲\n\x01', ""]),
        group("o", responses=[]),
        group("o", rewards=[None, 0.1, 1e-7, -3.0]),
        group("o", versions=[]),
        group("o", versions=[1, 2], filter_decision="filtered", filter_reason="zero_std_0.0", verifiers=["a", "b"]),
        group("o", responses=[response(0, 1.0, "unknown", seed=None), response(1, 1.0, seed=2**62)]),
        consumed("o"),
        expired("o"),
    ]
    made = make_group(3, (0.0, 1.0, None))
    lines = [line(row)[:-1] for row in rows]
    lines += [RowMaker("p", 7, rate, True, False).line("o", made, PASSED) for rate in (0.0, 1.0)]
    for text in lines:
        assert totals.Totals([totals.Provenance("l", "p")]).add_line(0, text), text


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30))
@settings(max_examples=60, deadline=None)
def test_variance_is_that_of_a_sample_as_numpy_computes_it(tmp_path_factory, values):
    folder = tmp_path_factory.mktemp("moments")
    summary_of(folder, [group("o", rewards=values)])
    (found,) = (row["valid_reward"] for row in read(folder / "out")[0])
    scale = max(abs(value) for value in values) ** 2 or 1.0
    assert found["variance"] == pytest.approx(np.var(values, ddof=1), rel=1e-9, abs=1e-12 * scale)
    assert found["mean"] == pytest.approx(np.mean(values), rel=1e-9, abs=1e-12 * scale)
    assert found["count"] == len(values)


def test_variance_that_no_double_holds_is_null(tmp_path):
    summary_of(tmp_path, [group("o", rewards=[9e18, -9e18])])
    assert read(tmp_path / "out")[0][0]["valid_reward"]["variance"] == pytest.approx(1.62e38)


def test_prompts_have_one_row_per_input_key_and_policy_scope(tmp_path):
    mixed = [response(0, 1.0, versions=[0]), response(1, 0.0, versions=[0]), response(2, 0.0, versions=[1])]
    summary_of(tmp_path, [group("o1", "a", responses=mixed), group("o2", "b", [1.0]), group("o3", "a", [0.0])])
    prompts, tokens = read(tmp_path / "out")
    assert len({(row["input_key"], row["policy_scope"]) for row in prompts}) == len(prompts) == 3
    (start,) = (row for row in prompts if row["policy_scope"] == "start_checkpoint" and row["responses"] == 3)
    assert start["groups"] == {"all_zero": 1, "constant": 0, "mixed": 1, "unscored": 0}
    (later,) = (row for row in prompts if row["policy_scope"] == "run_version")
    assert later["groups"] == {"all_zero": 1, "constant": 0, "mixed": 0, "unscored": 0}
    assert [(row["disposition"], row["groups"], row["responses"]) for row in tokens] == [("unused", 3, 5)]


def test_outcomes_are_classified_from_the_rewards_regardless_of_the_decision(tmp_path):
    rewards = {"all_zero": [0.0, -0.0], "constant": [0.5, 0.5], "mixed": [0.0, 1.0], "unscored": [0.0, None]}
    for decision in ("passed", "filtered", "aborted"):
        rows = [group(name, name, values, filter_decision=decision) for name, values in rewards.items()]
        folder = tmp_path / decision
        folder.mkdir()
        summary_of(folder, rows)
        prompts, _ = read(folder / "out")
        assert sorted(name for row in prompts for name, count in row["groups"].items() if count) == sorted(rewards)
        assert all(row["filter_decisions"][decision] == 1 for row in prompts)


def test_valid_and_unknown_rewards_are_never_pooled_and_invalid_ones_are_in_neither(tmp_path):
    items = [response(0, 1.0, "ok"), response(1, 0.25, "unknown"), response(2, 0.0, "timeout"), response(3, None, "ok")]
    summary_of(tmp_path, [group("o", responses=items)])
    ((row,), _) = read(tmp_path / "out")
    assert row["valid_reward"]["histogram"] == [{"value": 1.0, "count": 1}]
    assert row["unknown_validity_reward"]["histogram"] == [{"value": 0.25, "count": 1}]
    assert row["validity"] == {"valid": 2, "invalid": 1, "unknown": 1}


def test_fractional_rewards_keep_their_distribution(tmp_path):
    summary_of(tmp_path, [group("o", rewards=[0.1, 0.2, 0.1, 1])])
    assert read(tmp_path / "out")[0][0]["valid_reward"]["histogram"] == [
        {"value": 0.1, "count": 2},
        {"value": 0.2, "count": 1},
        {"value": 1.0, "count": 1},
    ]


def test_units_are_attempts_for_the_starting_checkpoint_and_runs_otherwise_with_a_valid_response(tmp_path):
    for attempt, run in (("a", "first"), ("b", "first"), ("c", "second")):
        rows = [group("o1", "start", [1.0]), group("o2", "later", [1.0], versions=[3])]
        write(tmp_path / "store", manifest(attempt, run), map(line, rows))
    failed = [group("o", "start", responses=[response(0, 0.0, "judge_error")])]
    write(tmp_path / "store", manifest("d", "third"), map(line, failed))
    summarize(tmp_path / "store", tmp_path / "out", "standard")
    units = {row["policy_scope"]: row["independent_units"] for row in read(tmp_path / "out")[0]}
    assert units == {"start_checkpoint": 3, "run_version": 2}


def test_prompts_under_two_lineages_are_two_rows(tmp_path):
    for attempt, lineage in (("a", "1" * 16), ("b", "2" * 16)):
        write(tmp_path / "store", manifest(attempt, lineage=lineage), [line(group("o"))])
    summary = summarize(tmp_path / "store", tmp_path / "out", "standard")
    assert [row["lineage"] for row in read(tmp_path / "out")[0]] == ["1" * 16, "2" * 16]
    assert [item["id"] for item in summary["lineages"]] == ["1" * 16, "2" * 16]
    summarize(tmp_path / "store" / ("1" * 16), tmp_path / "one", "standard")
    assert [row["lineage"] for row in read(tmp_path / "one")[0]] == ["1" * 16]


@pytest.mark.parametrize("engine", ["standard", "duckdb"])
def test_tokens_count_each_group_once_by_domain_and_disposition(tmp_path, engine):
    rows = [
        consumed("c"),  # before its group
        group("c", verifiers=["math", "code"]),
        group("e", verifiers=["code", "math"]),
        expired("e"),
        group("u", responses=[response(0, 1.0, truncated=True), response(1, 1.0)]),
        group("f", filter_decision="filtered", filter_reason="zero_std_0.0"),
        group("a", filter_decision="aborted", filter_reason="engine"),
    ]
    summary_of(tmp_path, rows, engine)
    _, tokens = read(tmp_path / "out")
    assert [(row["domain"], row["disposition"], row["groups"], row["tokens"]) for row in tokens] == [
        ("code+math", "consumed", 1, 21),
        ("code+math", "expired", 1, 21),
        ("math", "aborted", 1, 21),
        ("math", "filtered:zero_std_0.0", 1, 21),
        ("math", "unused", 1, 21),
    ]
    assert (tokens[-1]["truncated_responses"], tokens[-1]["truncated_tokens"]) == (1, 10)


@pytest.mark.parametrize("engine", ["standard", "duckdb"])
def test_only_complete_lines_are_read_and_every_warning_is_given(tmp_path, engine):
    root = tmp_path / "store"
    whole = line(group("o"))
    torn = write(root, manifest("a"), [whole, b"no row\n", line(consumed("gone")), whole[:-1]])
    write(root, manifest("a", "second"), [whole])
    (torn.parent / "records-orphan.jsonl").write_bytes(whole)
    (torn.parent / "manifest-new.json").write_text('{"schema": 2}')
    (torn.parent / "closed-a.json").write_text('{"written": 1, "dropped": 4, "failed": 0}')
    summary = summarize(root, tmp_path / "out", engine)
    assert summary["counts"]["groups"] == 1
    told = "\n".join(summary["warnings"])
    for part in (
        "records-a.jsonl ends with an incomplete line",
        "records-a.jsonl: 1 complete line is no row",
        "records-a.jsonl: 1 disposition is of no group row",
        "records-orphan.jsonl has no manifest and is counted nowhere",
        "attempt a is in",
        "the manifest has schema 2",
        "4 rows that the writer dropped",
    ):
        assert part in told
    assert len(summary["warnings"]) == 7


def test_summary_holds_every_manifest_and_record_file_with_size_and_sha256(tmp_path):
    path = write(tmp_path / "store", manifest("a"), [line(group("o"))])
    summary = summarize(tmp_path / "store", tmp_path / "out", "standard")
    names = [item["path"].rpartition("/")[2] for item in summary["inputs"]]
    assert names == ["manifest-a.json", "records-a.jsonl"]
    assert summary["inputs"][1]["size"] == path.stat().st_size
    assert summary["inputs"][1]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == summary
    assert summary["protocols"][0]["protocol"]["sampling"] == {"temperature": 1.0}


def test_output_in_the_store_or_with_something_else_in_it_is_refused(tmp_path):
    write(tmp_path / "store", manifest("a"), [line(group("o"))])
    with pytest.raises(StoreError, match="outside of it"):
        summarize(tmp_path / "store", tmp_path / "store" / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("kept")
    with pytest.raises(StoreError, match=r"notes\.txt.*new or empty folder"):
        summarize(tmp_path / "store", tmp_path / "mine")
    with pytest.raises(StoreError, match="is no folder"):
        summarize(tmp_path / "store", tmp_path / "mine" / "notes.txt")
    summarize(tmp_path / "store", tmp_path / "out")
    (tmp_path / "out" / ".new-prompts").write_text("of a summary that was killed")
    summarize(tmp_path / "store", tmp_path / "out")  # an earlier summary is replaced
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted([".new-prompts", *FILES])


def test_files_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    write(tmp_path / "store", manifest("a"), [line(group("o"))])
    summarize(tmp_path / "store", tmp_path / "out", "standard")
    before = contents(tmp_path / "out")
    write(tmp_path / "store", manifest("b"), [line(group("o"))])

    def fails(self, text, encoding):
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", fails)
    with pytest.raises(OSError, match="no space"):
        summarize(tmp_path / "store", tmp_path / "out", "standard")
    assert contents(tmp_path / "out") == before
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(FILES)


def test_reader_needs_the_standard_library_alone(tmp_path):
    write(tmp_path / "store", manifest("a"), [line(group("o")), encode(group("p").to_json() | {"more": 1}) + b"\n"])
    summarize(tmp_path / "store", tmp_path / "with", "standard")
    program = (
        "import sys\n"
        "for name in ('duckdb', 'orjson', 'pydantic', 'rich', 'typer', 'reroll', 'numpy'):\n"
        "    sys.modules[name] = None\n"
        "from pathlib import Path\n"
        "from reroll_records.summary.summarize import summarize\n"
        "summarize(Path(sys.argv[1]), Path(sys.argv[2]))\n"
    )
    arguments = [sys.executable, "-c", program, str(tmp_path / "store"), str(tmp_path / "without")]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "with") == contents(tmp_path / "without")


def test_lines_too_long_for_duckdb_are_read_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(duck_rows, "LONGEST", 1 << 16)
    rows = [group("o", texts=["x" * 200_000, "y"]), consumed("o")]
    write(tmp_path / "store", manifest("a"), map(line, rows))
    write(tmp_path / "store", manifest("b"), [line(group("o"))])
    for engine in ("standard", "duckdb"):
        summarize(tmp_path / "store", tmp_path / engine, engine)
    assert contents(tmp_path / "standard") == contents(tmp_path / "duckdb")
    assert read(tmp_path / "duckdb")[1][0]["groups"] == 1


def test_missing_duckdb_is_told_with_the_remedy(tmp_path, monkeypatch):
    write(tmp_path / "store", manifest("a"), [line(group("o"))])
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(StoreError, match=r"pip install 'reroll-records\[analysis\]'"):
        summarize(tmp_path / "store", tmp_path / "out", "duckdb")


def test_compacted_attempt_is_summarized_as_its_lines_were_and_needs_duckdb(tmp_path):
    import duckdb

    from reroll_records.store.database import COLUMNS, literal, quoted

    rows = [group("o", "a", [0.1, None]), group("p", "b", responses=[]), consumed("o"), expired("q")]
    path = write(tmp_path / "store", manifest("a"), [*map(line, rows), b"torn\n", b"incomplete"])
    write(tmp_path / "store", manifest("b"), map(line, rows))
    summarize(tmp_path / "store", tmp_path / "before", "standard")
    content = path.read_bytes()
    origin = {"name": path.name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    origin |= {"incomplete": True, "unreadable": 1, "rows": 4}
    columns = ", ".join(f'"{name}": {quoted(kind)}' for name, kind in COLUMNS.items())
    path.write_bytes(b"".join(map(line, rows)))
    duckdb.execute(
        f"COPY (SELECT * FROM read_json({literal(path)}, format='newline_delimited', columns={{{columns}}})) "
        f"TO {literal(path.with_suffix('.parquet'))} "
        f"(FORMAT parquet, KV_METADATA {{reroll_source: {quoted(json.dumps(origin))}}})"
    )
    path.unlink()
    for engine in ("auto", "duckdb"):
        summarize(tmp_path / "store", tmp_path / engine, engine)
        assert contents(tmp_path / "before") == contents(tmp_path / engine)
    with pytest.raises(StoreError, match="leave --engine standard out"):
        summarize(tmp_path / "store", tmp_path / "standard", "standard")


def test_parquet_has_the_rows_of_prompts(tmp_path):
    import duckdb

    summary_of(tmp_path, [group("o", "a", [0.1, None]), group("p", "b", versions=[])])
    path = write_parquet(tmp_path / "out")
    found = duckdb.execute(f"SELECT * FROM '{path}'")
    names = [column[0] for column in found.description]
    assert [dict(zip(names, row, strict=True)) for row in found.fetchall()] == read(tmp_path / "out")[0]


def test_command_writes_the_files_and_shows_tables_and_warnings(tmp_path):
    store = tmp_path / "store"
    rows = [group("o", verifiers=["[red]math"]), consumed("o"), group("f", filter_decision="filtered"), b"torn"]
    write(store, manifest("a"), [row if isinstance(row, bytes) else line(row) for row in rows])
    command = [sys.executable, "-m", "reroll", "records", "summarize", str(store), "--output", str(tmp_path / "out")]
    done = subprocess.run([*command, "--parquet"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for part in ("2 groups with 4 responses", "consumed", "50.0%", "[red]math", "warning: ", "prompts.parquet"):
        assert part in done.stdout
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    assert json.loads(done.stdout) == json.loads((tmp_path / "out" / "summary.json").read_text())
    assert not (tmp_path / "out" / "prompts.parquet").exists()  # of the earlier summary
    done = subprocess.run([*command[:-1], str(store / "in")], capture_output=True, text=True)
    assert done.returncode == 1
    assert "outside of it" in done.stderr and "Traceback" not in done.stderr


def test_commands_are_listed_without_importing_what_does_the_work():
    program = (
        "import sys, reroll_records.plugin as plugin\n"
        "assert [name for name, _ in plugin.reroll_commands()] == ['records']\n"
        "assert not {'rich.table', 'duckdb', 'reroll_records.summary.summarize'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_two_summaries_into_one_folder_leave_one_of_them_whole(tmp_path):
    write(tmp_path / "one", manifest("a"), [line(group(str(n), f"p{n}")) for n in range(300)])
    write(tmp_path / "two", manifest("b"), [line(group(str(n), f"q{n}")) for n in range(200)])
    code = "import sys; from pathlib import Path; from reroll_records.summary.summarize import summarize; "
    code += "[summarize(Path(sys.argv[1]), Path(sys.argv[2]), 'standard', 1) for _ in range(5)]"
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    both = [
        subprocess.Popen([sys.executable, "-c", code, tmp_path / name, tmp_path / "out"], env=found)
        for name in ("one", "two")
    ]
    assert [process.wait(60) for process in both] == [0, 0]
    rows = [json.loads(text) for text in (tmp_path / "out" / "prompts.jsonl").read_text().splitlines()]
    assert len(rows) in (200, 300)
