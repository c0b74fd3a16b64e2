import json
import subprocess
import sys
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner
from written_store import LINEAGE, compact, consumed, expired, group, key, manifest, response, write

from reroll.api import RerollError
from reroll_records.aggregation.statistics import upper_bound
from reroll_records.api import open_store
from reroll_records.inspection.command import inspect
from reroll_records.inspection.search import find
from reroll_records.store.layout import StoreError

app = typer.Typer()
app.command()(inspect)


def run(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture
def store(tmp_path):
    """Prompt x over two runs of one lineage; y in one, and under another lineage."""
    odd = [
        response(0, 1.0, text="right", response_tokens=0),
        response(1, 0.0, "timeout", text="late", truncated=True, status="truncated"),
        response(2, None, "unknown", text="never scored"),
        response(3, 0.25, versions=[0, 1], text="[red]half[/red] \x1b[2J"),
    ]
    rows = [
        expired("2", staleness=9),  # before its group
        group("1", "x", [0.0, 1.0]),
        consumed("1", staleness=2),
        group("2", "x", [0.0, 0.0, 1.0], versions=[3]),
        group("3", "x", [0.0, 0.0], filter_decision="filtered", filter_reason="zero_std_0.0"),
        replace(group("4", "x", responses=odd), prompt="What?\x07"),
        group("5", "x", [None, None], filter_decision="aborted", responses=[response(0, None, "unknown", versions=[])]),
        group("6", "y", [1.0, 1.0], source_row=4, verifiers=["math", "format"]),
        consumed("6"),
        consumed("no such group"),
    ]
    write(tmp_path, manifest("b", run="first", started=5.0), rows)
    write(tmp_path, manifest("a", run="early", started=1.0, source="generate"), [group("1", "x", [0.0, 0.0])])
    write(tmp_path, manifest("c", lineage="1" * 16), [group("7", "y", [0.0], source_row=4)])
    return tmp_path


def test_the_history_of_a_prompt_is_told_by_run_and_weight_versions(store):
    found = find(open_store(store), key("x")[:10])
    (prompt,) = found.matches
    assert (prompt.lineage, prompt.input_key, prompt.place, prompt.domain) == (LINEAGE, key("x"), "sums:3", "math")
    assert found.matches[prompt] == 6
    cells = {(cell.run, cell.first_version, cell.last_version): cell for cell in found.history.cells}
    assert list(cells) == [
        ("early", 0, 0),
        ("first", None, None),
        ("first", 0, 0),
        ("first", 0, 1),
        ("first", 3, 3),
    ]
    start = cells["first", 0, 0]
    assert (start.groups, start.responses, start.mean_reward) == (2, 4, 0.25)
    assert dict(start.dispositions) == {"consumed": 1, "filtered:zero_std_0.0": 1}
    assert dict(start.staleness) == {2: 1}
    assert dict(start.outcomes) == {"mixed": 1, "all_zero": 1}
    later = cells["first", 3, 3]
    assert (dict(later.rewards), dict(later.dispositions)) == ({0.0: 2, 1.0: 1}, {"expired": 1})
    assert dict(later.staleness) == {9: 1}
    crossed = cells["first", 0, 1]
    assert dict(crossed.validity) == {"valid": 2, "invalid": 1, "unknown": 1}
    assert (dict(crossed.rewards), crossed.truncated) == ({1.0: 1, 0.25: 1}, 1)
    assert (crossed.tokens, crossed.fewest, crossed.most) == (36, 0, 13)
    assert dict(crossed.dispositions) == {"unused": 1}, "a passed group without a disposition was still queued"
    assert dict(cells["first", None, None].dispositions) == {"aborted": 1}
    assert cells["early", 0, 0].source == "generate"


def test_the_bound_is_that_on_the_rate_of_rewards_other_than_the_most_common_one(store):
    pools = find(open_store(store), key("x")).history.pools
    start = pools["start_checkpoint"]  # over both runs; of the crossed group the one response of version 0 alone
    assert (dict(start.rewards), start.commonest, start.others) == ({0.0: 5, 1.0: 2}, 0.0, 2)
    assert start.bound == upper_bound(2, 7, 0.95)
    assert dict(pools["run_version"].rewards) == {0.0: 2, 1.0: 1}
    assert dict(pools["mixed"].rewards) == {0.25: 1}


def test_with_deterministic_inference_a_seed_is_drawn_once_per_policy_and_a_conflict_still_counts(tmp_path):
    deterministic = {"protocol": {"deterministic_inference": True}}
    first = [response(0, 0.0, seed=7), response(1, 0.0, seed=None), response(2, 0.0, seed=9)]
    write(
        tmp_path, manifest("a", **deterministic), [group("1", "x", responses=first), group("2", "x", responses=first)]
    )
    again = [response(0, 0.0, seed=8), response(1, 1.0, seed=9), response(2, 0.0, seed=9, versions=[4])]
    write(tmp_path, manifest("b", run="second", **deterministic), [group("1", "x", responses=again)])
    pools = find(open_store(tmp_path), key("x")).history.pools
    # seeds 7, 8 (rollout seed 7 and position 1 where none was recorded) and 9, which once gave another reward
    assert dict(pools["start_checkpoint"].rewards) == {0.0: 3, 1.0: 1}
    assert dict(pools["run_version"].rewards) == {0.0: 1}


@pytest.mark.parametrize(
    "text", [key("x")[:8], key("x"), key("task x")[:8], key("query x")[:8], "sums:3", "sample of x"]
)
def test_a_prompt_is_named_by_a_key_a_hash_a_place_or_a_sample_id(store, text):
    (prompt,) = find(open_store(store), text).matches
    assert prompt.input_key == key("x")


def test_several_matches_are_listed_and_not_guessed(store):
    found = find(open_store(store), key("y"))
    assert found.history is None
    assert sorted((prompt.lineage, groups) for prompt, groups in found.matches.items()) == [(LINEAGE, 1), ("1" * 16, 1)]
    assert find(open_store(store), key("y"), lineage="1" * 16).history is not None
    shown = run(store, key("y")).stdout
    assert "2 prompts match; name one by its input key" in shown
    assert LINEAGE[:8] in shown and "1" * 8 in shown
    told = json.loads(run(store, key("y"), "--json").stdout)
    assert len(told["matches"]) == 2 and told["history"] is None


def test_a_prompt_that_was_prepared_again_is_one_prompt(tmp_path):
    rows = [group("1", "x", source_row=1), group("2", "y"), group("3", "x", source_row=8, prepared_sample_id="new")]
    write(tmp_path, manifest("a"), rows)
    assert sorted(find(open_store(tmp_path), "s").matches.values()) == []
    both = [name for name in "0123456789abcdef" if all(key(prompt).startswith(name) for prompt in "xy")]
    for text in [key("x")[:6], *both]:
        matches = find(open_store(tmp_path), text).matches
        assert {prompt.input_key: groups for prompt, groups in matches.items()}[key("x")] == 2


def test_a_prompt_that_is_not_there_or_empty_is_an_error_with_a_remedy(store):
    with pytest.raises(RerollError, match="no recorded prompt is nothing\\\\x1b: give the beginning of an input key"):
        run(store, "nothing\x1b")
    with pytest.raises(RerollError, match=f"no recorded prompt of lineage {LINEAGE} is"):
        run(store, "zzz", "--lineage", LINEAGE)
    with pytest.raises(StoreError, match="the prompt is empty"):
        find(open_store(store), "")
    with pytest.raises(RerollError, match="the prompt is empty"):
        run(store, "")
    with pytest.raises(RerollError, match="is no folder"):
        run(store / "missing")


def test_kept_responses_come_worst_and_best_first(tmp_path):
    rewards = [0.5, 0.0, 1.0, 0.25, 0.0, 0.75]
    texts = [f"text {index}" for index in range(len(rewards))]
    write(tmp_path, manifest("a"), [group("1", "x", rewards, texts=texts), group("2", "x", [9.0])])
    order = [1, 2, 4, 5, 3, 0]
    for number in range(8):
        kept = find(open_store(tmp_path), key("x"), keep=number).history.responses
        assert [response.text for response in kept] == [f"text {index}" for index in order][:number]


def test_text_of_a_model_reaches_the_terminal_without_control_and_markup_as_it_is(store):
    shown = run(store, key("x"), "--responses", "9").stdout
    assert "\x1b" not in shown and "\x07" not in shown
    assert "[red]half[/red] \\x1b[2J" in shown
    assert "What?\\x07" in shown
    assert "never scored" not in shown, "what was not scored is neither worst nor best"
    assert "reward 0, invalid: first, version 0, 11 tokens, truncated" in shown
    told = run(store, key("x"), "--responses", "9", "--json").stdout
    assert told.isascii() and "\x1b" not in told
    assert "[red]half[/red] \x1b[2J" in [response["text"] for response in json.loads(told)["history"]["responses"]]


def test_names_of_runs_and_data_sets_reach_the_terminal_without_control(tmp_path):
    evil = "\x1b]0;x\x07[bold]"
    rows = [group("1", "x", [0.0] * 16, source_dataset=evil, filter_decision="filtered", filter_reason=evil), b"{}\n"]
    path = write(tmp_path, manifest("a", protocol_digest=evil), rows)
    found = json.loads(path.with_name("manifest-a.json").read_text())
    found["run"]["name"] = evil
    path.with_name("manifest-a.json").write_text(json.dumps(found))
    path.with_name("records-\x1bz.jsonl").write_bytes(b"")
    for arguments in ([], [key("x")], [evil + ":3"]):
        done = run(tmp_path, *arguments)
        assert not {"\x1b", "\x07"} & set(done.output)
        assert "\\x1b]0;x\\x07[bold]" in done.stdout.replace("\n", "")
        assert "records-\\x1bz.jsonl has no manifest" in done.stderr


def test_the_history_shows_tables_and_charts_of_reward_and_length(store):
    shown = run(store, key("x")).stdout
    for text in (key("x"), LINEAGE, "early (generate)", "0–1", "filtered:zero_std_0.0 × 1", "consumed × 1", "0.625"):
        assert text in shown
    assert "mean reward, by run and weight version" in shown and "mean tokens, by run and weight version" in shown
    assert "█" in shown
    assert f"{upper_bound(2, 7, 0.95):.3f}" in shown


def test_json_has_the_whole_history(store):
    told = json.loads(run(store, key("x"), "--json").stdout)
    history = told["history"]
    assert [cell["groups"] for cell in history["cells"]] == [1, 1, 2, 1, 1]
    assert history["cells"][4]["rewards"] == [[0.0, 2], [1.0, 1]]
    assert history["cells"][2]["staleness"] == [[2, 1]]
    assert history["pools"]["start_checkpoint"]["others_rate_upper_bound"] == upper_bound(2, 7, 0.95)
    assert told["warnings"] == []


def test_a_compacted_store_shows_the_same(store):
    def told():
        return [run(store, key("x"), "--json", "--responses", "9").stdout, run(store, "--json").stdout]

    before = told()
    for path in list(store.glob("*/*/records-*.jsonl")):
        compact(path)
    assert told() == before


def test_json_lines_are_inspected_with_nothing_but_the_standard_library_and_the_command_line(store):
    """That is without what the extra `analysis` brings."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('duckdb', 'orjson', 'numpy')))\n"
        "from pathlib import Path\n"
        "from reroll_records.inspection.command import inspect\n"
        "inspect(Path(sys.argv[1]), None, 0, None, 20, 1, None, None, False)\n"
        "inspect(Path(sys.argv[1]), sys.argv[2], 3, None, 20, 1, None, None, False)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store), key("x")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "Hardest" in done.stdout and "mean reward, by run" in done.stdout


def test_the_table_takes_its_options(store):
    told = json.loads(run(store, "--min-responses", "1", "--json").stdout)
    assert [(item["lineage"], item["input_key"]) for item in told["hardest"]] == [
        ("1" * 16, key("y")),
        (LINEAGE, key("x")),
        (LINEAGE, key("y")),
    ]
    assert (told["prompts"], told["enough"]) == (3, 3)
    for arguments, expected in (
        (["--domain", "format+math"], [key("y")]),
        (["--lineage", "1" * 16], [key("y")]),
        (["--limit", "1"], [key("y")]),
        (["--min-responses", "3"], [key("x")]),
    ):
        found = json.loads(run(store, "--json", "--min-responses", "1", *arguments).stdout)["hardest"]
        assert [item["input_key"] for item in found] == expected
    shown = run(store, "--by", "hardest", "--min-responses", "1").stdout
    assert "Hardest: 3 of 3 prompts" in shown and "Most unstable" not in shown
    assert "Hardest" not in run(store, "--by", "unstable").stdout
