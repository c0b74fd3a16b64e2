"""The example package as a stranger's: its wheel beside reroll's, in an environment and a folder of their own."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from test_wheels import borrow, needed

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "verifiers-reasoning-gym"
pytestmark = pytest.mark.slow

# reasoning-gym asks for pycosat, which has no wheels and would need a C compiler. The same solver's interface over
# another one; the puzzles that are made with it have one solution each.
PYCOSAT = {
    "pyproject.toml": """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "pycosat"
version = "0.6.6"
dependencies = ["python-sat"]
[tool.hatch.build.targets.wheel]
include = ["pycosat.py"]
""",
    "pycosat.py": """
from pysat.solvers import Cadical153


def itersolve(clauses):
    with Cadical153(bootstrap_with=clauses) as solver:
        yield from solver.enum_models()
""",
}


@pytest.fixture(scope="module")
def stranger(wheel, environment, tmp_path_factory):
    """A folder with `venv`, in which the example is installed with what it asks for, and its run file."""
    pycosat = tmp_path_factory.mktemp("pycosat")
    for name, text in PYCOSAT.items():
        (pycosat / name).write_text(text)
    folder = environment(*map(wheel, (ROOT / "packages/core", EXAMPLE, pycosat))).parent
    # After what pip installed: pip must never find, and replace, what is only linked.
    (site,) = (folder / "venv" / "lib").glob("python3*/site-packages")
    borrow(needed(["reroll[train]", "pytest", "hypothesis"]) - {"reroll"}, site)
    (folder / "run.toml").write_text((EXAMPLE / "run.toml").read_text())
    return folder


def run(stranger, program, *arguments, cwd=None):
    hidden = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    command = [str(stranger / "venv" / "bin" / program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd or stranger, env=environment)


def test_its_own_tests_pass(stranger):
    tests = stranger / "tests"
    tests.symlink_to(EXAMPLE / "tests")
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-o", f"pythonpath={tests}"]
    done = run(stranger, "python", "-m", "pytest", *options, str(tests))
    assert done.returncode == 0 and "passed" in done.stdout and "skipped" not in done.stdout, done.stdout[-3000:]


def test_plugins_lists_it(stranger):
    listed = json.loads(run(stranger, "reroll", "plugins", "--json").stdout)["plugins"]
    (found,) = [item for item in listed if item["distribution"] == "reroll-verifiers-reasoning-gym"]
    assert found["error"] is None
    assert found["hooks"] == {"task_sets": ["reasoning-gym"], "verifiers": ["reasoning-gym"]}
    assert {item["distribution"] for item in listed} == {"reroll", "reroll-verifiers-reasoning-gym"}


def test_its_run_file_is_valid_and_a_misspelt_dataset_is_not(stranger):
    done = run(stranger, "reroll", "validate", "run.toml")
    assert done.returncode == 0, done.stderr
    done = run(stranger, "reroll", "plan", "run.toml", "--set", 'data.task_set.dataset="basic_arithmetics"')
    assert done.returncode == 2 and "did you mean basic_arithmetic" in done.stderr


TARGETS = """
import json
from reroll_verifiers_reasoning_gym.task_set import ReasoningGymConfig, ReasoningGymTasks
for dataset in ("chain_sum", "rearc", "countdown"):
    target = ReasoningGymTasks(ReasoningGymConfig(dataset=dataset)).task(0).targets["reasoning-gym"]
    for answer in (target["entry"]["answer"], "-"):
        print(json.dumps({"gold": target, "answer": f"<think>…</think><answer>{answer}</answer>"}))
"""


def test_a_file_of_answers_is_scored(stranger):
    (stranger / "answers.jsonl").write_text(run(stranger, "python", "-c", TARGETS).stdout)
    done = run(stranger, "reroll", "score", "reasoning-gym", "answers.jsonl", "--output", "verdicts.jsonl")
    assert done.returncode == 0, done.stderr
    verdicts = [json.loads(line) for line in (stranger / "verdicts.jsonl").read_text().splitlines()]
    assert [verdict["state"] for verdict in verdicts] == ["ok"] * 4 + ["unknown"] * 2
    assert [verdict["score"] for verdict in verdicts] == [1.0, 0.0, 1.0, 0.0, None, None]


def test_its_run_file_trains(stranger):
    settings = ["--set", 'output.dir="out"', "--set", "rollout.num_rollout=2"]
    done = run(stranger, "reroll", "train", "run.toml", *settings)
    assert done.returncode == 0, done.stderr[-3000:]
    paths = sorted((stranger / "out" / "rollouts").glob("step_*/train_rollouts.jsonl"))
    records = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    assert len(paths) == 2 and len(records) == 2 * 16 * 8
    verdicts = [record["info"]["reroll"]["verdicts"]["reasoning-gym"] for record in records]
    assert {verdict["state"] for verdict in verdicts} == {"ok"}
    assert {0.0, 1.0} <= {verdict["score"] for verdict in verdicts}
    assert json.loads((stranger / "out" / "summary.json").read_text())["steps"] == 2
