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


class Asked(Verifier):
    """Says what it was asked."""

    name = "asked"

    async def score(self, task, trace):
        return Verdict(1.0, detail=" / ".join(f"{message['role']}: {message['content']}" for message in task.messages))


class Failing(Verifier):
    """Judges by numbers alone, and of what else there is it knows texts."""

    name = "failing"

    async def score(self, task, trace):
        return Verdict(float(task.targets["failing"]))

    def check_target(self, target):
        return f"{target} is no number" if isinstance(target, str) else None


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
        module.reroll_verifiers = hookimpl(lambda: [ExactMatch, Regex, Awaited, Asked, Failing, Broken])
        module.reroll_verifiers.__name__ = "reroll_verifiers"
        found.register(module, "test", "reroll-cases")
        return found

    monkeypatch.setattr(plugins, "load_plugins", load_plugins)
    plugins.installed_plugins.cache_clear()
    app = typer.Typer()
    app.command()(score)
    # One process, unless a test says otherwise: starting them is most of what the tests wait for.
    yield lambda *arguments: CliRunner().invoke(app, ["--workers", "1", *map(str, arguments)])
    plugins.installed_plugins.cache_clear()


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
        "4 of 4",
        "0.5000",
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
    lines += ['{"gold": "1", "answer": "1", "expected": "yes"}', '{"gold": null, "answer": "1"}']
    lines += ['{"gold": "1", "answer": null}', '{"gold": "1", "answer": "1", "prompt": [{}]}']
    path.write_text("\n".join([*lines, '{"gold": "1", "answer": "1", "question": 3}']))
    result = run("exact_match", path, "--output", output)
    assert result.exit_code == 2 and not output.exists()
    for number, says in [
        (2, "is not JSON"),
        (3, "is not a JSON object"),
        (4, 'has no "gold"'),
        (5, '"answer" must be a text, not 2'),
        (9, '"gold" is null'),
        (10, '"answer" must be a text, not null'),
        (11, '"prompt"[0] needs a role'),
        (12, "\"question\" = '3' is neither"),
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


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_question_of_a_line_reaches_the_verifier(run, tmp_path):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    rows = [{"prompt": "2 + 2 ="}, {"question": "Why?", "prompt": None}, {"prompt": messages, "question": "no"}, {}]
    path = write(tmp_path / "a.jsonl", *({"gold": "g", "answer": "a"} | row for row in rows))
    details = [json.loads(line)["detail"] for line in run("asked", path).stdout.splitlines()]
    assert details == ["user: 2 + 2 =", "user: Why?", "system: s / user: u", "user: "]


def test_a_gold_that_can_never_be_judged_is_unknown_with_the_reason(run, tmp_path):
    path = write(tmp_path / "a.jsonl", {"gold": "x", "answer": "a"}, {"gold": 1, "answer": "a"})
    result = run("failing", path)
    first, second = map(json.loads, result.stdout.splitlines())
    assert (first["state"], first["score"], first["detail"]) == ("unknown", None, "x is no number")
    assert second["score"] == 1.0 and result.exit_code == 0
    assert "1 of 2" in result.stderr and "1.0000" in result.stderr


def test_it_fails_where_nothing_was_judged_and_still_says_why(run, tmp_path):
    path = write(tmp_path / "a.jsonl", {"gold": "x", "answer": "a"}, {"gold": [], "answer": "a"})
    output = tmp_path / "out.jsonl"
    result = run("failing", path, "--output", output)
    assert result.exit_code == 1
    states = [json.loads(line)["state"] for line in output.read_text().splitlines()]
    assert states == ["unknown", "service_error"]
    assert all(words in result.stdout for words in ("unknown", "service_error", "0 of 2"))
    assert "not one of 2 answers was judged; the first is unknown: x is no number" in result.stderr
