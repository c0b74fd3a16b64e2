"""The commands that start nothing, and what a broken or missing package does to them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def reroll(*arguments, cwd=None, check=None):
    done = subprocess.run([sys.executable, "-m", "reroll", *arguments], capture_output=True, text=True, cwd=cwd)
    if check is not None:
        assert done.returncode == check, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("config", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.stem)
def test_every_configuration_resolves(config):
    plan = json.loads(reroll("plan", str(config), "--json", check=0).stdout)
    assert plan["sizes"]["updates_per_collection"] >= 1
    assert "optimizer_steps" in reroll("plan", str(config), check=0).stdout


def test_plan_loads_neither_torch_nor_transformers():
    code = (
        "import sys; sys.argv = ['reroll', 'plan', 'configs/quickstart.toml']\n"
        "from reroll.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('loaded', sorted({'torch', 'transformers', 'numpy', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "loaded []" in done.stdout


def test_the_quickstart_is_valid():
    assert "valid" in reroll("validate", "configs/quickstart.toml", cwd=ROOT, check=0).stdout


def test_validate_names_every_fault_of_data_and_model(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"prompt": "q", "targets": {"regex": "1"}}, {"prompt": "q", "targets": {"maths": "1"}}, {"prompt": ""}]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = tmp_path / "run.toml"
    run.write_text(
        f'[model]\npath = "{tmp_path}"\n[data]\ntask_set = {{ name = "file", path = "{prompts}" }}\n'
        "verifiers = [{ name = 'regex', pattern = '(\\d)' }]\n"
    )
    done = reroll("validate", str(run), check=2)
    assert "run.toml:2: model.path" in done.stderr
    assert "holds no config.json" in done.stderr
    assert "verifier 'maths', which data.verifiers does not list" in done.stderr
    assert "prompts.jsonl:3" in done.stderr
    assert "Traceback" not in done.stderr


def test_plugins_lists_what_is_installed():
    listed = json.loads(reroll("plugins", "--json", check=0).stdout)
    math = next(item for item in listed["plugins"] if item["distribution"] == "reroll-verifiers-math")
    assert (math["hooks"]["verifiers"], math["error"]) == (["math"], None)
    assert set(math) >= {"name", "distribution", "version", "hooks", "error"}


def broken_distribution(folder):
    """An installed package whose entry point cannot be imported."""
    info = folder / "reroll_broken-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reroll-broken\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[reroll]\nbroken = reroll_broken.plugin\n")


def test_a_broken_plugin_is_listed_and_stops_only_a_run_that_selects_it(tmp_path, monkeypatch):
    broken_distribution(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = reroll("plugins", check=1)
    assert "reroll-broken 0.1" in done.stdout
    assert "No module named 'reroll_broken'" in done.stdout
    reroll("plan", "configs/quickstart.toml", cwd=ROOT, check=0)
    done = reroll("plan", "configs/quickstart.toml", "--set", 'data.verifiers=["broken"]', cwd=ROOT, check=2)
    assert "reroll-broken (ModuleNotFoundError" in done.stderr


def test_an_unknown_command_line_is_an_error_without_a_traceback():
    assert reroll("plan", "nowhere.toml").returncode == 2
    assert "Traceback" not in reroll("plan", "nowhere.toml").stderr


def test_a_new_verifier_package_passes_its_own_tests(tmp_path):
    told = reroll("new-plugin", "verifier", "unit-tests", cwd=tmp_path, check=0).stdout
    assert f"hatch run pip install -e {(tmp_path / 'reroll-verifiers-unit-tests').resolve()}" in told
    package = tmp_path / "reroll-verifiers-unit-tests"
    assert {"pyproject.toml", "README.md", "src", "tests"} <= {path.name for path in package.iterdir()}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], capture_output=True, text=True, cwd=package
    )
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
    again = reroll("new-plugin", "verifier", "unit-tests", cwd=tmp_path, check=1)
    assert "not empty" in again.stderr
    assert "lower-case" in reroll("new-plugin", "verifier", "Bad Name", cwd=tmp_path, check=1).stderr


def test_of_two_runs_in_one_folder_only_one_goes_on(tmp_path):
    from reroll.api import RerollError
    from reroll.config import load_run_file
    from reroll.launch.start import begin, held_output
    from reroll.plugins import load_plugins

    run = load_run_file(ROOT / "configs" / "quickstart.toml", [f'output.dir="{tmp_path / "out"}"'], load_plugins())
    with held_output(run, pytest.fail) as output:
        assert output == tmp_path / "out"
        begin(run, output, pytest.fail, pytest.fail)
        with pytest.raises(RerollError, match="another run is using"), held_output(run, pytest.fail):
            pass
    with held_output(run, pytest.fail), pytest.raises(RerollError, match="holds a run already"):
        begin(run, output, pytest.fail, pytest.fail)
