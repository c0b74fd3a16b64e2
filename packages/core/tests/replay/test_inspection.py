"""`reroll replay inspect`: what is offered, one prompt, and what it says where there is nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from replay_cases import Again, plugins, record, write_step

from reroll.api import RerollError, hookimpl
from reroll.replay import inspection
from reroll.replay.inspection import Wanted, inspect_folder


class Broken(Again):
    name = "broken"

    def prompt(self, record, anchor):
        return record["nothing"]


class BrokenPlugin:
    @hookimpl
    def reroll_derivations(self):
        return [Broken]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run's folder, beside a derivation of the tests' own and one that fails."""
    found = plugins()
    found.register(BrokenPlugin(), "broken", "reroll-broken")
    monkeypatch.setattr(inspection, "installed_plugins", lambda: found)
    write_step(tmp_path, 0, [record(0, 0.0), record(1)])
    write_step(tmp_path, 1, [record(2, 0.5, env_name="others")], done=False)
    return tmp_path


def inspected(folder, **changes):
    wanted = Wanted(folder, None, {}, None, False, 100, 0)._replace(**changes)
    return inspect_folder(wanted, lambda text: None)


def test_rollouts_are_counted_by_source_and_candidates_by_derivation(folder):
    found = inspected(folder)
    assert (found.counts.steps, found.counts.lines, found.counts.usable) == (2, 3, 3)
    assert found.sources == [("others", 1, 0.5), ("sums", 2, 0.5)]
    assert {offer.name: offer.candidates for offer in found.derivations}["again"] == 3
    assert found.prompt.messages[-1] == {"role": "user", "content": "Again?"}
    assert json.loads(json.dumps(found.to_json()))["counts"]["env_names"] == {"others": 1, "sums": 2}


def test_only_whole_steps_count_online_and_only_named_sources(folder):
    assert inspected(folder, online=True).counts.steps == 1
    assert inspected(folder, source_envs=["others"], derivation="again").derivations[0].candidates == 1


def test_a_derivation_that_fails_is_named_and_hides_no_other(folder):
    assert {offer.name for offer in inspected(folder).derivations} >= {"again", "broken"}
    with pytest.raises(RerollError, match="'broken' failed on rollout r2: KeyError"):
        inspected(folder, derivation="broken")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"candidate": 3, "derivation": "again"}, "has 3 candidates, counted from 0"),
        ({"source_envs": ["sum"]}, "there is: others, sums"),
        ({"derivation": "agian"}, "no derivation is named 'agian'"),
        ({"options": {"x": 1}}, "--option needs --derivation"),
        ({"derivation": "again", "options": {"x": 1}}, "again.x"),
    ],
)
def test_what_there_is_not_is_told_with_what_there_is(folder, changes, words):
    with pytest.raises(RerollError, match=words):
        inspected(folder, **changes)


def test_a_folder_without_steps_is_told(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(RerollError, match="holds no steps"):
        inspected(tmp_path / "empty")
    with pytest.raises(RerollError, match="holds no rollouts"):
        inspected(tmp_path / "nowhere")


def test_what_a_model_said_cannot_steer_the_terminal(tmp_path):
    write_step(tmp_path, 0, [record(0, answer="\x1b[2Jgone\u202e")])
    command = [sys.executable, "-m", "reroll", "replay", "inspect", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "\x1b[2J" not in done.stdout and "\u202e" not in done.stdout
