"""`reroll data`: what it lists, prepares, shows and refuses."""

import json
import subprocess
import sys
import tomllib
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from reroll.api import Dataset, DatasetRow, PluginError, RerollError, hookimpl, text_field
from reroll.cli.data import app
from reroll.plugins import manager
from reroll.tasks.catalog.sources import SourceError


def data(*arguments):
    """Output of the command; raises what it ends with."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def multiplication(output, *more):
    return data("prepare", "multiplication", "--output", output, "--option", "high=9", *more)


def test_prepare_ends_with_the_lines_of_a_run_file(tmp_path):
    told = multiplication(tmp_path / "out", "--option", 'verifier="exact_match"')
    lines = tomllib.loads(told.partition("In a run file:\n")[2])
    path = str(tmp_path / "out" / "manifest.json")
    assert lines == {
        "data": {"manifest": path, "verifiers": ["exact_match"]},
        "eval": {
            "sets": [
                {
                    "name": "multiplication-test",
                    "task_set": {"name": "manifest", "path": path, "split": "test"},
                }
            ]
        },
    }
    run = tmp_path / "run.toml"
    run.write_text('[model]\npath = "builtin:tiny-math"\n' + told.partition("In a run file:\n")[2])
    done = subprocess.run([sys.executable, "-m", "reroll", "validate", str(run)], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == f"{run}: valid", done.stderr
    again = multiplication(tmp_path / "out", "--option", 'verifier="exact_match"')
    assert "holds this very data set already; nothing was written" in again


def test_show_tells_and_verifies(tmp_path):
    multiplication(tmp_path / "out")
    told = data("show", tmp_path / "out", "--verify")
    assert "multiplication, judged by math" in told and "every file is as it was prepared" in told
    facts = json.loads(data("show", tmp_path / "out" / "manifest.json", "--json"))
    assert facts["splits"]["train"]["rows"] + facts["splits"]["test"]["rows"] == 100
    path = tmp_path / "out" / "test.jsonl"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"What", b"Whot"))
    data("show", tmp_path / "out")
    with pytest.raises(RerollError, match=r"test.jsonl: sha256 .* expected, found"):
        data("show", tmp_path / "out", "--verify")
    path.unlink()
    with pytest.raises(RerollError, match=r"test.jsonl: .* bytes expected, the file cannot be read"):
        data("show", tmp_path / "out")


def test_list_names_packages_and_what_a_source_must_look_like():
    told = data("list")
    assert "multiplication  (reroll " in told
    for name, package in manager.known_distributions()["datasets"].items():
        assert f"{name}  ({package}" in told or f"{name}  (not installed: pip install {package})" in told


def test_a_data_set_of_a_package_that_is_not_installed_says_which_to_install(monkeypatch):
    alone = manager.load_plugins([item for item in manager.entry_points(group="reroll") if item.dist.name == "reroll"])
    monkeypatch.setattr("reroll.plugins.installed_plugins", lambda: alone)
    with pytest.raises(PluginError, match="no dataset is named 'gsm8k': pip install reroll-verifiers-math"):
        data("prepare", "gsm8k", "--output", "out")
    with pytest.raises(PluginError, match="did you mean 'multiplication'"):
        data("prepare", "multiplications", "--output", "out")
    assert "if  (not installed: pip install reroll-verifiers-if)" in data("list")


class Riddles(Dataset):
    """A data set of another package."""

    name = "riddles"
    verifier = "exact_match"
    template = "{riddle}"
    places = ("riddle",)
    shapes = "riddle and answer"

    def row(self, raw):
        return DatasetRow(text_field(raw, "answer"), {"riddle": text_field(raw, "riddle")})


def test_a_data_set_of_another_package_is_prepared_by_its_name(tmp_path, monkeypatch):
    plugins = manager.load_plugins()
    plugins.register(SimpleNamespace(reroll_datasets=hookimpl(lambda: [Riddles])), "riddles", "reroll-riddles", "3.1")
    monkeypatch.setattr("reroll.plugins.installed_plugins", lambda: plugins)
    source = tmp_path / "riddles.jsonl"
    rows = [{"riddle": f"What is {number}?", "answer": str(number)} for number in range(5)]
    source.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"riddle": "Who?"}]))
    assert "riddles  (reroll-riddles 3.1)" in data("list")
    with pytest.raises(SourceError, match="--from: 'riddles' has to be made from something, .* riddle and answer"):
        data("prepare", "riddles", "--output", tmp_path / "out")
    with pytest.raises(RerollError, match=r"riddles.jsonl:6: has no 'answer'; its fields: riddle"):
        data("prepare", "riddles", "--from", source, "--output", tmp_path / "out")
    options = ["--held-out", "2", "--skip-invalid", "--option", 'template="Riddle: {riddle}"']
    told = data("prepare", "riddles", "--from", source, "--output", tmp_path / "out", *options)
    assert "left out: riddles.jsonl:6: has no 'answer'" in told and "left out, unreadable: 1" in told
    facts = json.loads(data("show", tmp_path / "out", "--json"))
    assert facts["versions"]["reroll-riddles"] == "3.1"
    assert {name: split["rows"] for name, split in facts["splits"].items()} == {"train": 3, "test": 2}
    assert facts["preparation"] == {"held_out": 2, "overlaps": "remove", "skip_invalid": True}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--from", "x.jsonl"], "--from: 'multiplication' is generated"),
        (["--held-out", "3"], "--held-out: 'multiplication' is generated"),
        (["--subset", "main"], "--subset: 'multiplication' is generated"),
        (["--option", "high"], "--option high: is not of the form KEY=VALUE"),
        (["--option", "verifier=x"], "'x' is not a TOML value; strings need TOML quotes"),
        (["--option", "hihg=3"], "multiplication.hihg: is not a key that this table knows"),
        (["--option", 'template="What?"'], r"template = 'What\?' has no \{a\}"),
        (["--held-out", "all"], "--held-out all: give a number of rows"),
    ],
)
def test_wrong_options_are_named(tmp_path, arguments, told):
    with pytest.raises((RerollError, SourceError), match=told):
        data("prepare", "multiplication", "--output", tmp_path / "out", *arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments", [["--option", "api_key='{}'"], ["--option", "high='{}'"], ["--from", "{}"]])
def test_no_secret_comes_into_a_manifest(tmp_path, arguments):
    secret = "hf_" + "a1B2c3D4" * 4
    given = [argument.format(secret) for argument in arguments]
    with pytest.raises(RerollError, match="and a manifest is saved and shown\n    take it out") as refused:
        data("prepare", "multiplication", "--output", tmp_path / "out", *given)
    assert secret not in str(refused.value)
    assert not (tmp_path / "out").exists()
