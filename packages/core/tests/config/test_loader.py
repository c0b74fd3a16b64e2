"""The run file: every fault at once, each with its place and remedy."""

from pathlib import Path

import pytest

from reroll.api import RunFileError
from reroll.config import load_run_file
from reroll.config.run import RunSection
from reroll.config.toml import line_of
from reroll.plan import constant_length, size_problems
from reroll.planning.report import make_plan
from reroll.plugins import load_plugins
from reroll.rollouts.config import RolloutSection, seeds
from reroll.training.config import ObjectiveSection, TrainerSection

GOOD = """
[model]
path = "builtin:tiny-math"
[data]
verifiers = [{ name = "regex", pattern = "(\\\\d+)" }]
"""


@pytest.fixture(scope="module")
def plugins():
    return load_plugins()


def load(tmp_path: Path, plugins, text: str, *overrides: str):
    path = tmp_path / "run.toml"
    path.write_text(text)
    return load_run_file(path, overrides, plugins, [size_problems])


def faults(tmp_path, plugins, text, *overrides):
    with pytest.raises(RunFileError) as caught:
        load(tmp_path, plugins, text, *overrides)
    return caught.value.problems


def test_defaults_are_the_stated_ones(tmp_path, plugins):
    run = load(tmp_path, plugins, GOOD)
    objective = run.get(ObjectiveSection)
    assert objective.eps_clip_high == 0.28
    assert run.make("advantages", objective.advantage_estimator).config.grpo_std_normalization is False


def test_overrides_apply_in_order_and_count_as_given(tmp_path, plugins):
    run = load(tmp_path, plugins, GOOD, "run.seed=1", "run.seed=7", 'run.name="x"', "rollout.stop=['a', 'b']")
    assert (run.get(RunSection).seed, run.get(RunSection).name) == (7, "x")
    assert run.get(RolloutSection).stop == ["a", "b"]
    assert "run.seed" in run.explicit
    assert seeds(run) == (7, 7, 7)
    assert seeds(load(tmp_path, plugins, GOOD, "data.seed=3")) == (0, 3, 0)


def test_an_option_joins_a_component_selected_by_its_bare_name(tmp_path, plugins):
    run = load(tmp_path, plugins, GOOD + 'task_set = "addition"\n', "data.task_set.high=9")
    assert run.make("task_sets", run.sections["data"].task_set).config.high == 9


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=1", "not of the form SECTION.KEY=VALUE"),
        ("run.name=hello", "TOML quotes"),
        ("run.seed", "not of the form"),
        ("run.seed.deeper=1", "not a table"),
        ("run. seed =1 2", "not a TOML value"),
    ],
)
def test_wrong_overrides_say_how_to_write_them(tmp_path, plugins, override, message):
    text = GOOD + "[run]\nseed = 0\n"
    assert message in "\n".join(map(str, faults(tmp_path, plugins, text, override)))


def test_a_fault_in_a_list_of_an_override_is_the_overrides(tmp_path, plugins):
    urls = 'serving.urls=["http://a:1", "a:2"]'
    found = faults(tmp_path, plugins, GOOD + '[serving]\nengine = "sglang"\n', urls)
    assert [problem.key for problem in found if "no URL" in problem.message] == ["--set serving.urls[1]"]


def test_every_fault_at_once_with_file_line_and_remedy(tmp_path, plugins):
    text = """[rollout]
temperatur = 1.0
n_samples_per_prompt = "many"

[trainer]
lr = -1

[rolout]
x = 1

[data]
verifiers = ["regx"]
"""
    found = {problem.key: problem for problem in faults(tmp_path, plugins, text)}
    assert found["rollout.temperatur"].remedy == "did you mean 'temperature'?"
    assert found["rollout.temperatur"].line == 2
    assert "'many'" in found["rollout.n_samples_per_prompt"].message
    assert found["trainer.lr"].line == 6
    assert "did you mean 'rollout'?" in found["rolout"].message
    assert len(found) >= 4
    assert all(problem.file.endswith("run.toml") for problem in found.values())


def test_component_faults_name_the_option(tmp_path, plugins):
    text = GOOD + 'task_set = { name = "addition", hihg = 3 }\n[rollout]\nharness = "single_trn"\n'
    found = {problem.key: problem for problem in faults(tmp_path, plugins, text)}
    assert "did you mean 'high'" in found["data.task_set.hihg"].remedy
    assert "did you mean 'single_turn'" in found["rollout.harness"].message


def test_a_section_or_name_of_a_package_that_is_not_installed(tmp_path):
    alone = load_plugins(_core_entry_points())
    found = {
        problem.key: str(problem)
        for problem in faults(tmp_path, alone, '[records]\nenabled = true\n[data]\ntask_set = "recheck"\n')
    }
    assert "pip install reroll-records" in found["records"]
    text = '[model]\npath = "x"\n[data]\ntask_set = "recheck"\nverifiers = ["math"]\n'
    found = {problem.key: str(problem) for problem in faults(tmp_path, alone, text)}
    assert "pip install reroll-replay-recheck" in found["data.task_set"]
    assert "pip install reroll-verifiers-math" in found["data.verifiers[0]"]


def _core_entry_points():
    from importlib.metadata import entry_points

    return [entry for entry in entry_points(group="reroll") if entry.dist.name == "reroll"]


def test_sizes_and_lengths_are_checked_against_each_other(tmp_path, plugins):
    text = GOOD + "[trainer]\nglobal_batch_size = 48\nmax_sequence_length = 100\n"
    found = {problem.key: problem for problem in faults(tmp_path, plugins, text)}
    assert "does not divide a collection of 128" in found["trainer.global_batch_size"].message
    assert "32, 64" in found["trainer.global_batch_size"].remedy
    assert "640" in found["trainer.max_sequence_length"].message


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[objective]\nkl_loss_coef = 0.1\n", "objective.kl_loss_coef"),
        ("[objective]\nuse_kl_loss = true\n", "objective.use_kl_loss"),
        ("[objective]\nuse_rollout_logprobs = true\ncorrection = 'tis'\n", "objective.correction"),
        ("[objective]\npolicy_loss = 'cispo'\neps_clip_c = 3.0\n", "objective.eps_clip_c"),
        ("[objective]\ncorrection = { name = 'icepop', icepop_low = 2.0 }\n", "objective.correction"),
        ("[trainer]\nlr_wsd_decay_iters = 2\n", "trainer"),
        ("[trainer]\nmin_lr = 0.0\nlr_decay_iters = 5\n", "trainer"),
        ("[trainer]\nlr_warmup_iters = 1\nlr_warmup_fraction = 0.1\n", "trainer"),
        ("[eval]\neval_interval = 5\n", "eval.eval_interval"),
        ("[rollout]\nrollout_max_context_len = 9999\n", "rollout.rollout_max_context_len"),
    ],
)
def test_options_that_would_do_nothing_are_refused(tmp_path, plugins, text, key):
    assert key in {problem.key for problem in faults(tmp_path, plugins, GOOD + text)}


def test_a_loss_has_one_denominator(tmp_path, plugins):
    text = GOOD + "[objective]\nadvantage_estimator = 'dr_grpo'\n"
    (problem,) = faults(tmp_path, plugins, text + "calculate_per_token_loss = true\n")
    assert problem.key == "objective.calculate_per_token_loss"
    assert "objective.advantage_estimator = 'dr_grpo'" in str(problem)
    run = load(tmp_path, plugins, text, "rollout.rollout_max_response_len=96")
    assert (constant_length(run), make_plan(run)["objective"]["aggregation"]) == (96, "per response, divided by 96")
    assert constant_length(load(tmp_path, plugins, GOOD)) is None


def test_an_unknown_estimator_is_one_fault_beside_the_others(tmp_path, plugins):
    text = "[objective]\nadvantage_estimator = 'rlo'\ncalculate_per_token_loss = true\nkl_loss_coef = 0.1\n"
    found = {problem.key: str(problem) for problem in faults(tmp_path, plugins, GOOD + text)}
    assert set(found) == {"objective.advantage_estimator", "objective.kl_loss_coef"}
    assert "'rloo'" in found["objective.advantage_estimator"]


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"lr_wsd_decay_iters": 9, "lr_warmup_iters": 2}, "set it to 8 or less"),
        ({"lr_wsd_decay_iters": 4, "lr_warmup_fraction": 0.5, "lr_decay_iters": 6}, "set it to 3 or less"),
        ({"lr_wsd_decay_iters": 1, "lr_warmup_iters": 10}, "shorten the warm-up"),
        ({"lr_wsd_decay_iters": 8, "lr_warmup_iters": 2}, None),
    ],
)
def test_warm_up_and_decay_fit_into_the_run(tmp_path, plugins, options, remedy):
    text = GOOD + "[rollout]\nnum_rollout = 10\n"
    overrides = ["trainer.lr_decay_style='wsd'", *(f"trainer.{key}={value}" for key, value in options.items())]
    if remedy is None:
        assert load(tmp_path, plugins, text, *overrides)
        return
    (problem,) = faults(tmp_path, plugins, text, *overrides)
    assert problem.key.endswith("trainer.lr_wsd_decay_iters")
    assert remedy in problem.remedy


def test_a_penalty_in_the_reward_keeps_the_reference(tmp_path, plugins):
    objective = load(tmp_path, plugins, GOOD, "objective.kl_coef=0.1").get(ObjectiveSection)
    assert (objective.use_kl_loss, objective.needs_reference) == (False, True)
    assert not ObjectiveSection().needs_reference


def test_toml_syntax_names_the_line(tmp_path, plugins):
    (problem,) = faults(tmp_path, plugins, "[run]\nname = hello\n")
    assert problem.line == 2


def test_a_missing_file_is_named(tmp_path, plugins):
    with pytest.raises(RunFileError, match="cannot read .*nowhere.toml"):
        load_run_file(tmp_path / "nowhere.toml", [], plugins)


def test_secrets_are_not_repeated(tmp_path, plugins):
    (problem,) = [p for p in faults(tmp_path, plugins, GOOD + '[run]\napi_key = "sk-123"\n') if "api_key" in p.key]
    assert "sk-123" not in str(problem)


def test_the_written_file_loads_to_the_same_run(tmp_path, plugins):
    import tomli_w

    first = load(tmp_path, plugins, GOOD, "trainer.lr=1e-3", "objective.correction='tis'")
    written = tmp_path / "resolved.toml"
    written.write_text(tomli_w.dumps(first.to_toml()))
    second = load_run_file(written, [], plugins, [size_problems])
    assert second.to_toml() == first.to_toml()
    assert second.get(TrainerSection).lr == 1e-3


def test_plan_says_sizes(tmp_path, plugins):
    plan = make_plan(load(tmp_path, plugins, GOOD, "trainer.global_batch_size=32"))
    assert plan["sizes"]["updates_per_collection"] == 4
    assert plan["plugins"]["verifiers/regex"].startswith("reroll ")
    assert plan["explicit"]["trainer"] == {"global_batch_size": 32}


def test_line_of_finds_keys_in_tables_and_lists():
    text = "[a]\nx = 1\n[[b.sets]]\nname = 1\n[[b.sets]]\nname = 2\n"
    assert line_of(text, "a.x") == 2
    assert line_of(text, "b.sets[1].name") == 6
    assert line_of(text, "c.y") is None


@pytest.mark.parametrize(
    "line",
    [
        "[trainer]\nlr = true",
        '[trainer]\nlr = "1e-3"',
        "[rollout]\nnum_rollout = 5.0",
        '[rollout]\nn_samples_per_prompt = "8"',
        '[output]\nexport_hf = "yes"',
        "[trainer]\nlr = inf",
        "[rollout]\nfailure_policy = nan",
        "[rollout]\ntop_k = 0",
        "[rollout]\ntop_k = 2147483648",
        '[rollout]\nstop = [""]',
        "[run]\nseed = -1",
    ],
)
def test_values_are_not_converted_from_other_types(tmp_path, plugins, line):
    section, key = line.split("]")[0][1:], line.split("\n")[1].split(" =")[0]
    (problem,) = faults(tmp_path, plugins, GOOD + line + "\n")
    assert problem.key.split("[")[0] == f"{section}.{key}"


def test_a_fault_does_not_hide_others_of_its_section_or_of_another(tmp_path, plugins):
    text = """[model]
path = "builtin:tiny-math"
[data]
verifierz = 1
task_set = "adition"
verifiers = [{ name = "regex", pattern = "(x)" }]
[trainer]
lr = -1
global_batch_size = 7
"""
    found = {problem.key for problem in faults(tmp_path, plugins, text)}
    assert found == {"data.verifierz", "data.task_set", "trainer.lr", "trainer.global_batch_size"}


def test_a_missing_component_hides_no_check_of_sizes(tmp_path, plugins):
    text = GOOD + '[serving]\nengine = "locl"\n[trainer]\nglobal_batch_size = 7\nmax_sequence_length = 100\n'
    found = {problem.key for problem in faults(tmp_path, plugins, text)}
    assert found == {"serving.engine", "trainer.global_batch_size", "trainer.max_sequence_length"}


def test_no_positive_weight_is_refused(tmp_path, plugins):
    (problem,) = faults(tmp_path, plugins, GOOD + "verifier_weights = { regex = 0.0 }\n")
    assert problem.key == "data.verifier_weights"


def test_an_engine_that_is_too_small_for_the_lengths_is_refused(tmp_path, plugins):
    text = GOOD + '[serving]\nengine = { name = "local", max_context_len = 20 }\n'
    (problem,) = faults(tmp_path, plugins, text)
    assert "raise it to 640" in problem.message


def test_one_override_sets_one_key(tmp_path, plugins):
    assert "not a TOML value" in "\n".join(map(str, faults(tmp_path, plugins, GOOD, 'run.name="a"\nfoo=1')))


def test_a_section_of_another_package_reads_values_by_their_keys(tmp_path, plugins):
    run = load(tmp_path, plugins, GOOD + "[async]\nfully_async = true\nmax_weight_staleness = 1\n")
    assert run.value("async.fully_async") is True
    assert run.value("serving.engine.name") == "local"
    for key in ("nothing.here", "async.nothing", "async.model_config"):
        with pytest.raises(KeyError):
            run.value(key)
