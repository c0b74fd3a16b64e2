"""`reroll score`: a file of answers is judged, or refused whole."""

import json
import os
import types

import pytest
import typer
from typer.testing import CliRunner

from reroll.api import Verdict, Verifier, hookimpl
from reroll.cli.score import score
from reroll.plugins import manager as plugins
from reroll.rollouts.verifiers import ExactMatch, Regex

BROKEN = """
from reroll.api import Verifier
class Broken(Verifier):
    name = "broken"
    def score(self, task, trace):
        return "1.0"
"""


class Awaited(Verifier):
    name = "awaited"

    async def score(self, task, trace):
        return Verdict(float(trace.completion == task.targets["awaited"]))


@pytest.fixture
def run(monkeypatch, tmp_path):
    (tmp_path / "broken_verifier.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    from broken_verifier import Broken

    def load_plugins():
        found = plugins.PluginManager()
        module = types.ModuleType("test_plugin")
        module.reroll_verifiers = hookimpl(lambda: [ExactMatch, Regex, Awaited, Broken])
        module.reroll_verifiers.__name__ = "reroll_verifiers"
        found.register(module, "test", "reroll-cases")
        return found

    monkeypatch.setattr(plugins, "load_plugins", load_plugins)
    app = typer.Typer()
    app.command()(score)
    # One process, unless a test says otherwise: starting them is most of what the tests wait for.
    return lambda *arguments: CliRunner().invoke(app, ["--workers", "1", *map(str, arguments)])


@pytest.fixture
def answers(tmp_path):
    rows = [
        {"id": "a", "gold": "1", "answer": " 1 ", "expected": True, "kind": "easy"},
        {"gold": "2", "answer": "3", "expected": False, "kind": "easy"},
        {"gold": ["4", "5"], "answer": "5"},
        {"gold": "6", "answer": "7", "expected": True, "kind": "hard"},
    ]
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    return path


def test_verdicts_go_to_the_output(run, answers, tmp_path):
    output = tmp_path / "verdicts.jsonl"
    result = run("exact_match", answers, "--output", output, "--workers", 2, "--deadline", 5)
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["score"] for row in rows] == [1.0, 0.0, 1.0, 0.0]
    assert [row["line"] for row in rows] == [1, 2, 3, 4]
    assert rows[0]["id"] == "a" and "id" not in rows[1]
    assert set(rows[1]) == {"line", "score", "state", "components", "detail", "seconds"}
    assert rows[0]["components"] == {"parsed": 1.0} and rows[0]["seconds"] >= 0
    for words in (
        "exact_match: 4 answers",
        "ok",
        "0.5000 of 4 scored",
        "66.7% of 3",
        "100.0% of 2",
        "0.0% of 1",
        "p99",
    ):
        assert words in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir() if "verdicts" in path.name) == ["verdicts.jsonl"]


def test_without_an_output_verdicts_are_printed(run, answers):
    result = run("exact_match", answers)
    assert [json.loads(line)["score"] for line in result.stdout.splitlines()] == [1.0, 0.0, 1.0, 0.0]
    assert "mean score" in result.stderr


def test_options_reach_the_verifier(run, answers):
    result = run("regex", answers, "--option", "pattern='[0-9]'", "--option", "strip=false")
    assert [json.loads(line)["score"] for line in result.stdout.splitlines()] == [1.0, 0.0, 1.0, 0.0]


def test_asynchronous_verifiers_are_asked_too(run, answers):
    result = run("awaited", answers)
    assert [json.loads(line)["score"] for line in result.stdout.splitlines()] == [0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "pattern: is required"),
        (["pattern"], "KEY=VALUE"),
        (["pattern=["], "is not a TOML value"),
        (["pattern='('"], "is no regular expression"),
        (["pattern='a'", "nope=1"], "nope: is not a key"),
    ],
)
def test_options_are_checked(run, answers, options, says):
    result = run("regex", answers, *(part for option in options for part in ("--option", option)))
    assert result.exit_code == 2 and says in result.stderr


def test_bad_lines_are_named_before_anything_is_judged(run, tmp_path):
    path, output = tmp_path / "bad.jsonl", tmp_path / "out.jsonl"
    lines = ['{"gold": "1", "answer": "1"}', "{", "[]", '{"answer": "1"}', '{"gold": "1", "answer": 2}', "", "{}"]
    path.write_text("\n".join([*lines, '{"gold": "1", "answer": "1", "expected": "yes"}']))
    result = run("exact_match", path, "--output", output)
    assert result.exit_code == 2 and not output.exists()
    for number, says in [
        (2, "is not JSON"),
        (3, "is not a JSON object"),
        (4, 'has no "gold"'),
        (5, '"answer" must be a text, not 2'),
        (7, 'has no "gold" and no "answer"'),
        (8, '"expected" must be true or false'),
    ]:
        assert f"{path}:{number}: {says}" in result.stderr
    assert f"{path}:1:" not in result.stderr


def test_files_that_cannot_be_judged(run, tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    assert run("exact_match", empty).exit_code == 2
    assert run("exact_match", tmp_path / "none.jsonl").exit_code == 2
    empty.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in run("exact_match", empty).stderr


def test_the_input_is_never_overwritten(run, answers, tmp_path):
    before = answers.read_bytes()
    link, twin = tmp_path / "link.jsonl", tmp_path / "twin.jsonl"
    link.symlink_to(answers)
    twin.hardlink_to(answers)
    for output in (answers, link, twin, tmp_path / "." / answers.name):
        result = run("exact_match", answers, "--output", output)
        assert result.exit_code == 2 and "file of answers itself" in result.stderr
    assert answers.read_bytes() == before
    assert run("exact_match", answers, "--output", tmp_path / "none" / "out.jsonl").exit_code == 2
    assert run("exact_match", answers, "--output", tmp_path).exit_code == 2


def test_an_unknown_verifier_says_what_to_install(run, answers):
    result = run("math", answers)
    assert result.exit_code == 2 and "pip install reroll-verifiers-math" in result.stderr


def test_a_broken_contract_writes_nothing(run, answers, tmp_path):
    output = tmp_path / "out.jsonl"
    result = run("broken", answers, "--output", output)
    assert result.exit_code == 1 and not output.exists()
    assert "'broken' of reroll-cases broke its contract" in result.stderr
