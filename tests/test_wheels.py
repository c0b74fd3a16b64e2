"""The built wheels, alone in a clean environment without torch, outside the checkout."""

import json
import os
import subprocess
from importlib.metadata import distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def clean(wheel, environment):
    """A folder to work in, with `venv`, where the wheels of `reroll` and `reroll-verifiers-math` are installed."""
    return environment(wheel(ROOT / "packages/core"), wheel(ROOT / "packages/verifiers-math")).parent


def run(clean, *arguments):
    hidden = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    command = [str(clean / "venv" / "bin" / "reroll"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=clean, env=environment)


def test_no_torch_came_along(clean):
    (site,) = (clean / "venv" / "lib").glob("python3*/site-packages")
    names = {canonicalize_name(found.metadata["Name"]) for found in distributions(path=[str(site)])}
    assert names > {"reroll", "reroll-verifiers-math"}
    assert not {"torch", "transformers", "safetensors", "pyarrow"} & names


def test_plan_and_plugins(clean):
    (clean / "run.toml").write_text((ROOT / "configs" / "quickstart.toml").read_text())
    plan = json.loads(run(clean, "plan", "run.toml", "--json").stdout)
    assert plan["plugins"]["verifiers/math"] == "reroll-verifiers-math 0.1.0"
    listed = json.loads(run(clean, "plugins", "--json").stdout)["plugins"]
    assert {item["distribution"] for item in listed} == {"reroll", "reroll-verifiers-math"}
    assert all(item["error"] is None for item in listed)
    assert run(clean, "validate", "run.toml").returncode == 0
    misspelt = run(clean, "plan", "run.toml", "--set", "sglang.mem_fraction_statik=0.5")
    assert misspelt.returncode and "did you mean 'mem_fraction_static'" in misspelt.stderr


def test_score(clean):
    lines = [
        {"gold": "85", "answer": r"so \boxed{85}"},
        {"gold": "1/2", "answer": "it is 0.5"},
        {"gold": "3", "answer": "4"},
    ]
    (clean / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = run(clean, "score", "math", "answers.jsonl", "--output", "verdicts.jsonl")
    assert done.returncode == 0, done.stderr
    verdicts = [json.loads(line) for line in (clean / "verdicts.jsonl").read_text().splitlines()]
    assert [verdict["score"] for verdict in verdicts] == [1.0, 1.0, 0.0]
    assert all(verdict["state"] == "ok" and verdict["seconds"] >= 0 for verdict in verdicts)


def test_a_run_that_selects_recheck_says_what_to_install(clean):
    (clean / "run.toml").write_text((ROOT / "configs" / "quickstart.toml").read_text())
    done = run(clean, "plan", "run.toml", "--set", 'data.task_set="recheck"')
    assert done.returncode == 2
    assert "pip install reroll-replay-recheck" in done.stderr


def test_training_without_the_extra_says_what_to_install(clean):
    (clean / "run.toml").write_text((ROOT / "configs" / "quickstart.toml").read_text())
    done = run(clean, "train", "run.toml")
    assert done.returncode != 0
    assert "pip install 'reroll[train]'" in done.stderr
    assert "Traceback" not in done.stderr


def needed(names):
    """Distributions that these need, extras and all, as this environment has them."""
    found, left = {}, list(names)
    while left:
        requirement = Requirement(left.pop())
        name, extras = canonicalize_name(requirement.name), requirement.extras or {""}
        if extras <= found.get(name, set()):
            continue
        found[name] = found.get(name, set()) | extras
        for wanted in map(Requirement, distribution(name).requires or ()):
            if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in found[name]):
                left.append(str(wanted).partition(";")[0])
    return set(found)


def borrow(names, site):
    """Links to what these distributions have installed here: installing torch again would take minutes."""
    for name in names:
        for file in distribution(name).files:
            top, path = file.parts[0], file.locate()
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(path if len(file.parts) == 1 else path.parents[len(file.parts) - 2])


def test_core_and_recheck_alone_run_the_recheck_config_with_cores_own_verifiers(wheel, environment):
    """With what the extra `train` brings, and nothing else of this repository."""
    packages = [wheel(ROOT / "packages/core"), wheel(ROOT / "packages/replay-recheck")]
    folder = environment("--no-deps", *packages).parent
    (site,) = (folder / "venv" / "lib").glob("python3*/site-packages")
    borrow(needed(["reroll[train]"]) - {"reroll"}, site)
    (folder / "run.toml").write_text((ROOT / "configs" / "replay" / "online_recheck.toml").read_text())
    listed = json.loads(run(folder, "plugins", "--json").stdout)["plugins"]
    assert {item["distribution"] for item in listed} == {"reroll", "reroll-replay-recheck"}
    done = run(folder, "train", "run.toml", "--set", 'output.dir="out"', "--set", "rollout.num_rollout=8")
    assert done.returncode == 0, done.stderr[-3000:]
    steps = (folder / "out" / "rollouts").glob("step_*/train_rollouts.jsonl")
    records = [json.loads(line) for path in steps for line in path.read_text().splitlines()]
    replayed = [record for record in records if record["task"]["source_id"]]
    assert replayed and all(set(record["rewards"]) == {"regex"} for record in replayed)
