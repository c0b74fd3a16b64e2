"""Runs that replay rollouts: their own as they go on, and another run's."""

import asyncio
import json
import shutil
from collections import Counter, defaultdict

import pytest
from driving import run_and_watch, session_of

from reroll.api import RerollError
from reroll.loop import train

BASE = """
[model]
path = "builtin:tiny-math"
[data]
verifiers = [{ name = "regex", pattern = '\\\\boxed\\{(-?\\d+)\\}' }]
[[data.sources]]
name = "sums"
ratio = 0.5
task_set = { name = "addition", high = 40, verifier = "regex" }
[[data.sources]]
name = "again"
ratio = 0.5
max_prompt_len = 120
task_set = { name = "recheck", buffer_dir = "self", empty_timeout = 0.0 }
[rollout]
num_rollout = 4
rollout_batch_size = 4
n_samples_per_prompt = 4
rollout_max_prompt_len = 32
rollout_max_response_len = 16
group_filters = []
[trainer]
lr = 1e-3
max_sequence_length = 900
"""
PLAIN = """
[model]
path = "builtin:tiny-math"
[data]
task_set = { name = "addition", high = 40, verifier = "regex" }
verifiers = [{ name = "regex", pattern = '\\\\boxed\\{(-?\\d+)\\}' }]
verifier_weights = { regex = 2.0 }
[rollout]
num_rollout = 2
rollout_batch_size = 4
n_samples_per_prompt = 4
rollout_max_prompt_len = 32
rollout_max_response_len = 16
stop = ["never said"]
[trainer]
lr = 1e-3
"""
ASYNC = ["async.fully_async=true", "async.max_weight_staleness=1"]
SAVES = ["checkpoint.save_interval=1", "launch.auto_resume=true", "checkpoint.keep_last=10"]


def run(path, output, *overrides):
    """A whole run; gives its rollouts by step, its metrics and its session's events."""

    async def body():
        async with session_of(path, output, *overrides) as session:
            await train(session)
            return session.events, session.evaluators

    events, evaluators = asyncio.run(asyncio.wait_for(body(), 240))
    return saved(output), metrics(output), events, evaluators


def saved(output):
    steps = sorted((output / "rollouts").glob("step_*"), key=lambda path: int(path.name.removeprefix("step_")))
    return [
        [json.loads(line) for line in (step / "train_rollouts.jsonl").read_text("utf-8").splitlines()] for step in steps
    ]


def metrics(output):
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text("utf-8").splitlines()]


def env_name(record):
    return record["info"]["reroll"]["env_name"]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    path = tmp_path_factory.mktemp("replaying") / "run.toml"
    path.write_text(BASE)
    return path


@pytest.fixture(scope="module")
def online(base):
    """A run that replays itself."""
    # Long enough for the rest that a source takes when it had nothing, however quick the machine.
    return run(base, base.parent / "out", *ASYNC, "rollout.num_rollout=60")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("source")
    (folder / "run.toml").write_text(PLAIN)
    run(folder / "run.toml", folder / "out")
    return folder / "out"


def test_an_empty_buffer_fails_its_requests_frees_their_permits_and_then_serves(online):
    steps, _, events, _ = online
    assert len(steps) == 60
    assert {env_name(record) for record in steps[0]} == {"sums"}
    assert "again" in {env_name(record) for record in steps[-1] + steps[-2]}
    assert events.by_source["again"]["failed"] > 0
    assert events.by_source["again"]["consumed"] > 0
    assert set(events.by_source["sums"]) == {"consumed"}
    assert events.ledger.in_flight == events.ledger.queued == 0


def test_every_group_shares_one_source(online):
    groups = defaultdict(set)
    for step in online[0]:
        for record in step:
            groups[record["info"]["reroll"]["group_id"]].add(record["task"]["source_id"])
    assert all(len(sources) == 1 for sources in groups.values())
    assert any(sources != {None} for sources in groups.values())


def test_no_recheck_of_a_recheck_unless_it_is_named(online):
    for step in online[0]:
        for record in step:
            if env_name(record) == "again":
                assert record["task"]["source_task"]["source_task"] is None


def test_prefix_tokens_carry_no_loss_and_answers_do(online):
    for record in (record for step in online[0] for record in step if env_name(record) == "again"):
        assert [node["message"]["role"] for node in record["nodes"]][-3:] == ["assistant", "user", "assistant"]
        *prefix, answer = record["nodes"]
        assert not any(flag for node in prefix for flag in node["mask"]) and not any(node["sampled"] for node in prefix)
        assert all(answer["mask"]) and answer["sampled"]


def test_rewards_land_under_the_sources_own_names(online):
    for record in (record for step in online[0] for record in step):
        assert set(record["rewards"]) == {"regex"}
        stated = record["task"]["source_task"] or record["task"]
        assert record["task"]["targets"] == stated["targets"]


def test_metrics_say_how_each_source_does_and_what_its_sources_did(online):
    steps, lines, _, _ = online
    number = max(number for number, step in enumerate(steps) if {env_name(record) for record in step} > {"sums"})
    (last,) = (line for line in lines if line["rollout/collections"] == number + 1)
    by_id = {record["id"]: record for step in steps for record in step}
    groups = [record for record in steps[number] if env_name(record) == "again"]
    rewards = [by_id[record["task"]["source_id"]]["info"]["reroll"]["reward"] for record in groups]
    assert last["replay/source_reward"] == pytest.approx(sum(rewards) / len(rewards))
    assert last["source/again/replay/source_step"] == last["replay/source_step"]
    own = [record["info"]["reroll"]["reward"] for record in groups]
    assert last["source/again/reward"] == pytest.approx(sum(own) / len(own))
    assert last["source/again/dispatches_failed"] > 0
    assert last["source/sums/groups"] + last["source/again/groups"] == last["rollout/groups"]


def test_the_stamp_says_where_a_rollout_is_from(online):
    for step in online[0]:
        for record in step:
            stamp = record["info"]["reroll"]
            assert stamp["kind"] == "train" and stamp["env_name"] in ("sums", "again")
            assert len(stamp["group_id"]) == 32 and stamp["is_filtered"] is False
            assert stamp["policy_version"] == max(stamp["weight_versions"])


def test_a_chain_of_depth_two_is_scored_by_the_innermost_task_set(base, online, tmp_path):
    output = tmp_path / "out"
    shutil.copytree(base.parent / "out", tmp_path / "first")
    chained = {"name": "recheck", "buffer_dir": str(tmp_path / "first"), "source_envs": ["again"]}
    overrides = [f"data.sources={toml([{'name': 'twice', 'task_set': chained, 'max_prompt_len': 200}])}"]
    steps, *_ = run(base, output, *overrides, "rollout.num_rollout=1", 'data.verifiers=["exact_match"]')
    for record in steps[0]:
        innermost = record["task"]["source_task"]["source_task"]
        assert innermost["source_task"] is None
        assert innermost["prompt"] == record["task"]["prompt"][:1]
        assert record["task"]["targets"] == innermost["targets"]
        assert set(record["rewards"]) == {"regex"}


def toml(value):
    """A Python value as an inline TOML one."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}={toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(toml, value)) + "]"
    return json.dumps(value)


def offline(source, **more):
    replayed = {"name": "recheck", "buffer_dir": str(source), **more}
    listed = [
        {"name": "sums", "ratio": 1, "task_set": {"name": "addition", "verifier": "exact_match"}},
        {"name": "again", "ratio": 3, "max_prompt_len": 120, "task_set": replayed},
    ]
    return [f"data.sources={toml(listed)}", 'data.verifiers=["exact_match"]']


def test_another_runs_rollouts_are_judged_with_its_verifiers_and_weights(base, source, tmp_path):
    steps, *_ = run(base, tmp_path / "out", *offline(source), "rollout.num_rollout=2")
    found = Counter(env_name(record) for step in steps for record in step)
    assert found == {"sums": 8, "again": 24}
    for record in (record for step in steps for record in step if env_name(record) == "again"):
        stamp = record["info"]["reroll"]
        assert stamp["verifier_weights"] == {"regex": 2.0}
        assert record["rewards"]["regex"] in (0.0, 2.0)
        assert record["task"]["metadata"]["replay"]["stop"] == ["never said"]


def test_equal_synchronous_runs_replay_equally_to_the_bit(base, source, tmp_path):
    runs = [run_and_watch(base, tmp_path / name, *offline(source), "rollout.num_rollout=2") for name in ("a", "b")]
    assert runs[0].digest == runs[1].digest


@pytest.mark.slow
def test_a_resumed_run_of_several_sources_goes_on_as_an_unbroken_one(base, source, tmp_path):
    replay = [*offline(source), *SAVES]
    straight = run_and_watch(base, tmp_path / "straight", *replay, "rollout.num_rollout=3")
    run_and_watch(base, tmp_path / "out", *replay, "rollout.num_rollout=1")
    resumed = run_and_watch(base, tmp_path / "out", *replay, "rollout.num_rollout=3")
    assert resumed.token_ids == straight.token_ids[1:]
    assert resumed.weights == straight.weights[1:]


def test_self_may_be_evaluated_on_and_is_left_out_while_it_is_empty(base, tmp_path):
    replayed = {"name": "recheck", "buffer_dir": "self", "num_tasks": 6}
    sets = toml([{"name": "second-look", "task_set": replayed, "max_prompt_len": 120}])
    sources = toml([{"name": "sums", "task_set": {"name": "addition", "high": 40, "verifier": "regex"}}])
    overrides = [f"data.sources={sources}", f"eval.sets={sets}", "eval.eval_interval=1", "rollout.num_rollout=2"]
    _, lines, _, _ = run(base, tmp_path / "out", *overrides)
    steps = [line["step"] for line in lines if "eval/second-look/reward" in line]
    assert steps and 0 not in steps
    path = tmp_path / "out" / "eval" / "second-look" / f"step_{steps[-1]}" / "rollouts.jsonl"
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert len(records) == 6
    assert {env_name(record) for record in records} == {"second-look"}
    assert {record["info"]["reroll"]["kind"] for record in records} == {"eval"}


def test_a_judge_of_transcripts_is_rewarded_for_the_right_verdict(base, source, tmp_path):
    judged = {"name": "judge", "buffer_dir": str(source), "success_threshold": 2.0}
    listed = toml([{"name": "judge", "task_set": judged, "max_prompt_len": 200}])
    overrides = [f"data.sources={listed}", "rollout.num_rollout=1"]
    steps, *_ = run(base, tmp_path / "out", *overrides)
    by_id = {record["id"]: record for step in saved(source) for record in step}
    for record in steps[0]:
        was = by_id[record["task"]["source_id"]]["info"]["reroll"]["reward"]
        assert record["task"]["targets"] == {"judge": "yes" if was >= 2 else "no"}
        assert set(record["rewards"]) == {"judge"}


def test_sources_without_ratios_are_asked_by_their_size(base, tmp_path):
    small = {"name": "addition", "high": 40, "verifier": "regex", "size": 10}
    large = {"name": "multiplication", "high": 12, "verifier": "regex", "size": 30}
    listed = toml([{"name": "small", "task_set": small}, {"name": "large", "task_set": large}])
    steps, *_ = run(base, tmp_path / "out", f"data.sources={listed}", "rollout.num_rollout=2")
    assert Counter(env_name(record) for step in steps for record in step) == {"small": 8, "large": 24}


def test_a_source_that_grows_needs_a_ratio(base, tmp_path):
    listed = toml(
        [
            {"name": "sums", "task_set": {"name": "addition", "verifier": "regex"}},
            {"name": "again", "task_set": {"name": "recheck", "buffer_dir": "self"}},
        ]
    )
    with pytest.raises(RerollError, match="give every source a ratio"):
        run(base, tmp_path / "out", f"data.sources={listed}")


def test_a_source_has_no_more_groups_in_flight_than_it_may(base, tmp_path):
    """Two sources of equal ratio, one of them bound to one group: it gets what it can."""
    sums = {"name": "addition", "high": 40, "verifier": "regex"}
    listed = toml(
        [
            {"name": "free", "ratio": 1, "task_set": sums},
            {"name": "bound", "ratio": 1, "task_set": {**sums, "seed": 1}, "max_concurrent": 1},
        ]
    )
    most = 0

    async def body():
        nonlocal most
        async with session_of(base, tmp_path / "out", f"data.sources={listed}", *ASYNC) as session:
            bound = session.cursor.sources["bound"]
            take = session.cursor.take

            def watched():
                nonlocal most
                dispatch = take()
                most = max(most, bound.in_flight)
                return dispatch

            session.cursor.take = watched
            await train(session)

    asyncio.run(asyncio.wait_for(body(), 240))
    assert most == 1
    assert {env_name(record) for step in saved(tmp_path / "out") for record in step} == {"free", "bound"}


def test_prompts_longer_than_a_source_may_have_are_skipped_and_counted(base, source, tmp_path):
    replayed = {"name": "recheck", "buffer_dir": str(source), "instruction": "x" * 300}
    listed = toml(
        [
            {"name": "sums", "ratio": 1, "task_set": {"name": "addition", "high": 40, "verifier": "regex"}},
            {"name": "again", "ratio": 1, "max_prompt_len": 120, "task_set": replayed},
        ]
    )
    _, lines, events, _ = run(base, tmp_path / "out", f"data.sources={listed}", "rollout.num_rollout=1")
    assert lines[-1]["rollout/skipped_prompts"] >= 100
    assert set(events.by_source["again"]) == {"failed"}


def test_a_long_replayed_prompt_goes_all_the_way(base, source, tmp_path):
    """To the engine, the verifiers' processes and the file."""
    replayed = {"name": "recheck", "buffer_dir": str(source), "instruction": "+" * 600}
    listed = toml([{"name": "again", "max_prompt_len": 800, "task_set": replayed}])
    steps, *_ = run(base, tmp_path / "out", f"data.sources={listed}", "rollout.num_rollout=1")
    assert all(record["task"]["prompt"][-1]["content"] == "+" * 600 for record in steps[0])
    assert all(len(record["nodes"][-2]["token_ids"]) > 600 for record in steps[0])


def test_replayed_groups_are_recorded_like_others(base, source, tmp_path):
    store = tmp_path / "store"
    records = [*ASYNC, "records.enabled=true", f"records.root={json.dumps(str(store))}", "rollout.num_rollout=2"]
    steps, *_ = run(base, tmp_path / "out", *offline(source), *records)
    lines = [line for path in store.glob("*/*/records-*.jsonl") for line in path.read_text("utf-8").splitlines()]
    rows = [row for row in map(json.loads, lines) if row["kind"] == "group"]
    saved_groups = {
        (record["info"]["reroll"]["group_id"], record["task"]["source_dataset"]) for step in steps for record in step
    }
    recorded = {(row["observation_id"], row["source_dataset"]) for row in rows}
    assert saved_groups <= recorded
    assert Counter(name for _, name in saved_groups)["recheck:addition/train"] > 0
