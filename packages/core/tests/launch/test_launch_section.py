"""`[launch]`: what needs an output folder, and which folders a run may start in."""

import pytest

from reroll.api import RunFileError
from reroll.config import load_run_file
from reroll.launch.config import LaunchSection
from reroll.plugins import load_plugins

GOOD = """
[model]
path = "builtin:tiny-math"
[data]
verifiers = [{ name = "regex", pattern = "(\\\\d+)" }]
"""


def load(tmp_path, *overrides):
    path = tmp_path / "run.toml"
    path.write_text(GOOD)
    return load_run_file(path, overrides, load_plugins())


def problems(tmp_path, *overrides):
    run = load(tmp_path, f'output.dir="{tmp_path / "out"}"', *overrides)
    found = [problem for section in run.sections.values() for problem in section.validate_files(run, thorough=False)]
    return [problem for problem in found if problem.key.startswith(("output", "launch"))]


@pytest.mark.parametrize("override", ["launch.max_retries=3", "launch.max_retries=0", "launch.auto_resume=true"])
def test_options_without_a_folder_would_do_nothing(tmp_path, override):
    with pytest.raises(RunFileError) as caught:
        load(tmp_path, override)
    (problem,) = caught.value.problems
    assert problem.key.endswith(override.split("=")[0])
    assert "output.dir is not given" in problem.message
    assert problem.remedy == "set output.dir"
    load(tmp_path, override, 'output.dir="x"')


def test_retries_are_counted_from_none(tmp_path):
    assert load(tmp_path).get(LaunchSection).max_retries == -1
    with pytest.raises(RunFileError, match="max_retries: -2: "):
        load(tmp_path, 'output.dir="x"', "launch.max_retries=-2")


@pytest.mark.parametrize("file", ["attempts.json", "context.json"])
def test_a_folder_with_a_run_is_gone_on_with_only_if_that_is_wanted(tmp_path, file):
    assert problems(tmp_path) == problems(tmp_path, "launch.auto_resume=true") == []
    (tmp_path / "out").mkdir()
    for before in ("run.lock", "run.log"):  # a start that was refused, or killed before it began
        (tmp_path / "out" / before).touch()
    assert problems(tmp_path) == problems(tmp_path, "launch.auto_resume=true") == []
    (tmp_path / "out" / file).touch()
    (problem,) = problems(tmp_path)
    assert (problem.key, "is not empty" in problem.message) == ("output.dir", True)
    assert "launch.auto_resume = true goes on with the run" in problem.remedy
    assert problems(tmp_path, "launch.auto_resume=true") == []


def test_a_folder_with_something_else_is_refused_either_way(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    (problem,) = problems(tmp_path)
    assert "auto_resume" not in problem.remedy
    (problem,) = problems(tmp_path, "launch.auto_resume=true")
    assert "something else than a run" in problem.message


def test_a_file_in_its_place_is_told_once(tmp_path):
    (tmp_path / "out").touch()
    (problem,) = problems(tmp_path)
    assert problem.message.endswith("is a file")
