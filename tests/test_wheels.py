"""The built wheels, alone in a clean environment without torch, outside the checkout."""

import json
import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """An environment with the wheels of `reroll` and `reroll-verifiers-math`, and a folder to work in."""
    folder = tmp_path_factory.mktemp("wheels")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder / "dist")]
    subprocess.run([*build, str(ROOT / "packages/core"), str(ROOT / "packages/verifiers-math")], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    wheels = [str(path) for path in (folder / "dist").glob("*.whl")]
    assert len(wheels) == 2
    subprocess.run([python, "-m", "pip", "install", "-q", *wheels], check=True)
    return folder


def run(clean, *arguments):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(clean / "venv" / "bin" / "reroll"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=clean, env=environment)


def test_no_torch_came_along(clean):
    listed = subprocess.run(
        [clean / "venv/bin/python", "-m", "pip", "list"], capture_output=True, text=True, check=True
    )
    names = {line.split()[0].lower() for line in listed.stdout.splitlines()[2:]}
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


def borrow(distributions, site):
    """Links to what these distributions have installed here: installing torch again would take minutes."""
    for name in distributions:
        for file in distribution(name).files:
            top, path = file.parts[0], file.locate()
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(path if len(file.parts) == 1 else path.parents[len(file.parts) - 2])


def test_core_and_recheck_alone_run_the_recheck_config_with_cores_own_verifiers(tmp_path):
    """With what the extra `train` brings, and nothing else of this repository."""
    pip = [sys.executable, "-m", "pip"]
    packages = [str(ROOT / "packages/core"), str(ROOT / "packages/replay-recheck")]
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", str(tmp_path / "dist"), *packages], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    wheels = [str(path) for path in (tmp_path / "dist").glob("*.whl")]
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run([*pip, "--python", python, "install", "-q", "--no-deps", *wheels], check=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    borrow(needed(["reroll[train]"]) - {"reroll"}, site)
    (tmp_path / "run.toml").write_text((ROOT / "configs" / "replay" / "online_recheck.toml").read_text())
    listed = json.loads(run(tmp_path, "plugins", "--json").stdout)["plugins"]
    assert {item["distribution"] for item in listed} == {"reroll", "reroll-replay-recheck"}
    done = run(tmp_path, "train", "run.toml", "--set", 'output.dir="out"', "--set", "rollout.num_rollout=8")
    assert done.returncode == 0, done.stderr[-3000:]
    steps = (tmp_path / "out" / "rollouts").glob("step_*/train_rollouts.jsonl")
    records = [json.loads(line) for path in steps for line in path.read_text().splitlines()]
    replayed = [record for record in records if record["task"]["source_id"]]
    assert replayed and all(set(record["rewards"]) == {"regex"} for record in replayed)
