"""Without Harbor, tasks are read and a run is planned; `reroll validate` says what a trial lacks."""

import asyncio
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from reroll.api import TaskError
from reroll.plugins import load_plugins

sys.path.insert(0, str(Path(__file__).parent))

from task_cases import Script, rollout, tasks_in, write_task

from reroll_harbor import availability
from reroll_harbor.availability import missing_package, release
from reroll_harbor.harness import HarborConfig, HarborHarness, trial_name

RUN = """
[model]
path = "builtin:tiny-tools"
[data]
task_set = {{ name = "harbor", path = "{path}" }}
verifiers = ["harbor"]
[rollout]
harness = "harbor"
rollout_max_context_len = 2048
[trainer]
max_sequence_length = 2048
"""
HIDE = """
import importlib.metadata, sys
sys.modules["harbor"] = None
found = importlib.metadata.version
def version(name):
    if name == "harbor":
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)
importlib.metadata.version = version
from reroll.cli import main
main()
"""
"""The command line where the package harbor is not installed, on a machine where it may be."""


def reroll(*arguments):
    return subprocess.run([sys.executable, "-c", HIDE, *arguments], capture_output=True, text=True)


@pytest.fixture
def run_file(tmp_path):
    write_task(tmp_path / "tasks" / "greet")
    (tmp_path / "run.toml").write_text(RUN.format(path=tmp_path / "tasks"))
    return tmp_path / "run.toml"


def test_the_package_gives_its_parts_to_reroll():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    named = project["entry-points"]["reroll"].items()
    plugins = load_plugins([EntryPoint(name, value, "reroll") for name, value in named])
    for hook in ("task_sets", "harnesses", "verifiers"):
        assert plugins.get(hook, "harbor").cls.__module__.startswith("reroll_harbor.")
    assert plugins.get("tools", "bash").cls.__module__ == "reroll_harbor.bash"
    harness = plugins.get("harnesses", "harbor").cls
    assert (harness.calls_tools, harness.resumable) == (True, False)


def test_a_run_is_planned_without_harbor(run_file):
    done = reroll("plan", str(run_file), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["explicit"]["rollout"]["harness"]["name"] == "harbor"


def test_the_run_file_of_the_readme_resolves(tmp_path):
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    (text,) = re.findall(r"```toml\n(.*?)```", readme, re.DOTALL)
    (tmp_path / "run.toml").write_text(text)
    done = reroll("plan", str(tmp_path / "run.toml"), "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    kept = {**plan["defaults"]["rollout"], **plan["explicit"]["rollout"]}["harness"]
    assert kept["environment"] == "podman"


def test_validate_says_what_to_install(run_file):
    done = reroll("validate", str(run_file))
    assert done.returncode == 2
    assert "rollout.harness: trials run through the package harbor" in done.stderr
    assert "pip install 'reroll-harbor[harbor]'" in done.stderr
    assert "Traceback" not in done.stderr
    newer = "which needs Python 3.12 or newer, and this is 3.11"
    assert (newer in done.stderr) == (sys.version_info < (3, 12))


def test_validate_names_faults_of_tasks_as_well(run_file):
    write_task(run_file.parent / "tasks" / "steps", config="[[steps]]\nname = 'one'\n")
    done = reroll("validate", str(run_file))
    assert done.returncode == 2
    assert "data.task_set: " in done.stderr
    assert "has [[steps]] (a task of several steps), which the harness 'harbor' does not run" in done.stderr


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ('rollout.harness="single_turn"', "rollout.harness"),
        ('rollout.harness="tool_loop"', "rollout.harness"),
        (
            'data.sources=[{name = "greetings", task_set = {name = "harbor", path = "tasks"}, harness = "tool_loop"}]',
            "data.sources[0].harness",
        ),
        (
            'eval.sets=[{name = "greetings", task_set = {name = "harbor", path = "tasks"}, harness = "single_turn"}]',
            "eval.sets[0].harness",
        ),
    ],
)
def test_a_harness_without_environments_is_refused(run_file, override, key):
    if "data.sources" in override:
        text = run_file.read_text()
        run_file.write_text("\n".join(line for line in text.splitlines() if not line.startswith("task_set")))
    done = reroll("plan", str(run_file), "--set", override)
    assert done.returncode == 2
    assert f"{key}: " in done.stderr
    assert "starts no environment, which tasks of the task set 'harbor' need" in done.stderr
    assert 'set harness = "harbor"' in done.stderr


def test_the_harness_says_the_same_when_it_is_run_all_the_same(tmp_path, monkeypatch):
    def gone(name):
        raise availability.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(availability.metadata, "version", gone)
    task = tasks_in(write_task(tmp_path / "greet")).task(0)
    with pytest.raises(TaskError, match=r"pip install 'reroll-harbor\[harbor\]'"):
        asyncio.run(rollout(HarborHarness(), task, Script("Done.")))
    assert HarborHarness().lacks() == missing_package()


def test_an_old_harbor_is_refused(monkeypatch):
    monkeypatch.setattr(availability, "OLDEST_PYTHON", sys.version_info[:2])  # which is told before
    monkeypatch.setattr(availability.metadata, "version", lambda name: "0.9.4")
    assert missing_package() == (
        "trials run through the package harbor 0.26 or newer, and 0.9.4 is installed: pip install "
        "'reroll-harbor[harbor]' --upgrade"
    )


@pytest.mark.parametrize(
    ("version", "numbers"), [("0.26.0", (0, 26, 0)), ("0.26rc1", (0,)), ("1.2.dev3", (1, 2)), ("x", ())]
)
def test_versions_are_compared_as_far_as_they_are_plain(version, numbers):
    assert release(version) == numbers


def test_two_environments_are_one_too_many():
    with pytest.raises(ValueError, match="environment = 'podman' does nothing beside environment_import_path"):
        HarborConfig(environment="podman", environment_import_path="a.b:C")
    with pytest.raises(ValueError, match="environment_import_path"):
        HarborConfig(environment_import_path="no class")


def test_trials_have_names_that_back_ends_take(tmp_path):
    config = '[task]\nname = "people/Grüße, an alle_und.mehr!"\n'
    task = tasks_in(write_task(tmp_path / "greet", config=config)).task(0)
    first, second = trial_name(task), trial_name(task)
    assert first.startswith("gr-e-an-alle-und-mehr-")
    assert first != second
