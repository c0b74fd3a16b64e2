"""What Harbor's verifier found, as a verdict; and the tool's arguments and results."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.api import Trace

sys.path.insert(0, str(Path(__file__).parent))

from task_cases import tasks_in, write_task

from reroll_harbor.bash import Bash, EnvironmentBash, checked_command, shown
from reroll_harbor.verifier import HarborVerifier, HarborVerifierConfig


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return tasks_in(write_task(tmp_path_factory.mktemp("set") / "greet")).task(0)


def judge(task, info, **options):
    trace = Trace.of(task, "Done.")
    trace.info.update(info)
    return HarborVerifier(HarborVerifierConfig(**options)).score(task, trace)


def rewards(**found):
    return {"harbor": {"trial": "greet", "rewards": found, "timed_out": False}}


@pytest.mark.parametrize(
    ("found", "options", "score"),
    [
        ({"reward": 1.0}, {}, 1.0),
        ({"reward": 0}, {}, 0.0),
        ({"reward": 0.25, "style": 1.0}, {}, 0.25),
        ({"speed": 0.5, "style": 1.0}, {}, 0.75),
        ({"speed": 0.5, "style": 1.0}, {"reward_key": "style"}, 1.0),
        ({"reward": 0.0, "style": 1.0}, {"reward_key": "style"}, 1.0),
    ],
)
def test_the_score_is_the_reward(task, found, options, score):
    verdict = judge(task, rewards(**found), **options)
    assert (verdict.score, verdict.state, dict(verdict.components)) == (score, "ok", found)
    assert verdict.scored


@pytest.mark.parametrize(
    ("info", "options", "detail"),
    [
        ({}, {}, "no rewards of the harness 'harbor'"),
        ({"harbor": None}, {}, "no rewards"),
        ({"harbor": {"rewards": {}}}, {}, "no rewards"),
        (rewards(reward="1"), {}, "reward 'reward' is '1', no number"),
        (rewards(reward=float("nan")), {}, "no number"),
        (rewards(reward=True), {}, "no number"),
        (rewards(reward=1.0), {"reward_key": "style"}, "reward_key = 'style' is none of the rewards: reward"),
    ],
)
def test_a_trace_that_does_not_say_is_not_scored(task, info, options, detail):
    verdict = judge(task, info, **options)
    assert (verdict.score, verdict.state) == (None, "unknown")
    assert detail in verdict.detail


@given(found=st.dictionaries(st.text(max_size=8), st.floats(0, 1) | st.integers(0, 1), max_size=4))
def test_any_rewards_between_0_and_1_give_such_a_score(task, found):
    verdict = judge(task, {"harbor": {"rewards": found}})
    assert (verdict.state == "ok") == bool(found)
    assert verdict.score is None or 0 <= verdict.score <= 1


def test_targets_name_a_directory_and_its_files(task):
    check = HarborVerifier().check_target
    assert check(task.targets["harbor"]) is None
    for target in (None, "1", {}, {"path": "a"}, {"path": "a", "digest": 3}):
        assert "path and digest" in check(target)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "argument 'command': None is no command"),
        ({"command": " "}, "is no command"),
        ({"command": ["ls"]}, "is no command"),
        ({"command": "ls", "cwd": "/"}, "argument 'cwd': there is only 'command'"),
        ({"command": "a\0b"}, "NUL"),
    ],
)
def test_what_is_no_command_is_told_to_the_model(arguments, words):
    with pytest.raises(ValueError, match=words):
        checked_command(arguments)


@pytest.mark.parametrize(
    ("code", "output", "errors", "text"),
    [
        (0, "a\nb\n", None, "exit code 0\na\nb"),
        (0, None, None, "exit code 0"),
        (2, "", "no such file\n", "exit code 2\nstderr:\nno such file"),
        (1, "a\n", "b\n", "exit code 1\na\nstderr:\nb"),
    ],
)
def test_results_say_exit_code_and_output(code, output, errors, text):
    assert shown(code, output, errors) == text


def test_a_command_runs_in_the_environment_with_its_limit():
    class Records:
        async def exec(self, command, timeout_sec):
            self.asked = command, timeout_sec
            return SimpleNamespace(return_code=3, stdout="said\n", stderr=None)

    environment = Records()
    bash = EnvironmentBash(environment, seconds=1.5)
    assert asyncio.run(bash.call({"command": "exit 3"})) == "exit code 3\nsaid"
    assert environment.asked == ("exit 3", 2)
    assert bash.schema() == Bash().schema()


def test_without_an_environment_nothing_is_run():
    with pytest.raises(RuntimeError, match="there is no environment"):
        asyncio.run(Bash().call({"command": "ls"}))
