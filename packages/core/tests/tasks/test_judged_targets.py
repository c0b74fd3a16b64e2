"""What `reroll validate` says of targets and of the weights of those who judge them."""

import json

import pytest

from reroll.api import RunFileError
from reroll.cli.validate import file_problems
from reroll.config import load_run_file
from reroll.plugins import load_plugins
from reroll.rollouts.verifiers import ExactMatch
from reroll.tasks.targets import target_fault, unjudgeable

RUN = """
[model]
path = "builtin:tiny-math"
[data]
verifiers = ["exact_match", {{ name = "regex", pattern = "(x)" }}]
{weights}
{tasks}
"""


@pytest.fixture(scope="module")
def plugins():
    return load_plugins()


def prompts(path, *targets):
    rows = [{"prompt": "Say it.", "targets": target} for target in targets]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load(tmp_path, plugins, tasks, weights="", more=""):
    path = tmp_path / "run.toml"
    path.write_text(RUN.format(tasks=tasks, weights=weights) + more)
    return load_run_file(path, [], plugins)


def problems(run, thorough=True):
    return {problem.key: problem.message for problem in file_problems(run, thorough=thorough)}


def file_set(path):
    return f'task_set = {{ name = "file", path = "{path}" }}'


def source(name, path, weights=""):
    return f'[[data.sources]]\nname = "{name}"\n{file_set(path)}\n{weights}\n'


@pytest.mark.parametrize("thorough", [True, False])
def test_a_target_that_nobody_reads_is_named_with_file_and_row(tmp_path, plugins, thorough):
    path = prompts(tmp_path / "prompts.jsonl", {"exact_match": "a"}, {"exact_match": "b"}, {"exact_match": 17.5})
    found = problems(load(tmp_path, plugins, file_set(path)), thorough)
    assert found["data.task_set"].startswith(
        f"{path}:3: task prompts:2: target of 'exact_match' can never be judged: the target of 'exact_match' must"
    )
    assert found["data.task_set"].endswith(", not 17.5")


def test_a_long_target_is_not_repeated_whole(tmp_path, plugins):
    path = prompts(tmp_path / "prompts.jsonl", {"exact_match": {"text": "x" * 10_000}})
    message = problems(load(tmp_path, plugins, file_set(path)))["data.task_set"]
    assert message.count("{'text': 'xxx") == 1 and "must be a text or a list of texts" in message
    assert len(message) < 1000 + len(str(path))


def test_a_target_is_shown_once_as_it_was_written_and_with_a_remedy(tmp_path, plugins):
    path = prompts(tmp_path / "prompts.jsonl", {"exact_match": {"latex": "\\frac{1}{2}"}})
    (problem,) = file_problems(load(tmp_path, plugins, file_set(path)), thorough=True)
    assert problem.message.count("\\frac") == 1 and "\\\\frac" not in problem.message
    assert problem.remedy == "correct the row, or drop it"


def test_a_target_that_the_reason_does_not_show_is_shown_beside_it():
    assert target_fault("v", "x\\y", "it is no list").startswith("target 'x\\y' of 'v' can never be judged: it is no")


def test_a_verifier_that_is_not_listed_is_one_fault_with_a_count(tmp_path, plugins):
    path = prompts(tmp_path / "prompts.jsonl", {"regex": "a"}, *[{"exact_math": "a", "maths": "b"}] * 20)
    first, second = file_problems(load(tmp_path, plugins, file_set(path)), thorough=True)
    assert first.message.startswith("20 tasks have targets for the verifier 'exact_math', which data.verifiers does")
    assert first.message.endswith(f"the first: {path}:2: task prompts:1")
    assert first.remedy == "add 'exact_math' to data.verifiers, or correct the targets if 'exact_match' is meant"
    assert second.remedy == "add 'maths' to data.verifiers"


def test_a_check_that_raises_is_a_fault_of_the_row():
    class Careless(ExactMatch):
        def check_target(self, target):
            return target["text"]

    assert unjudgeable(Careless(), {}) == "check_target raised KeyError: 'text'"
    assert unjudgeable(Careless(), {"text": "no"}) == "no" and unjudgeable(Careless(), {"text": None}) is None


@pytest.mark.parametrize("thorough", [True, False])
def test_the_key_of_a_judge_is_missed_before_the_run(tmp_path, plugins, monkeypatch, thorough):
    path = prompts(tmp_path / "prompts.jsonl", {"judge": "a"})
    judge = '{ name = "judge", base_url = "http://127.0.0.1:9/v1", model = "m", api_key_env = "KEY_OF_JUDGE" }'
    file = tmp_path / "run.toml"
    file.write_text(f'[model]\npath = "builtin:tiny-math"\n[data]\nverifiers = [{judge}]\n{file_set(path)}\n')
    run = load_run_file(file, [], plugins)
    monkeypatch.delenv("KEY_OF_JUDGE", raising=False)
    assert "KEY_OF_JUDGE, which is not set" in problems(run, thorough)["data.verifiers[0]"]
    monkeypatch.setenv("KEY_OF_JUDGE", "k-1234567890")
    assert problems(run, thorough) == {}


def test_targets_of_evaluations_are_asked_about_as_well(tmp_path, plugins):
    good, bad = prompts(tmp_path / "a.jsonl", {"regex": "x"}), prompts(tmp_path / "b.jsonl", {"regex": 1})
    run = load(tmp_path, plugins, file_set(good), more=f'[[eval.sets]]\nname = "b"\n{file_set(bad)}\n')
    assert f"{bad}:1: task b:0: target of 'regex'" in problems(run)["eval.sets[0].task_set"]


def test_a_weight_of_a_verifier_that_no_task_names_is_a_fault(tmp_path, plugins):
    path = prompts(tmp_path / "a.jsonl", {"exact_match": "a"})
    weights = "verifier_weights = { exact_match = 2.0, regex = 0.5 }"
    run = load(tmp_path, plugins, file_set(path), weights)
    assert problems(run) == {"data.verifier_weights.regex": "weighs a verifier that no task's targets name"}
    for more in (
        f'[[eval.sets]]\nname = "b"\n{file_set(prompts(tmp_path / "b.jsonl", {"regex": "x"}))}\n',
        f'[[eval.sets]]\nname = "b"\n{file_set(tmp_path / "nothing.jsonl")}\n',  # told by itself, and nothing else is
    ):
        assert "data.verifier_weights.regex" not in problems(load(tmp_path, plugins, file_set(path), weights, more))


def test_weights_may_differ_between_sources(tmp_path, plugins):
    a = prompts(tmp_path / "a.jsonl", {"exact_match": "a", "regex": "x"})
    b = prompts(tmp_path / "b.jsonl", {"exact_match": "a"})
    own = "verifier_weights = { regex = 0.5 }"
    run = load(tmp_path, plugins, source("a", a, own) + source("b", b))
    assert problems(run) == {}
    first, second = run.sections["data"].sources
    assert run.sections["data"].weights(first) == {"exact_match": 1.0, "regex": 0.5}
    assert run.sections["data"].weights(second) == {"exact_match": 1.0, "regex": 1.0}
    found = problems(load(tmp_path, plugins, source("a", a) + source("b", b, own)))
    assert found == {"data.sources[1].verifier_weights.regex": "weighs a verifier that no task's targets name"}


def test_weights_of_sources_are_checked_like_the_common_ones(tmp_path, plugins):
    path = prompts(tmp_path / "a.jsonl", {"exact_match": "a"})
    for weights, key in (
        ("math = 1.0", "verifier_weights.math"),
        ("regex = 0.0, exact_match = 0.0", "verifier_weights"),
    ):
        with pytest.raises(RunFileError) as caught:
            load(tmp_path, plugins, source("a", path, f"verifier_weights = {{ {weights} }}"))
        assert [problem.key for problem in caught.value.problems] == [f"data.sources[0].{key}"]


def test_the_weight_of_a_misspelt_verifier_names_the_nearest_one(tmp_path, plugins):
    path = prompts(tmp_path / "a.jsonl", {"exact_match": "a"})
    with pytest.raises(RunFileError) as caught:
        load(tmp_path, plugins, file_set(path), "verifier_weights = { exact_mach = 1.0 }")
    assert [problem.remedy for problem in caught.value.problems] == ["did you mean 'exact_match'?"]
