"""The task set of a derivation: what it draws, what it delegates to the source, and what it refuses."""

import json
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from reroll.api import PluginError, RunFileError, TaskError

sys.path.insert(0, str(Path(__file__).parent))

from replay_cases import (
    SOURCE_DATA,
    Again,
    opened,
    record,
    run_file,
    write_run_file,
    write_step,
)

from reroll.api import Config
from reroll.cli.validate import file_problems
from reroll.replay import replay_tasks
from reroll.sources import TaskSets
from reroll.tasks.config import check_task_set


@pytest.fixture
def source(tmp_path):
    """A run with two saved steps."""
    folder = tmp_path / "source"
    write_run_file(folder, SOURCE_DATA, {"stop": ["END"], "stop_token_ids": [7]})
    write_step(folder, 0, [record(0, 0.0), record(1)])
    write_step(folder, 1, [record(2), record(3, 0.5)])
    return folder


def again(folder, **more):
    return {"name": "again", "buffer_dir": str(folder), **more}


def bound(found, index=0):
    return found.tasks.bind(found.tasks.task(index), 0)


def problems(tmp_path, options, **more):
    with pytest.raises(RunFileError) as caught:
        run_file(tmp_path, options, **more)
    return {problem.key.rpartition(".")[2]: str(problem) for problem in caught.value.problems}


def test_an_offline_set_has_a_task_for_every_candidate_newest_step_first(tmp_path, source):
    found = opened(tmp_path, again(source))
    assert len(found.tasks) == 4 and not found.tasks.online
    ids = [bound(found, index).task.source_id for index in range(4)]
    assert ids == ["r2", "r3", "r0", "r1"]


def test_a_derived_task_is_scored_by_the_sources_own_task_set(tmp_path, source):
    binding = bound(opened(tmp_path, again(source)))
    assert binding.judged.prompt == [{"role": "user", "content": "What is 2?"}]
    assert binding.judged.metadata == {"hard": True}
    assert binding.task.targets == binding.judged.targets == {"exact_match": "3"}
    assert [message["content"] for message in binding.task.prompt] == ["What is 2?", "3", "Again?"]


def test_verifiers_and_weights_are_those_of_the_source_and_not_of_this_run(tmp_path, source):
    (name, judge), *others = opened(tmp_path, again(source)).tasks.judges().items()
    assert (name, judge.weight, others) == ("exact_match", 2.0, [])
    assert judge.verifier.config.case_sensitive is False


def test_stop_conditions_are_delegated(tmp_path, source):
    binding = bound(opened(tmp_path, again(source)))
    assert (binding.stop, binding.stop_token_ids) == (("END",), (7,))


def test_the_harness_is_that_of_the_rollouts_data_source(tmp_path, source):
    data = {**SOURCE_DATA, "sources": [{**SOURCE_DATA["sources"][0], "harness": "single_turn"}]}
    write_run_file(source, data)
    assert bound(opened(tmp_path, again(source))).harness.name == "single_turn"


def test_source_reward_and_step_are_reported(tmp_path, source):
    found = opened(tmp_path, again(source))
    assert bound(found, 1).metrics == {"replay/source_reward": 0.5, "replay/source_step": 1.0}


def test_a_task_without_a_reward_reports_none(tmp_path, source):
    write_step(source, 1, [record(2, None)])
    assert bound(opened(tmp_path, again(source))).metrics == {"replay/source_step": 1.0}


def test_inner_overrides_the_source_and_this_run_judges(tmp_path, source):
    found = opened(tmp_path, again(source, inner={"name": "addition", "verifier": "exact_match"}))
    assert found.tasks.judges() is None
    binding = bound(found)
    assert (binding.harness, binding.stop, binding.stop_token_ids) == (None, None, None)


def test_inner_is_required_where_no_run_file_lies_beside_the_rollouts(tmp_path, source):
    (source / "run.toml").unlink()
    assert "run.toml" in problems(tmp_path, again(source))["inner"]
    assert bound(opened(tmp_path, again(source, inner="addition"))).task.source_id == "r2"


@pytest.mark.parametrize("text", ["nonsense [", "[data]\nverifiers = 3\n", "data = 3\n", "[data]\nlater = 1\n"])
def test_a_run_file_that_cannot_be_read_is_named_with_the_reason(tmp_path, source, text):
    (source / "run.toml").write_text(text)
    assert str(source / "run.toml") in problems(tmp_path, again(source))["inner"]


def test_sections_that_a_derived_task_does_not_need_are_not_looked_at(tmp_path, source):
    path = source / "run.toml"
    path.write_text(path.read_text() + "\n[trainer]\nfrom_the_future = true\n[plugin_of_somebody]\nx = 1\n")
    assert bound(opened(tmp_path, again(source))) is not None


@pytest.mark.parametrize("folder", ["", "rollouts"])
def test_the_folder_of_the_run_and_that_of_its_rollouts_mean_the_same(tmp_path, source, folder):
    found = opened(tmp_path, again(source / folder))
    assert len(found.tasks) == 4 and found.tasks.judges()["exact_match"].weight == 2.0


def test_a_folder_that_does_not_exist_is_refused_unless_it_is_to_come(tmp_path):
    assert "is no folder" in problems(tmp_path, again(tmp_path / "nowhere"))["buffer_dir"]
    found = opened(tmp_path, again(tmp_path / "nowhere", online=True, inner="addition"))
    assert found.tasks.online and bound(found) is None


def test_a_run_that_has_made_its_folder_and_nothing_more_is_found_once_it_goes_on(tmp_path):
    folder = tmp_path / "coming"
    folder.mkdir()
    found = opened(tmp_path, again(folder, online=True, inner="addition"))
    assert bound(found) is None
    write_step(folder, 0, [record(5)])
    assert bound(found).task.source_id == "r5"


def test_self_is_the_folder_of_the_run_and_online(tmp_path):
    output = tmp_path / "out"
    found = opened(tmp_path, again("self"), output)
    assert found.tasks.online and len(found.tasks) == 1 and bound(found) is None
    write_step(output, 0, [record(5)])
    assert bound(found).task.source_id == "r5"
    assert found.tasks.judges() is None


def test_self_is_a_clear_error_where_nothing_resolves_it(tmp_path):
    found = opened(tmp_path, again("self"))
    with pytest.raises(TaskError, match="there is no run here"):
        bound(found)


def test_self_stays_self_in_the_resolved_run_file(tmp_path, source):
    sources = run_file(tmp_path, again("self")).to_toml()["data"]["sources"]
    assert sources[1]["task_set"]["buffer_dir"] == "self"
    sources = run_file(tmp_path, again(source)).to_toml()["data"]["sources"]
    assert sources[1]["task_set"]["buffer_dir"] == str(source)


def test_validation_of_self_reads_nothing_and_finds_nothing(tmp_path):
    run = run_file(tmp_path, again("self"))
    data = run.sections["data"]
    assert list(check_task_set("key", data.sources[1].task_set, data, run, thorough=True)) == []


def test_validation_of_saved_rollouts_binds_every_task(tmp_path, source):
    write_step(source, 2, [record(9, task={**record(9)["task"], "targets": {"exact_match": 3}})])
    run = run_file(tmp_path, again(source, capacity=1))
    data = run.sections["data"]
    (problem,) = check_task_set("key", data.sources[1].task_set, data, run, thorough=True)
    assert "can never be judged" in str(problem)


def test_a_run_in_which_everything_replays_itself_is_refused(tmp_path):
    found = problems(tmp_path, again("self"), data={"sources": [{"name": "r", "task_set": again("self")}]})
    assert "replays this run" in found["buffer_dir"]


def test_a_source_that_does_not_exist_is_refused_with_those_that_do(tmp_path, source):
    found = problems(tmp_path, again(source, source_envs=["sums", "products"]))
    assert "'products'" in found["source_envs"] and "sums" in found["source_envs"]


def test_a_harness_that_cannot_begin_in_the_middle_is_refused_at_plan_time(tmp_path, source):
    write_run_file(source, SOURCE_DATA, {"harness": "stateful"})
    assert "'stateful'" in problems(tmp_path, again(source))["source_envs"]


@pytest.mark.parametrize(
    ("data", "rollout", "named"),
    [
        ({"verifiers": ["absent"]}, {}, "'absent'"),
        ({"verifiers": [{"name": "exact_match", "absent": 1}]}, {}, "absent"),
        ({}, {"harness": "absent"}, "'absent'"),
        ({}, {"harness": {"name": "single_turn", "absent": 1}}, "absent"),
        ({"sources": [{"name": "sums", "task_set": "absent"}]}, {}, "'absent'"),
        ({"sources": [{"name": "sums", "task_set": {"name": "again", "absent": 1}}]}, {}, "absent"),
    ],
)
def test_what_another_run_selects_and_cannot_be_had_here_is_refused_at_plan_time(
    tmp_path, source, data, rollout, named
):
    write_run_file(source, SOURCE_DATA | data, rollout)
    found = problems(tmp_path, again(source, source_envs=["sums"]))
    assert "run.toml selects what cannot be had here" in found["inner"] and named in found["inner"]


def test_a_source_with_weights_of_its_own_is_refused_at_plan_time(tmp_path, source):
    sums = SOURCE_DATA["sources"][0]
    write_run_file(source, {**SOURCE_DATA, "sources": [{**sums, "verifier_weights": {"exact_match": 3.0}}]})
    assert "verifier_weights of its own" in problems(tmp_path, again(source))["source_envs"]
    write_run_file(source, {**SOURCE_DATA, "sources": [{**sums, "verifier_weights": {"exact_match": 2.0}}]})
    assert opened(tmp_path, again(source)).tasks.judges()["exact_match"].weight == 2.0


def test_tasks_in_containers_are_refused_unless_allowed(tmp_path, source):
    contained = [{"name": "sums", "task_set": {"name": "contained", "verifier": "exact_match"}}]
    write_run_file(source, {**SOURCE_DATA, "sources": contained})
    assert "fresh container" in problems(tmp_path, again(source))["allow_container"]
    run_file(tmp_path, again(source, allow_container=True))
    inner = {"name": "contained", "verifier": "exact_match"}
    assert "fresh container" in problems(tmp_path, again(source, inner=inner))["allow_container"]


def test_a_task_set_that_brings_verifiers_of_its_own_is_refused_at_plan_time(tmp_path, source):
    judged = [{"name": "sums", "task_set": {"name": "judged", "verifier": "exact_match"}}]
    write_run_file(source, {**SOURCE_DATA, "sources": judged})
    assert "verifiers of its own" in problems(tmp_path, again(source))["source_envs"]


def test_a_target_that_can_never_be_judged_is_not_offered(tmp_path, source):
    bad = record(9)
    bad["task"]["targets"] = {"exact_match": 3}
    write_step(source, 2, [bad, record(8)])
    found = opened(tmp_path, again(source))
    assert [bound(found, index).task.source_id for index in range(3)] == ["r8", "r8", "r2"]
    assert "can never be judged" in found.warnings[0]


def test_a_task_for_a_verifier_that_is_not_there_is_not_offered(tmp_path, source):
    odd = record(9)
    odd["task"]["targets"] = {"taste": "x"}
    write_step(source, 2, [odd])
    found = opened(tmp_path, again(source))
    assert bound(found).task.source_id == "r2"
    assert "'taste'" in found.warnings[0]


@pytest.mark.parametrize("field", ["prompt", "targets", "source_dataset", "source_row", "prepared_sample_id"])
def test_a_task_that_says_too_little_is_not_offered(tmp_path, source, field):
    short = record(9)
    del short["task"][field]
    write_step(source, 2, [short])
    found = opened(tmp_path, again(source))
    assert bound(found).task.source_id == "r2"
    assert field in found.warnings[0]


def test_a_peers_rollout_is_recovered_by_the_inner_task_set(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "q", "answer": "3"}) + "\n")
    folder = tmp_path / "peer"
    line = record(1)
    line["task"] = {"question": "What is 1 + 2?", "answer": "3"}
    line["info"] = {"prime_rl": {"kind": "train", "env_name": "sums", "group_id": "g", "policy_version": 3}}
    del line["nodes"][0]["parent"]
    write_step(folder, 4, [line])
    options = {"name": "file", "path": str(rows), "input_key": "question", "label_key": "answer"}
    found = opened(tmp_path, again(folder, inner={**options, "verifier": "exact_match"}))
    binding = bound(found)
    assert binding.judged.targets == {"exact_match": "3"}
    assert binding.judged.prompt == "What is 1 + 2?"
    assert binding.metrics == {"replay/source_reward": 1.0, "replay/source_step": 4.0}


def derived(number, depth, env_name):
    """A record whose task was derived `depth` times."""
    line = record(number, env_name=env_name)
    for level in range(depth):
        line["task"] = {**line["task"], "source_id": f"s{level}", "source_task": line["task"]}
    return line


def test_derived_rollouts_are_skipped_unless_their_source_is_named(tmp_path, source):
    data = {**SOURCE_DATA, "sources": [*SOURCE_DATA["sources"], {"name": "replayed", "task_set": again("self")}]}
    write_run_file(source, data)
    write_step(source, 2, [derived(7, 1, "replayed"), record(8)])
    assert bound(opened(tmp_path, again(source))).task.source_id == "r8"
    named = opened(tmp_path, again(source, source_envs=["replayed"]))
    assert len(named.tasks) == 1 and bound(named).task.source_id == "r7"


def test_a_chain_is_scored_by_the_innermost_task(tmp_path, source):
    chain = derived(7, 2, "replayed")
    chain["task"]["targets"] = {"exact_match": "not this one"}
    chain["task"]["metadata"] = {
        "replay": {"env_name": "sums", "harness": {"name": "tool_loop"}, "stop": ["S"], "stop_token_ids": []}
    }
    data = {**SOURCE_DATA, "sources": [*SOURCE_DATA["sources"], {"name": "replayed", "task_set": again("self")}]}
    write_run_file(source, data)
    write_step(source, 2, [chain])
    binding = bound(opened(tmp_path, again(source, source_envs=["replayed"])))
    assert binding.judged.targets == {"exact_match": "3"} and binding.judged.source_task is None
    assert (binding.harness.name, binding.stop) == ("tool_loop", ("S",))
    assert binding.task.source_task["source_task"]["source_task"]["prepared_sample_id"] == "sum-7"


def test_a_chain_over_folders_brings_the_verifiers_of_its_links(tmp_path, source):
    middle = tmp_path / "middle"
    sources = [
        {"name": "words", "task_set": {"name": "addition", "verifier": "regex"}, "ratio": 1.0},
        {"name": "replayed", "task_set": again(source), "ratio": 1.0},
    ]
    write_run_file(middle, {"sources": sources, "verifiers": [{"name": "regex", "pattern": "x"}]})
    write_step(middle, 0, [derived(7, 1, "replayed")])
    found = opened(tmp_path, again(middle, source_envs=["replayed"]))
    assert sorted(found.tasks.judges()) == ["exact_match", "regex"]
    assert found.tasks.judges()["exact_match"].weight == 2.0


def test_links_whose_verifiers_differ_cannot_be_told_apart_and_are_refused(tmp_path, source):
    middle = tmp_path / "middle"
    sources = [*SOURCE_DATA["sources"], {"name": "replayed", "task_set": again(source)}]
    write_run_file(middle, {"sources": sources, "verifiers": ["exact_match"]})
    write_step(middle, 0, [derived(7, 1, "replayed")])
    assert "cannot be told apart" in problems(tmp_path, again(middle, source_envs=["replayed"]))["inner"]


def linked(tmp_path, name, pattern, *links):
    """The folder of a run with a verifier of its own and these replay sources."""
    folder = tmp_path / name
    sources = [{"name": "words", "task_set": {"name": "addition", "verifier": name}}, *links]
    verifiers = [{"name": "regex", "pattern": pattern}] if pattern else ["exact_match"]
    write_run_file(folder, {"sources": [{"ratio": 1.0, **link} for link in sources], "verifiers": verifiers})
    write_step(folder, 0, [derived(7, 1, "replayed")])
    return folder


def test_runs_that_replay_each_other_are_looked_at_once(tmp_path):
    there = {"name": "replayed", "task_set": again(tmp_path / "there", source_envs=["replayed"])}
    here = {"name": "replayed", "task_set": again(tmp_path / "here", source_envs=["replayed"])}
    linked(tmp_path, "here", "x", there)
    folder = linked(tmp_path, "there", None, here)
    found = opened(tmp_path, again(folder, source_envs=["replayed"]))
    assert sorted(found.tasks.judges()) == ["exact_match", "regex"]


def test_a_run_that_replays_its_own_folder_by_name_is_looked_at_once(tmp_path):
    itself = {"name": "replayed", "task_set": again(tmp_path / "here", source_envs=["replayed"])}
    folder = linked(tmp_path, "here", None, itself)
    assert sorted(opened(tmp_path, again(folder, source_envs=["replayed"])).tasks.judges()) == ["exact_match"]


def test_many_links_of_many_runs_are_each_followed_once(tmp_path):
    for number in range(30):
        following = again(tmp_path / f"run{number + 1}", source_envs=["one", "other"])
        linked(tmp_path, f"run{number}", None, *({"name": name, "task_set": following} for name in ("one", "other")))
    linked(tmp_path, "run30", "x")
    found = opened(tmp_path, again(tmp_path / "run0", source_envs=["one", "other"]))
    assert sorted(found.tasks.judges()) == ["exact_match", "regex"]


def test_a_chain_within_a_run_brings_the_verifiers_that_its_first_link_brings(tmp_path, source):
    once = {"name": "once", "task_set": again(source)}
    twice = {"name": "twice", "task_set": again("self", source_envs=["once"])}
    folder = linked(tmp_path, "here", "x", once, twice)
    assert sorted(opened(tmp_path, again(folder, source_envs=["twice"])).tasks.judges()) == ["exact_match", "regex"]


def test_a_derivation_may_judge_itself(tmp_path, source):
    found = opened(tmp_path, {"name": "guess", "buffer_dir": str(source)})
    binding = bound(found)
    assert binding.task.targets == {"guess": True} and binding.judged is None
    (name, judge) = next(iter(found.tasks.judges().items()))
    assert (name, judge.distribution) == ("guess", "reroll-replay-cases")
    assert (
        "does nothing" in problems(tmp_path, {"name": "guess", "buffer_dir": str(source), "inner": "addition"})["inner"]
    )


def test_online_draws_follow_from_the_seed_and_the_request(tmp_path, source):
    def draws(**seeds):
        found = opened(tmp_path, again(source, online=True, seed=seeds.get("own", 0)), seed=seeds.get("data", 0))
        return [found.tasks.bind(found.tasks.task(0), request).task.source_id for request in range(40)]

    assert draws() == draws()
    assert len({tuple(draws(own=own, data=data)) for own in (0, 1) for data in (0, 1)}) == 4
    assert set(draws()) == {"r0", "r1", "r2", "r3"}


def test_an_evaluation_may_count_an_online_set_as_several_tasks(tmp_path, source):
    found = opened(tmp_path, again(source, online=True, num_tasks=50))
    drawn = {found.tasks.bind(found.tasks.task(index), 0).task.source_id for index in range(50)}
    assert len(found.tasks) == 50 and len(drawn) == 4
    assert "does nothing" in problems(tmp_path, again(source, num_tasks=2))["num_tasks"]


def test_what_is_too_long_is_followed_by_another_draw(tmp_path, source):
    found = opened(tmp_path, again(source))
    ids = [found.tasks.bind(found.tasks.task(0), 0, tries).task.source_id for tries in range(5)]
    assert len(set(ids)) > 1


def test_a_rewritten_step_is_seen_and_a_stale_handle_is_redrawn(tmp_path, source):
    found = opened(tmp_path, again(source, online=True))
    for step in (0, 1):
        write_step(source, step, [record(20 + step, answer="longer than before")])
    stale = [found.tasks.bind(found.tasks.task(0), request) for request in range(20)]
    assert {binding.task.source_id for binding in stale if binding} <= {"r20", "r21"}
    found.tasks.buffer.refresh(force=True)
    fresh = {found.tasks.bind(found.tasks.task(0), request).task.source_id for request in range(20)}
    assert fresh == {"r20", "r21"}


def test_the_fingerprint_is_of_what_is_offered(tmp_path, source):
    first = opened(tmp_path, again(source)).tasks.fingerprint()
    assert opened(tmp_path, again(source)).tasks.fingerprint() == first
    write_step(source, 1, [record(2)])
    assert opened(tmp_path, again(source)).tasks.fingerprint() != first


def test_a_derivation_whose_options_every_replay_has_is_refused():
    class Clash(Again):
        name = "clash"

        class Config(Config):
            capacity: int = 3

    with pytest.raises(PluginError, match="capacity"):
        replay_tasks(Clash)


def test_the_source_files_are_not_changed(tmp_path, source):
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    found = opened(tmp_path, again(source))
    for index in range(4):
        bound(found, index)
    assert {path: path.read_bytes() for path in source.rglob("*") if path.is_file()} == before


def test_a_data_source_and_an_evaluation_set_of_one_name_keep_their_own_verifiers(tmp_path, source):
    other = tmp_path / "other"
    write_run_file(other, {**SOURCE_DATA, "verifiers": [{"name": "exact_match", "strip": False}]})
    write_step(other, 0, [record(0)])
    evaluated = {"sets": [{"name": "replayed", "task_set": again(other)}]}
    sets = TaskSets(run_file(tmp_path, again(source), eval=evaluated), tmp_path / "out", lambda text: None)
    training, evaluation = sets.judging_training["replayed"], sets.judging_evaluation["replayed"]
    asked = [sets.verifiers[judging.keys["exact_match"]].verifier.config for judging in (training, evaluation)]
    assert [(config.strip, config.case_sensitive) for config in asked] == [(True, False), (False, True)]
    assert sets.judging_training["sums"] is None


@pytest.mark.parametrize(
    "tools", [5, "x", [5], [{"function": {"name": "unheard-of"}}], [{"function": {}}], [{"function": 3}]]
)
def test_a_rollout_whose_tools_are_not_there_is_passed_over(tmp_path, source, tools):
    lost = record(8)
    lost["task"]["tools"] = tools
    write_step(source, 2, [lost, record(9)])
    found = opened(tmp_path, again(source))
    assert bound(found).task.source_id == "r9" and "r8 cannot be replayed" in found.warnings[0]


@pytest.mark.parametrize(
    "said",
    [
        {"stop": [""]},
        {"stop": "END"},
        {"stop_token_ids": [-1]},
        {"stop_token_ids": [None]},
        {"harness": {"name": "stateful"}},
        {"harness": {"name": "unheard-of"}},
        {"harness": {"name": "tool_loop", "max_turns": -1}},
        {"harness": 5},
        {"env_name": []},
        {"later": 1},
    ],
)
def test_a_chain_that_says_wrongly_how_it_was_run_is_passed_over(tmp_path, source, said):
    odd = derived(7, 1, "replayed")
    manner = {"env_name": "sums", "harness": {"name": "single_turn"}, "stop": [], "stop_token_ids": []}
    odd["task"]["metadata"] = {"replay": {**manner, **said}}
    good = derived(8, 1, "replayed")
    good["task"]["metadata"] = {"replay": manner}
    data = {**SOURCE_DATA, "sources": [*SOURCE_DATA["sources"], {"name": "replayed", "task_set": again("self")}]}
    write_run_file(source, data)
    write_step(source, 2, [odd, good])
    assert bound(opened(tmp_path, again(source, source_envs=["replayed"]))).task.source_id == "r8"


@pytest.mark.parametrize("derivation", ["again", "guess"])
@pytest.mark.parametrize("place", ["prompt", "task"])
def test_what_is_nested_too_deeply_to_be_saved_again_is_passed_over(tmp_path, source, derivation, place):
    nested = []
    for _ in range(400):
        nested = [nested]
    deep = record(8)
    if place == "task" or derivation == "guess":
        deep["task"]["metadata"] = {"nested": nested}
    else:
        deep["nodes"][0]["message"]["content"] = nested
    write_step(source, 2, [deep, record(9)])
    assert bound(opened(tmp_path, again(source, name=derivation))).task.source_id == "r9"


def test_what_can_never_be_replayed_is_refused(tmp_path, source):
    assert "source_envs" in problems(tmp_path, again(source, source_envs=[]))
    assert "no tasks of its own" in problems(tmp_path, again(source, inner=again(source)))["inner"]


def found_before_the_run(tmp_path, options):
    run = run_file(tmp_path, options)
    return [[str(problem) for problem in file_problems(run, thorough=thorough)] for thorough in (False, True)]


def test_rollouts_that_are_passed_over_do_not_keep_a_run_from_starting(tmp_path, source):
    lost = [record(100 + number) for number in range(40)]
    for line in lost:
        line["task"]["tools"] = [{"function": {"name": "unheard-of"}}]
    odd = record(8)
    odd["nodes"][0]["message"]["content"] = "\ud800"
    write_step(source, 2, [odd, *lost])
    assert found_before_the_run(tmp_path, again(source)) == [[], []]


def test_a_folder_of_which_nothing_can_be_dispatched_is_told_before_the_run(tmp_path, source):
    (source / "rollouts" / "step_1" / "train_rollouts.jsonl").unlink()
    lost = record(8)
    lost["task"]["tools"] = [{"function": {"name": "unheard-of"}}]
    write_step(source, 0, [lost])
    for problems in found_before_the_run(tmp_path, again(source)):
        assert "nothing of it can be dispatched" in problems[0]
    write_step(source, 0, [])
    assert "has no task that can be dispatched" in found_before_the_run(tmp_path, again(source))[1][0]


def test_a_run_that_takes_turns_does_not_wait_for_itself(tmp_path):
    asynchronous = {"fully_async": True, "max_weight_staleness": 1}
    waits = opened(tmp_path, again("self", empty_timeout=7.0), tmp_path / "out", **{"async": asynchronous})
    assert waits.tasks.patience == 7.0
    assert opened(tmp_path, again("self", empty_timeout=7.0), tmp_path / "out").tasks.patience == 0.0


def test_a_source_that_only_waits_for_itself_is_refused(tmp_path):
    found = problems(tmp_path, again("self", source_envs=["replayed"]))
    assert "can never have anything" in found["source_envs"] and "sums" in found["source_envs"]
    run_file(tmp_path, again("self", source_envs=["replayed", "sums"]))


def test_a_source_that_grows_needs_a_ratio_at_plan_time(tmp_path):
    sources = [
        {"name": "sums", "task_set": {"name": "addition", "verifier": "exact_match"}},
        {"name": "replayed", "task_set": again("self")},
    ]
    assert "give every source a ratio" in problems(tmp_path, {}, data={"sources": sources})["ratio"]


def test_waiting_for_what_is_saved_already_is_refused(tmp_path, source):
    assert "does nothing" in problems(tmp_path, again(source, empty_timeout=1.0))["empty_timeout"]


def test_the_reason_why_nothing_can_be_replayed_is_told_before_the_run(tmp_path, source):
    inner = {"name": "file", "path": str(tmp_path / "no.jsonl"), "label_key": "answer", "verifier": "exact_match"}
    for step in (0, 1):
        write_step(source, step, [record(step, task={"question": "q"})])
    (told, *_) = found_before_the_run(tmp_path, again(source, inner=inner))[0]
    assert "nothing of it can be dispatched" in told and "no.jsonl does not exist" in told


def index_of(path, *task_sets):
    """An index of a task of each of these sets."""
    rows = [
        {"source_dataset": "sums", "source_row": row, "prepared_sample_id": f"{row}", "task_set": json.dumps(task_set)}
        for row, task_set in enumerate(task_sets)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return {"name": "index", "path": str(path)}


def trained_on(source, task_set):
    write_run_file(source, {**SOURCE_DATA, "sources": [{**SOURCE_DATA["sources"][0], "task_set": task_set}]})


def test_rollouts_of_an_index_are_replayed_as_those_of_the_set_that_it_points_into(tmp_path, source):
    before = bound(opened(tmp_path, again(source)))
    trained_on(source, index_of(tmp_path / "i.parquet", SOURCE_DATA["sources"][0]["task_set"]))
    assert bound(opened(tmp_path, again(source))).judged == before.judged
    trained_on(source, index_of(tmp_path / "i.parquet", "addition", "multiplication"))
    assert bound(opened(tmp_path, again(source))).task.targets == before.task.targets


@pytest.mark.parametrize("others", [[], ["addition"]])
def test_what_an_index_points_into_is_refused_for_what_it_is(tmp_path, source, others):
    trained_on(source, index_of(tmp_path / "i.parquet", *others, "judged"))
    assert "'judged' of 'sums'" in problems(tmp_path, again(source))["source_envs"]
    trained_on(source, index_of(tmp_path / "i.parquet", *others, "contained"))
    assert "run in containers" in problems(tmp_path, again(source))["allow_container"]
    assert bound(opened(tmp_path, again(source, allow_container=True))) is not None
    trained_on(source, "addition")
    inner = index_of(tmp_path / "i.parquet", *others, "contained")
    assert "tasks of 'contained' run in" in problems(tmp_path, again(source, inner=inner))["allow_container"]
    inner = index_of(tmp_path / "i.parquet", *others, again(source))
    assert "has no tasks of its own" in problems(tmp_path, again(source, inner=inner))["inner"]


def test_an_index_that_is_gone_is_named(tmp_path, source):
    trained_on(source, {"name": "index", "path": str(tmp_path / "gone.parquet")})
    assert "gone.parquet does not exist" in problems(tmp_path, again(source))["inner"]
    inner = {"name": "index", "path": str(tmp_path / "away.parquet")}
    assert "away.parquet does not exist" in problems(tmp_path, again(source, inner=inner))["inner"]
    itself = index_of(tmp_path / "i.parquet", {"name": "index", "path": str(tmp_path / "i.parquet")})
    assert "is an index of itself" in problems(tmp_path, again(source, inner=itself))["inner"]
