"""What the outcomes follow from, and what they do not; how a training run differs."""

import shutil
import sys
from functools import lru_cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from measuring_cases import addition, inline, measured, run_of, source

from reroll.generation.identity import training_differences
from reroll.generation.program import results_folder
from reroll.generation.protocol import ResultsError, check_results, read_protocol

VERIFIERS = '[{name="math"}]'
SUMS = addition(6)
BOTH = {"sums": addition(6), "more": addition(4, seed=1)}


def protocol_of(task_sets=SUMS, *overrides, shard=None, **more):
    return measured(run_of(task_sets, *overrides, **more), shard).protocol


@lru_cache
def unchanged():
    return protocol_of()


def changed(*overrides, after=SUMS):
    """What differs from the run file without the overrides."""
    return unchanged().differences(protocol_of(after, *overrides))


@pytest.mark.parametrize(
    "override",
    [
        "generation.n_concurrent=3",
        'generation.band="[0.25, 0.5]"',
        'generation.results_dir="elsewhere"',
        'generation.output_index="i.parquet"',
        'generation.layout="tree"',
        "generation.max_retries=9",
        "generation.n_trials=9",
        "serving.num_engines=2",
        "rollout.scoring.workers=3",
        "rollout.rollout_batch_size=4",
        "rollout.n_samples_per_prompt=2",
        "rollout.group_filters=[]",
        "rollout.num_rollout=77",
        "trainer.lr=0.5",
        "data.shuffle=false",
        'run.name="other"',
        "generation.limit=6",
    ],
)
def test_what_no_outcome_follows_from_changes_nothing(override):
    assert changed(override) == []


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("rollout.temperature=0.5", "how.sampling.temperature"),
        ("generation.temperature=0.5", "how.sampling.temperature"),
        ("rollout.top_p=0.5", "how.sampling.top_p"),
        ("rollout.top_k=5", "how.sampling.top_k"),
        ("rollout.min_p=0.1", "how.sampling.min_p"),
        ('rollout.stop=["x"]', "how.sampling.stop"),
        ("rollout.stop_token_ids=[3]", "how.sampling.stop_token_ids"),
        ("rollout.rollout_max_response_len=7", "how.sampling.max_new_tokens"),
        ("rollout.rollout_max_prompt_len=77", "how.sources.addition.max_prompt_len"),
        ("rollout.rollout_max_context_len=200", "how.max_context"),
        ('rollout.harness={name="tool_loop", max_turns=3}', "how.harness"),
        ("rollout.failure_policy=0.0", "how.failure_policy"),
        ("generation.pass_reward=0.5", "how.pass_reward"),
        ("data.verifier_weights={math=2.0}", "how.verifiers.math.weight"),
        ("run.seed=7", "seed"),
        ("rollout.seed=7", "seed"),
        ("generation.limit=3", "sources.addition.size"),
    ],
)
def test_what_outcomes_follow_from_is_named(override, key):
    found = changed(override)
    assert any(line.startswith(f"{key}") for line in found), found


def test_the_options_of_a_verifier_are_named():
    before = protocol_of(SUMS, verifiers='[{name="regex", pattern="a"}, "math"]')
    after = protocol_of(SUMS, verifiers='[{name="regex", pattern="b"}, "math"]')
    assert before.differences(after) == ["how.verifiers.regex.options.pattern: 'a' and 'b'"]
    assert before.differences(before) == []


def test_a_template_is_told_by_what_it_says(tmp_path):
    path = tmp_path / "template.jinja"
    path.write_text("{{ messages[0].content }}")
    found = changed(f"model.chat_template={inline(str(path))}")
    assert [line.partition(":")[0] for line in found] == ["how.template_sha256"]


def test_tasks_that_are_others_are_named():
    assert [line.partition(":")[0] for line in changed(after=addition(6, seed=3))] == [
        "sources.addition.fingerprint",
        "sources.addition.task_set.seed",
    ]
    assert changed(after=BOTH)
    swapped = {name: BOTH[name] for name in reversed(BOTH)}
    (line,) = protocol_of(BOTH).differences(protocol_of(swapped))
    assert line.startswith("order"), "positions are others"


def test_a_harness_of_a_source_belongs_to_it():
    with_harness = {**source("more", BOTH["more"]), "harness": {"name": "tool_loop"}}
    run = run_of(None, data_sources(with_harness))
    how = measured(run).protocol.how["sources"]
    assert (how["sums"]["harness"], how["more"]["harness"]) == (None, "tool_loop")
    found = protocol_of(BOTH).differences(measured(run).protocol)
    assert found[0] == "how.sources.more.harness: None and 'tool_loop'"
    assert all(line.startswith("how.sources.more.") for line in found)


def data_sources(more):
    return f"data.sources={inline([source('sums', BOTH['sums']), more])}"


def test_the_files_of_the_model_are_told_by_what_they_hold(tiny_model, tmp_path):
    copied = tmp_path / "model"
    shutil.copytree(tiny_model, copied)
    task_set = addition(6)
    before = protocol_of(task_set, f"model.path={inline(str(tiny_model))}")
    same = protocol_of(task_set, f"model.path={inline(str(copied))}")
    assert before.differences(same) == [], "where it lies does not matter"
    weights = next(copied.glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    other = protocol_of(task_set, f"model.path={inline(str(copied))}")
    (line,) = before.differences(other)
    assert weights.name in line.partition(":")[0]


def test_a_protocol_is_read_as_it_was_written(tmp_path):
    protocol = protocol_of(BOTH, shard=(2, 3))
    protocol.write(tmp_path)
    read = read_protocol(tmp_path)
    assert read == protocol
    assert read.differences(protocol) == []


def test_a_folder_takes_no_results_of_something_else(tmp_path):
    assert check_results(tmp_path, protocol_of()) is None
    protocol_of(SUMS, "generation.n_trials=3").write(tmp_path)
    assert check_results(tmp_path, protocol_of(SUMS, "generation.n_trials=3"))
    assert check_results(tmp_path, protocol_of(SUMS, "generation.n_trials=5")), "more may be made"
    with pytest.raises(ResultsError, match=r"generation\.n_trials = 2: .* holds results of 3 trials"):
        check_results(tmp_path, protocol_of(SUMS, "generation.n_trials=2"))
    with pytest.raises(ResultsError, match=r"(?s)measured otherwise.*how\.sampling\.temperature: 1\.0 and 0\.25"):
        check_results(tmp_path, protocol_of(SUMS, "generation.n_trials=3", "rollout.temperature=0.25"))
    with pytest.raises(ResultsError, match=r"results of other tasks: .*shard \(1, 2\) is asked for"):
        check_results(tmp_path, protocol_of(SUMS, "generation.n_trials=3", shard=(1, 2)))


def test_a_shard_has_a_folder_of_its_own():
    run = run_of(SUMS, 'generation.results_dir="out"')
    assert results_folder(run, None) == Path("out")
    assert results_folder(run, (1, 2)) != results_folder(run, (2, 2))


# What will be trained with


def differing(*overrides, generation=(), **more):
    return list(training_differences(run_of(SUMS, *generation, **more), run_of(SUMS, *overrides)))


def test_a_training_run_that_draws_the_same_differs_in_nothing():
    assert differing() == []
    assert differing("rollout.num_rollout=99", "trainer.lr=0.3", "serving.num_engines=2", 'run.name="t"') == []


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("rollout.temperature=0.5", "rollout.temperature: 1.0 here, 0.5 there"),
        ("rollout.top_p=0.5", "rollout.top_p: 1.0 here, 0.5 there"),
        ("rollout.top_k=5", "rollout.top_k: -1 here, 5 there"),
        ("rollout.rollout_max_response_len=7", "rollout.rollout_max_response_len: 128 here, 7 there"),
        ("rollout.rollout_max_prompt_len=7", "rollout.rollout_max_prompt_len: 512 here, 7 there"),
        ("rollout.failure_policy=0.0", "rollout.failure_policy: exclude here, 0.0 there"),
        ("data.verifier_weights={math=2.0}", "data.verifier_weights"),
        ("rollout.harness='tool_loop'", "rollout.harness"),
        ('rollout.stop=["x"]', "rollout.stop"),
    ],
)
def test_what_a_training_run_does_otherwise_is_named(override, line):
    (found,) = (
        {text.partition(".name")[0] for text in differing(override)} if "harness" in line else differing(override)
    )
    assert found.replace("'", "").replace('"', "").startswith(line)


def test_the_temperature_of_the_generation_is_compared():
    assert differing(generation=["generation.temperature=0.5"]) == ["rollout.temperature: 0.5 here, 1.0 there"]
    assert differing("rollout.temperature=0.5", generation=["generation.temperature=0.5"]) == []


def test_another_model_is_named(tiny_model):
    (line,) = differing(generation=[f"model.path={inline(str(tiny_model))}"])
    assert line.startswith("model.path: ")
