"""From evidence to a table: every option and every sentence of the specification's section on selection."""

import json
import sys
from collections import defaultdict
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from reroll.api import Verdict

sys.path.insert(0, str(Path(__file__).parent))

from records_cases import CONTEXT, PROTOCOL, make_group, make_trace, other_run, write

from reroll_records.aggregation.statistics import upper_bound
from reroll_records.compaction.compact import Options, compact
from reroll_records.selection.selecting import Rule, select, write_table
from reroll_records.selection.tables import TableError, load_table
from reroll_records.store.identity import lineage, protocol_record
from reroll_records.store.layout import StoreError

ZERO = Rule(skip=("all_zero",), readmit_fraction=0.0)


def evidence(root, rewards, runs=2, seeds=None, context=CONTEXT, number=0, versions=(0,), verdict=Verdict, name="run"):
    """Runs of different rollout seeds, each with one group of these rewards for one prompt."""
    for run in range(runs):
        group = make_group(number, tuple(rewards), prompt=f"what is {number}?")
        group.traces = [make_trace(group.task, verdict(reward), versions=versions) for reward in rewards]
        group.seeds = [1000 * run + place for place in range(len(rewards))] if seeds is None else list(seeds)
        made = replace(context, seeds=replace(context.seeds, rollout=run))
        write(root, [group], replace(made, run_id=f"{name}-{number}-{run}", attempt=f"{name}-{number}-{run}"))


def fate(root, rule=ZERO):
    """What becomes of the only prompt: excluded, readmitted, or why it is kept."""
    (counts,) = select(root, rule, processes=1).content["domains"].values()
    (found,) = [name for name, count in counts.items() if count and name != "prompts"]
    assert counts["prompts"] == counts[found] == 1
    return found


def nondeterministic(context=CONTEXT):
    return replace(context, protocol=replace(PROTOCOL, deterministic_inference=False))


@pytest.mark.parametrize(
    ("reward", "skip", "expected"),
    [
        (0.0, "all_zero", "excluded"),
        (0.0, "all_full", "of_another_reward"),
        (0.0, "zero_variance", "excluded"),
        (1.0, "all_zero", "of_another_reward"),
        (1.0, "all_full", "excluded"),
        (0.3, "all_full", "of_another_reward"),
        (0.3, "zero_variance", "excluded"),
    ],
)
def test_skip_names_the_constant_reward(tmp_path, reward, skip, expected):
    evidence(tmp_path, [reward] * 8)
    assert fate(tmp_path, replace(ZERO, skip=(skip,))) == expected


def test_skip_is_repeatable_and_full_reward_is_what_the_option_says(tmp_path):
    evidence(tmp_path, [2.0] * 8)
    both = replace(ZERO, skip=("all_zero", "all_full"))
    assert fate(tmp_path, both) == "of_another_reward"
    assert fate(tmp_path, replace(both, full_reward=2.0)) == "excluded"
    assert select(tmp_path, replace(both, full_reward=2.0)).content["excluded"][0]["rule"] == "all_full"


def test_a_prompt_that_was_ever_solved_is_never_skipped_as_all_zero(tmp_path):
    """Even where the bound on the rate would hold: 1 in 200."""
    assert upper_bound(1, 200, 0.95) < 0.2
    evidence(tmp_path, [0.0] * 99 + [1.0], runs=1, context=nondeterministic())
    evidence(tmp_path, [0.0] * 100, runs=1, context=nondeterministic(), name="again")
    assert fate(tmp_path) == "varied"


@pytest.mark.parametrize(("runs", "size", "expected"), [(2, 8, "excluded"), (3, 5, "too_few_observations")])
def test_16_valid_responses_are_required(tmp_path, runs, size, expected):
    evidence(tmp_path, [0.0] * size, runs=runs)
    assert fate(tmp_path) == expected
    enough = replace(ZERO, min_observations=runs * size, max_deviation_rate=0.5)
    assert fate(tmp_path, enough) == "excluded"


def test_2_independent_attempts_are_required(tmp_path):
    evidence(tmp_path, [0.0] * 16, runs=1)
    assert fate(tmp_path) == "too_few_units"
    assert fate(tmp_path, replace(ZERO, min_units=1)) == "excluded"


def test_the_bound_must_be_below_the_rate(tmp_path):
    """With zero deviations in n draws it is 1 - 0.05^(1/n): 0.17 at n = 16."""
    evidence(tmp_path, [0.0] * 8)
    (entry,) = select(tmp_path, ZERO).content["excluded"]
    assert entry["observations"] == 16 and entry["bound"] == pytest.approx(1 - 0.05 ** (1 / 16))
    assert fate(tmp_path, replace(ZERO, confidence=0.99)) == "bound_too_high"
    assert fate(tmp_path, replace(ZERO, max_deviation_rate=0.17)) == "bound_too_high"
    assert fate(tmp_path, replace(ZERO, max_deviation_rate=entry["bound"])) == "bound_too_high", "below, not equal"


@pytest.mark.parametrize("state", ["timeout", "rejected", "service_error", "judge_error", "unknown"])
def test_only_responses_with_valid_true_count(tmp_path, state):
    evidence(tmp_path, [0.0] * 8)
    evidence(tmp_path, [1.0] * 8, runs=1, name="failed", verdict=lambda score: Verdict(score, state=state))
    assert fate(tmp_path) == "excluded"
    evidence(tmp_path, [1.0] * 8, runs=1, name="judged")
    assert fate(tmp_path) == "varied"


def test_with_deterministic_inference_attempts_sharing_a_rollout_seed_count_once(tmp_path):
    for name in ("a", "b"):
        evidence(tmp_path, [0.0] * 16, runs=1, seeds=range(ord(name) * 100, ord(name) * 100 + 16), name=name)
    assert fate(tmp_path) == "too_few_units"
    evidence(tmp_path / "other", [0.0] * 16, runs=1, context=nondeterministic(), name="a")
    evidence(tmp_path / "other", [0.0] * 16, runs=1, context=nondeterministic(), name="b")
    assert fate(tmp_path / "other") == "excluded"


def test_with_deterministic_inference_each_seed_counts_once(tmp_path):
    """Repeated groups and overlapping seeds do not add duplicate evidence."""
    evidence(tmp_path, [0.0] * 12, seeds=range(12))
    (counts,) = select(tmp_path, ZERO).content["domains"].values()
    assert counts["too_few_observations"] == 1
    loose = replace(ZERO, min_observations=2, max_deviation_rate=0.5)
    assert select(tmp_path, loose).content["excluded"][0]["observations"] == 12
    evidence(tmp_path, [0.0] * 12, runs=1, seeds=range(8, 20), name="overlapping")
    assert select(tmp_path, loose).content["excluded"][0]["observations"] == 20


def test_nondeterministic_responses_count_separately(tmp_path):
    evidence(tmp_path, [0.0] * 8, seeds=range(8), context=nondeterministic())
    assert select(tmp_path, ZERO).content["excluded"][0]["observations"] == 16


def test_an_engine_of_which_it_is_not_known_counts_as_deterministic(tmp_path):
    unknown = replace(CONTEXT, protocol=replace(PROTOCOL, deterministic_inference=None))
    evidence(tmp_path, [0.0] * 8, seeds=range(8), context=unknown)
    assert fate(tmp_path) == "too_few_observations"


def test_conflicting_rewards_of_one_seed_still_prevent_exclusion(tmp_path):
    evidence(tmp_path, [0.0] * 16)
    evidence(tmp_path, [1.0], runs=1, seeds=[0], name="conflict")
    assert fate(tmp_path) == "varied"


def test_a_row_without_a_seed_has_rollout_seed_plus_position(tmp_path):
    evidence(tmp_path, [0.0] * 8)  # rollout seeds 0 and 1
    for path in tmp_path.glob("*/*/records-*.jsonl"):
        row = json.loads(path.read_text())
        for item in row["responses"]:
            item["seed"] = None
        path.write_text(json.dumps(row) + "\n")
    found = select(tmp_path, replace(ZERO, min_observations=1, max_deviation_rate=0.5)).content["excluded"]
    assert found[0]["observations"] == 9, "0 to 7, and 1 to 8"


def test_later_versions_do_not_count_unless_asked_for_and_mark_the_table(tmp_path):
    evidence(tmp_path, [0.0] * 8, versions=(3,))
    assert select(tmp_path, ZERO).content["domains"] == {}
    later = replace(ZERO, scopes=("start_checkpoint", "run_version"))
    assert fate(tmp_path, later) == "excluded"
    assert select(tmp_path, later).content["approximate_policy"] is True
    assert select(tmp_path, ZERO).content["approximate_policy"] is False


def test_one_seed_of_two_policies_is_two_draws(tmp_path):
    later = replace(
        ZERO, scopes=("start_checkpoint", "run_version", "mixed"), min_observations=1, max_deviation_rate=0.5
    )
    for versions in ((3,), (4,), (3, 4)):
        evidence(tmp_path, [0.0] * 2, runs=2, seeds=range(2), versions=versions, name=f"v{len(versions)}{versions[0]}")
    assert select(tmp_path, later).content["excluded"][0]["observations"] == 12, "of other runs, or of other versions"


def test_units_are_runs_beyond_the_starting_checkpoint(tmp_path):
    context = replace(CONTEXT, run_id="one")
    group = make_group(0, (0.0,) * 8, prompt="what is 0?")
    for number in range(3):
        group.seeds = [100 * number + place for place in range(8)]
        write(tmp_path, [group], replace(context, attempt=f"attempt-{number}", fresh=False))
    later = replace(ZERO, scopes=("start_checkpoint", "run_version"))
    assert fate(tmp_path, later) == "too_few_units", "three attempts of one run are one trajectory"
    group.seeds = [1000 + place for place in range(8)]
    write(tmp_path, [group], replace(context, attempt="attempt-3"))
    assert fate(tmp_path, later) == "too_few_units", "the run counts by its first attempt already"
    evidence(tmp_path, [0.0] * 8, runs=1, versions=(2,), name="two")
    assert fate(tmp_path, later) == "excluded"


def test_a_share_of_the_excluded_is_kept_always_the_same(tmp_path):
    context = CONTEXT
    for run in range(2):
        groups = [make_group(number, (0.0,) * 8, prompt=f"what is {number}?") for number in range(200)]
        for group in groups:
            group.seeds = [100 * run + place for place in range(8)]
        write(tmp_path, groups, other_run(f"run-{run}", seeds=replace(context.seeds, rollout=run)))
    rule = replace(ZERO, readmit_fraction=0.2)
    built = [select(tmp_path, each).content for each in (rule, rule, replace(rule, seed=1))]
    kept = [{item["input_key"] for item in content["readmitted"]} for content in built]
    assert kept[0] == kept[1] != kept[2]
    for content in built:
        excluded = {item["input_key"] for item in content["excluded"]}
        readmitted = {item["input_key"] for item in content["readmitted"]}
        assert not excluded & readmitted and len(excluded | readmitted) == 200
        assert 20 <= len(readmitted) <= 60
        assert content["domains"]["math"]["readmitted"] == len(readmitted)
    default = select(tmp_path, Rule(skip=("all_zero",))).content
    assert 1 <= len(default["readmitted"]) <= 25 and default["rule"]["readmit_fraction"] == 0.05


def test_defaults_are_the_specifications():
    rule = Rule(skip=("all_zero",))
    assert (rule.scopes, rule.min_observations, rule.min_units) == (("start_checkpoint",), 16, 2)
    assert (rule.confidence, rule.max_deviation_rate) == (0.95, 0.2)
    assert (rule.readmit_fraction, rule.seed, rule.full_reward) == (0.05, 0, 1.0)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"skip": ()}, "skip"),
        ({"skip": ("all_zero", "none")}, "skip"),
        ({"scopes": ("version",)}, "scope"),
        ({"scopes": ()}, "scope"),
        ({"min_observations": 0}, "min-observations"),
        ({"min_units": 0}, "min-units"),
        ({"confidence": 1.0}, "confidence"),
        ({"max_deviation_rate": 0.0}, "max-deviation-rate"),
        ({"max_deviation_rate": 1.5}, "max-deviation-rate"),
        ({"readmit_fraction": 1.0}, "readmit-fraction"),
        ({"full_reward": float("nan")}, "full-reward"),
    ],
)
def test_options_without_a_meaning_are_refused_by_name(change, name):
    with pytest.raises(StoreError, match=f"--{name} is"):
        replace(ZERO, **change)


def test_lineage_and_protocol_are_needed_where_the_store_holds_several(tmp_path):
    evidence(tmp_path, [0.0] * 8)
    evidence(tmp_path, [0.0] * 8, context=nondeterministic(), name="other")
    moved = replace(CONTEXT, checkpoint={"config.json": {"size": 5, "mtime": 1}})
    evidence(tmp_path, [0.0] * 8, context=moved, name="moved")
    lineages = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(StoreError, match="--lineage is not given") as caught:
        select(tmp_path, ZERO)
    assert all(name in str(caught.value) for name in lineages)
    with pytest.raises(StoreError, match="--protocol is not given"):
        select(tmp_path, ZERO, lineage=lineage(CONTEXT)["id"])
    assert len(select(tmp_path, ZERO, lineage=lineage(moved)["id"]).content["excluded"]) == 1
    with pytest.raises(StoreError, match="none that begins so"):
        select(tmp_path, ZERO, lineage="0123")
    digests = {json.loads(path.read_text())["protocol_digest"] for path in tmp_path.glob("*/*/manifest-*.json")}
    for found in digests:
        content = select(tmp_path, ZERO, lineage(CONTEXT)["id"], found).content
        assert content["protocol_digest"] == found and len(content["excluded"]) == 1
    assert select(tmp_path / lineage(moved)["id"], ZERO).content["lineage"]["id"] == lineage(moved)["id"]


def test_a_start_that_recorded_nothing_is_no_second_protocol(tmp_path):
    """A run that was refused, or failed at once, has left a manifest and no rows."""
    evidence(tmp_path, [0.0] * 8)
    write(tmp_path, [], nondeterministic(replace(CONTEXT, run_id="empty", attempt="empty")))
    assert fate(tmp_path) == "excluded"
    with pytest.raises(StoreError, match="holds no rows yet"):
        write(tmp_path / "other", [])
        select(tmp_path / "other", ZERO)


def test_a_damaged_compacted_attempt_is_told_by_its_name(tmp_path):
    evidence(tmp_path, [0.0] * 8)
    compact(tmp_path, Options(delete_originals=True, idle_seconds=0))
    assert fate(tmp_path) == "excluded", "compacted evidence counts as its lines did"
    path = sorted(tmp_path.glob("*/*/*.parquet"))[0]
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 2] = bytes(len(content) // 2 - 4)
    path.write_bytes(content)
    with pytest.raises(StoreError, match=path.name):
        select(tmp_path, ZERO)


def test_the_table_says_what_it_rests_on(tmp_path):
    evidence(tmp_path, [0.0] * 8)
    built = select(tmp_path, ZERO)
    content = json.loads(built.file)
    assert built.sha256 == sha256(built.file).hexdigest()
    assert content["lineage"] == lineage(CONTEXT) and content["protocol"] == protocol_record(PROTOCOL)
    assert content["rule"]["min_observations"] == 16
    files = {
        path.relative_to(tmp_path).as_posix(): path for path in tmp_path.glob("*/*/*") if "closed" not in path.name
    }
    assert {item["path"] for item in content["inputs"]} == set(files)
    for item in content["inputs"]:
        path = files[item["path"]]
        assert (item["size"], item["sha256"]) == (path.stat().st_size, sha256(path.read_bytes()).hexdigest())
    assert content["domains"]["math"] == {
        "prompts": 1,
        "excluded": 1,
        "readmitted": 0,
        "varied": 0,
        "of_another_reward": 0,
        "too_few_observations": 0,
        "too_few_units": 0,
        "bound_too_high": 0,
    }
    assert select(tmp_path, ZERO).file == built.file, "equal evidence and an equal rule give one digest"


def test_a_table_is_never_written_over(tmp_path):
    evidence(tmp_path / "store", [0.0] * 8)
    built = select(tmp_path / "store", ZERO)
    path = tmp_path / "folder" / "table.json"
    write_table(path, built)
    write_table(path, built)
    other = select(tmp_path / "store", replace(ZERO, min_units=1))
    with pytest.raises(StoreError, match="runs may have pinned it"):
        write_table(path, other)
    assert path.read_bytes() == built.file
    assert [found.name for found in path.parent.iterdir()] == ["table.json"]


def test_a_table_is_read_only_as_it_was_pinned(tmp_path):
    evidence(tmp_path / "store", [0.0] * 8)
    built = select(tmp_path / "store", ZERO)
    path = tmp_path / "table.json"
    write_table(path, built)
    table = load_table(path, built.sha256)
    assert list(table.excluded.values()) == ["all_zero (math)"]
    path.write_bytes(built.file + b"\n")
    with pytest.raises(TableError, match=r"has the SHA-256 .* pins"):
        load_table(path, built.sha256)
    with pytest.raises(TableError, match="cannot be read"):
        load_table(tmp_path / "none.json", built.sha256)
    for text in (b"[]", b"{", b'{"kind": "selection", "schema": 2}', b'{"kind": "selection", "schema": 1}'):
        path.write_bytes(text)
        with pytest.raises(TableError):
            load_table(path, sha256(text).hexdigest())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"excluded": {}}, "excluded is {}"),
        ({"excluded": [{"input_key": [], "rule": "all_zero", "verifiers": []}]}, r"excluded\[0\].input_key is \[\]"),
        ({"excluded": [{"input_key": "A" * 64, "rule": "x", "verifiers": []}]}, "64 hexadecimal digits"),
        ({"excluded": [{"input_key": "a" * 64, "rule": "x", "verifiers": [1]}]}, "no rule and verifiers"),
        ({"schema": True}, "no selection table of schema 1"),
        ({"lineage": {"sha256": "a"}}, "lineage.files is None"),
        ({"approximate_policy": None}, "approximate_policy is None"),
    ],
)
def test_a_table_that_was_edited_is_refused_when_it_is_read(tmp_path, change, says):
    evidence(tmp_path / "store", [0.0] * 8)
    text = json.dumps({**json.loads(select(tmp_path / "store", ZERO).file), **change}).encode()
    (tmp_path / "table.json").write_bytes(text)
    with pytest.raises(TableError, match=says):
        load_table(tmp_path / "table.json", sha256(text).hexdigest())
    twice = b'{"kind": "selection", "kind": "selection"}'
    (tmp_path / "table.json").write_bytes(twice)
    with pytest.raises(TableError, match="'kind' stands twice"):
        load_table(tmp_path / "table.json", sha256(twice).hexdigest())


def test_a_checkpoint_whose_file_names_are_no_text_has_a_table(tmp_path):
    odd = replace(CONTEXT, checkpoint={**CONTEXT.checkpoint, "note\udcff.txt": {"size": 1, "mtime": 1.0}})
    evidence(tmp_path / "store", [0.0] * 8, context=odd)
    built = select(tmp_path / "store", ZERO)
    write_table(tmp_path / "table.json", built)
    load_table(tmp_path / "table.json", built.sha256).check_run(lineage(odd), protocol_record(PROTOCOL))


def test_a_table_refuses_another_checkpoint_or_protocol_by_name(tmp_path):
    evidence(tmp_path / "store", [0.0] * 8)
    built = select(tmp_path / "store", ZERO)
    path = tmp_path / "table.json"
    write_table(path, built)
    table = load_table(path, built.sha256)
    table.check_run(lineage(CONTEXT), protocol_record(PROTOCOL))
    touched = replace(CONTEXT, checkpoint={**CONTEXT.checkpoint, "model.safetensors": {"size": 9, "mtime": 3}})
    with pytest.raises(TableError, match=r"model.safetensors.mtime: 2 there, 3 in this run"):
        table.check_run(lineage(touched), protocol_record(PROTOCOL))
    hot = replace(PROTOCOL, sampling={**PROTOCOL.sampling, "temperature": 0.5})
    with pytest.raises(TableError, match=r"sampling.temperature: 1.0 there, 0.5 in this run"):
        table.check_run(lineage(CONTEXT), protocol_record(hot))


RUNS = st.lists(
    st.tuples(
        st.sampled_from([0, 1]),  # rollout seed
        st.lists(
            st.tuples(
                st.integers(0, 2),  # prompt
                st.lists(
                    st.tuples(
                        st.sampled_from([0.0, 0.0, 0.0, 1.0]),
                        st.integers(0, 5),
                        st.sampled_from([(0,), (0,), (2,), (0, 2)]),
                        st.sampled_from(["ok", "ok", "completed", "timeout", "unknown"]),
                    ),
                    min_size=1,
                    max_size=5,
                ),
            ),
            max_size=5,
        ),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(runs=RUNS, deterministic=st.booleans(), later=st.booleans())
def test_selection_is_what_a_plain_reading_of_the_rule_gives(runs, deterministic, later, tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    base = replace(CONTEXT, protocol=replace(PROTOCOL, deterministic_inference=deterministic))
    draws, units, rewards = defaultdict(list), defaultdict(set), defaultdict(set)
    for number, (rollout_seed, groups) in enumerate(runs):
        made = []
        for place, (prompt, responses) in enumerate(groups):
            group = make_group(place, [reward for reward, *_ in responses], prompt=f"what is {prompt}?")
            group.traces = [
                make_trace(group.task, Verdict(reward, state=state), versions=versions)
                for reward, _, versions, state in responses
            ]
            group.seeds = [seed for _, seed, *_ in responses]
            made.append(group)
            for reward, seed, versions, state in responses:
                start = versions == (0,)
                if state not in ("ok", "completed") or not (start or later):
                    continue
                rewards[prompt].add(reward)
                policy = "start" if start else (number, versions)
                draws[prompt].append((policy, seed) if deterministic else object())
                units[prompt].add(("start", number) if start else ("run", number))
        for group, (prompt, _) in zip(made, groups, strict=True):
            group.task = replace(group.task, source_row=prompt, prepared_sample_id=str(prompt))
        context = replace(base, run_id=f"run-{number}", attempt=f"attempt-{number}")
        write(root, made, replace(context, seeds=replace(base.seeds, rollout=rollout_seed)))
    expected = {}
    assume(any(groups for _, groups in runs))
    for prompt, values in rewards.items():
        started = {number for kind, number in units[prompt] if kind == "start"}
        looks = {runs[number][0] for number in started} if deterministic else started
        count = len(looks) + len({number for kind, number in units[prompt] if kind == "run"} - started)
        if values == {0.0} and len(set(draws[prompt])) >= 3 and count >= 2:
            expected[prompt] = (len(set(draws[prompt])), count)
    scopes = ("start_checkpoint", "run_version", "mixed") if later else ("start_checkpoint",)
    rule = replace(ZERO, min_observations=3, max_deviation_rate=0.9, scopes=scopes)
    found = select(root, rule, processes=1).content["excluded"]
    assert {item["source_row"]: (item["observations"], item["units"]) for item in found} == expected
    spilled = select(root, rule, processes=1, memory=1)
    assert spilled.content["excluded"] == found, "what does not fit into memory is merged from the disk"
