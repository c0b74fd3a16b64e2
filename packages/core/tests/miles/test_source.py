"""Files that are read for MILES: which are none of its own, and `--set` in its names."""

import pytest

from reroll.api import Problem, RunFileError
from reroll.miles.source import read_source


def faults(path, *overrides):
    with pytest.raises(RunFileError) as caught:
        read_source(path, overrides)
    return caught.value.problems


def file(tmp_path, text, name="miles.toml"):
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["empty.toml", "empty.sh"])
@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_a_file_that_gives_no_control_is_a_fault(tmp_path, name, text):
    (fault,) = faults(file(tmp_path, text, name))
    assert fault.message == "the file gives no control" and "[miles]" in fault.remedy
    assert fault.file.endswith(name)


def test_an_empty_section_gives_no_control_either(tmp_path):
    (fault,) = faults(file(tmp_path, "[miles]\n"))
    assert fault.message == "the file gives no control"


def test_controls_without_a_section_are_told_theirs(tmp_path):
    first, second = faults(file(tmp_path, "lr = 1e-6\nmax_policy_lag = 2\n[launch]\nretries = 1\n"))
    assert (first.key, first.line, first.remedy) == ("lr", 1, "controls of MILES belong under [miles]")
    assert (second.key, second.line, second.remedy) == ("max_policy_lag", 2, "controls of MILES belong under [core]")


def test_a_run_file_is_known_as_one(tmp_path):
    (fault,) = faults(file(tmp_path, '[data]\nverifiers = ["math"]\n[trainer]\nlr = 1e-6\n'))
    assert (fault.key, fault.line) == ("trainer", 3)
    assert "written for reroll already" in fault.message and "without --from-miles" in fault.remedy


def test_a_section_of_ours_beside_theirs_is_unknown(tmp_path):
    source = read_source(file(tmp_path, "[miles]\nlr = 1e-6\n[trainer]\nlr = 1e-6\n"))
    assert source.given == {"miles.lr": 1e-6}
    assert [(note.kind, note.about) for note in source.notes] == [("unknown", "trainer")]


def test_set_takes_names_of_miles_with_and_without_a_section(tmp_path):
    path = file(tmp_path, "[miles]\nrollout_num_gpus = 2\nlr = 1e-6\n")
    given = ["rollout-num-gpus=4", "core.max_policy_lag=3", 'train_env_vars.NCCL_DEBUG="WARN"', "miles.lr=2e-6"]
    source = read_source(path, given)
    assert source.given == {
        "miles.rollout_num_gpus": 4,
        "miles.lr": 2e-6,
        "core.max_policy_lag": 3,
        "miles.train_env_vars": {"NCCL_DEBUG": "WARN"},
    }


def test_a_fault_of_a_value_that_set_has_given_names_no_line(tmp_path):
    source = read_source(file(tmp_path, "[miles]\nseed = 1\nlr = 1e-6\n"), ["lr=-1.0"])
    assert source.located(Problem("miles.lr", "is wrong")) == Problem("--set miles.lr", "is wrong")
    assert source.located(Problem("miles.seed", "is wrong")).line == 2
    assert source.located(Problem("model.path", "is missing")) == Problem("model.path", "is missing")


@pytest.mark.parametrize("given", ["lr", "miles.lr", "a b=1"])
def test_a_set_of_another_form_has_an_example_in_names_of_miles(tmp_path, given):
    (fault,) = faults(file(tmp_path, "[miles]\nseed = 1\n"), given)
    assert fault.key.startswith("--set ") and fault.remedy == "e.g. --set lr=1e-6"


def test_a_set_that_is_no_toml_is_repeated_as_it_was_given(tmp_path):
    (fault,) = faults(file(tmp_path, "[miles]\nseed = 1\n"), "advantage_estimator=grpo")
    assert fault.key == "--set advantage_estimator"
    assert """--set 'advantage_estimator="grpo"'""" in fault.remedy
