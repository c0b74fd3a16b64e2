"""`[launch]`: what needs an output folder, and which folders a run may start in."""

import shlex
from pathlib import Path

import pytest
from pydantic import ValidationError

from reroll.api import LaunchJob, RerollError, RunFileError
from reroll.config import load_run_file
from reroll.launch.config import LaunchSection, idle_in_a_new_folder
from reroll.launch.folder import LAUNCH
from reroll.launch.slurm import SlurmLauncher, SlurmLauncherConfig
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


@pytest.mark.parametrize("override", ["launch.max_retries=3", "launch.auto_resume=true"])
def test_options_without_a_folder_would_do_nothing_in_train(tmp_path, override):
    (problem,) = idle_in_a_new_folder(load(tmp_path, override))
    assert problem.key == override.split("=")[0]
    assert "output.dir is not given" in problem.message
    assert problem.remedy == "set output.dir, or start the run with `reroll run`"
    assert list(idle_in_a_new_folder(load(tmp_path, override, 'output.dir="x"'))) == []


def test_starts_are_counted_from_the_first(tmp_path):
    assert load(tmp_path).get(LaunchSection).max_retries == -1
    for value, says in (("-2", "max_retries: -2: "), ("0", "max_retries: 0: would let the run never start")):
        with pytest.raises(RunFileError, match=says):
            load(tmp_path, f"launch.max_retries={value}")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["launch.min_runtime=5"], "launch.min_runtime: is 5.0, which launch.backend = 'local' does not know"),
        (['launch.mounts=["/a:/b"]'], "launch.mounts: is ['/a:/b'], which launch.backend = 'local' does not know"),
        (['launch.priority="high"'], "launch.priority: is 'high', but 'local' knows 'normal', 'low' alone"),
        (['launch.priority="low"', 'launch.backend="ray"'], "launch.priority: is 'low', which launch.backend = 'ray'"),
        (["launch.retries=2"], "launch.retries: is 2, but launch.auto_resume is false"),
        (['launch.backend="beaker"'], "launch.backend: 'beaker'"),
        (['launch.mounts=["data:/b"]', 'launch.backend="slurm"'], "'data:/b' is no mount"),
        (['launch.mounts=["/a:/b:rx"]', 'launch.backend="slurm"'], "'/a:/b:rx' is no mount"),
        (['launch.backend={ name = "ray", env_vars = { HF_TOKEN = "x" } }'], "env_vars.HF_TOKEN: holds a secret"),
        (['launch.backend={ name = "slurm", options = ["gpu"] }'], "'gpu' is no option of sbatch"),
        (['launch.backend={ name = "slurm", time_limit = "soon" }'], "launch.backend.time_limit"),
    ],
)
def test_what_a_back_end_does_not_know_is_refused(tmp_path, overrides, says):
    with pytest.raises(RunFileError) as caught:
        load(tmp_path, *overrides)
    assert says in str(caught.value)


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


@pytest.mark.parametrize("option", ["partition", "account", "qos", "gpus"])
@pytest.mark.parametrize("value", ["gpu\ntouch x", "a --uid=0", "a'b", ""])
def test_an_option_of_slurm_is_one_word(option, value):
    with pytest.raises(ValidationError, match="one word"):
        SlurmLauncherConfig(**{option: value})


@pytest.mark.parametrize("name", ["a b", "it's", "100%", "a#b", 'a"b'])
def test_the_script_names_the_folder_as_it_is(name):
    folder = Path("/runs") / name
    job = LaunchJob("run", ("-m", "module"), folder, folder / LAUNCH / "output.log", Path("/"), False)
    line = next(line for line in SlurmLauncher().preview(job).splitlines() if "--output=" in line)
    (given,) = shlex.split(line.removeprefix("#SBATCH "))
    assert given.replace("%%", "%") == f"--output={folder}/{LAUNCH}/slurm-%j.log"


def test_a_folder_of_two_lines_is_no_line_of_the_script():
    folder = Path("/runs/a\ntouch x")
    job = LaunchJob("run", ("-m", "module"), folder, folder / LAUNCH / "output.log", Path("/"), False)
    with pytest.raises(RerollError, match="output.dir"):
        SlurmLauncher().preview(job)
