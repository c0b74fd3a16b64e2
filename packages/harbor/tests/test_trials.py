"""Trials through the real Harbor: its factory, its trial, its upload of tests and its verifier.

`host` runs commands in a folder of the host and needs nothing; `podman` runs them in containers and needs podman.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reroll.api import TaskError
from reroll.rollouts.groups import check_trace

sys.path.insert(0, str(Path(__file__).parent))

from task_cases import CONFIG, TEST, Script, bash, rollout, tasks_in, write_task

from reroll_harbor.harness import HarborConfig, HarborHarness
from reroll_harbor.layout import read_task
from reroll_harbor.verifier import HarborVerifier

pytestmark = pytest.mark.harbor


@pytest.fixture
def environments():
    """The module of the test's environment; none is left over."""
    import host_environment

    host_environment.started.clear()
    yield host_environment
    assert not host_environment.there, "an environment was not stopped"


def harness(**options):
    return HarborHarness(HarborConfig(environment_import_path="host_environment:HostEnvironment", **options))


def one_task(folder, **parts):
    return tasks_in(write_task(folder / "greet", **parts)).task(0)


def verdict(task, trace):
    return HarborVerifier().score(task, trace)


def results(trace):
    return [node.message["content"] for node in trace.nodes if node.message["role"] == "tool"]


def check_tokens(trace, script):
    """Tokens and log-probabilities are those that the engine gave, and prompts what the trace says."""
    check_trace(trace, "harbor")
    sampled = [index for index, node in enumerate(trace.nodes) if node.sampled]
    assert [trace.nodes[index].token_ids for index in sampled] == [given.output_ids for given in script.given]
    assert [trace.nodes[index].logprobs for index in sampled] == [given.logprobs for given in script.given]
    for index, prompt in zip(sampled, script.prompts, strict=False):
        assert [token for at in trace.path(index)[:-1] for token in trace.nodes[at].token_ids] == prompt


def test_a_trial_that_does_what_the_tests_want_is_rewarded(tmp_path, environments):
    task = one_task(tmp_path)
    script = Script("I write it.\n" + bash("echo hello > greeting.txt && ls /app"), "Done.")
    trace = asyncio.run(rollout(harness(), task, script))
    check_tokens(trace, script)
    assert results(trace) == ["exit code 0\ngreeting.txt"]
    assert (trace.stop_condition, trace.is_completed) == ("stop", True)
    assert trace.info["harbor"]["rewards"] == {"reward": 1.0}
    assert trace.metrics["harbor/timeouts"] == 0.0
    assert trace.metrics["tools/calls"] == 1.0
    assert verdict(task, trace).score == 1.0
    assert len(environments.started) == 1


def test_a_trial_that_does_something_else_is_not(tmp_path, environments):
    task = one_task(tmp_path)
    script = Script(bash("echo bye > greeting.txt; cat no-such-file"), "Done.")
    trace = asyncio.run(rollout(harness(), task, script))
    check_tokens(trace, script)
    (said,) = results(trace)
    assert said.startswith("exit code 1\nstderr:\n")
    assert "no-such-file" in said
    found = verdict(task, trace)
    assert (found.score, found.state) == (0.0, "ok")


def test_several_rewards_are_components(tmp_path, environments):
    test = 'echo \'{"speed": 0.5, "style": 1}\' > /logs/verifier/reward.json\n'
    task = one_task(tmp_path, test=test)
    trace = asyncio.run(rollout(harness(), task, Script("Nothing to do.")))
    found = verdict(task, trace)
    assert (found.score, dict(found.components)) == (0.75, {"speed": 0.5, "style": 1.0})


@pytest.mark.parametrize("turns", [[bash("echo hello > greeting.txt")], [bash("echo hello > greeting.txt; sleep 60")]])
def test_where_the_time_for_the_turns_is_over_the_tests_judge_what_is_there(tmp_path, environments, turns):
    """Once while the engine is at work, once while a command is."""
    task = one_task(tmp_path, config=CONFIG.replace("[agent]\ntimeout_sec = 60.0", "[agent]\ntimeout_sec = 5.0"))
    script = Script(*turns)
    trace = asyncio.run(rollout(harness(), task, script))
    check_tokens(trace, script)
    assert (trace.stop_condition, trace.is_completed) == ("timeout", True)
    assert trace.nodes[-1].sampled
    assert trace.info["harbor"]["timed_out"] is True
    assert trace.metrics["harbor/timeouts"] == 1.0
    assert verdict(task, trace).score == 1.0


def test_the_run_file_may_give_another_limit(tmp_path, environments):
    task = one_task(tmp_path)
    trace = asyncio.run(rollout(harness(agent_timeout=0.5), task, Script()))
    assert (trace.stop_condition, trace.completion) == ("timeout", "")
    assert verdict(task, trace).score == 0.0


def test_a_command_that_takes_too_long_is_told_to_the_model(tmp_path, environments):
    task = one_task(tmp_path)
    script = Script(bash("sleep 60"), bash("echo hello > greeting.txt"), "Done.")
    trace = asyncio.run(rollout(harness(tool_timeout=3), task, script))
    check_tokens(trace, script)
    first, second = results(trace)
    assert "took longer than 3 seconds" in first
    assert second == "exit code 0"
    assert verdict(task, trace).score == 1.0


def test_turns_are_bounded(tmp_path, environments):
    task = one_task(tmp_path)
    script = Script(bash("echo hello > greeting.txt"), bash("echo bye > greeting.txt"))
    trace = asyncio.run(rollout(harness(max_turns=2), task, script))
    assert trace.stop_condition == "max_turns"
    assert verdict(task, trace).score == 1.0, "what the last turn calls is not run"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"test": "true\n"}, "RewardFileNotFoundError"),
        ({"test": ": > /logs/verifier/reward.txt\n"}, "RewardFileEmptyError"),
        ({"test": "echo much > /logs/verifier/reward.txt\n"}, "VerifierOutputParseError"),
        ({"test": "echo NaN > /logs/verifier/reward.txt\n"}, "VerifierOutputParseError"),
        ({"test": "echo '{}' > /logs/verifier/reward.json\n"}, "no reward"),
        (
            {
                "test": "sleep 60\n",
                "config": CONFIG.replace("[verifier]\ntimeout_sec = 60.0", "[verifier]\ntimeout_sec = 1"),
            },
            "VerifierTimeoutError",
        ),
    ],
)
def test_a_trial_without_a_reward_is_an_error_and_no_failed_answer(tmp_path, environments, parts, message):
    with pytest.raises(Exception, match=message) as caught:
        asyncio.run(rollout(harness(), one_task(tmp_path, **parts), Script("Done.")))
    assert "greet" in str(caught.value)


def test_an_environment_that_does_not_start_is_an_error(tmp_path, environments):
    script = Script("Done.")
    with pytest.raises(Exception, match="no image of that name"):
        asyncio.run(rollout(harness(environment_options={"fault": "start"}), one_task(tmp_path), script))
    assert script.prompts == [], "the model is not asked"


def test_an_environment_that_breaks_is_an_error_that_the_model_does_not_answer(tmp_path, environments):
    script = Script(bash("break"), "What happened?")
    with pytest.raises(ConnectionError, match="the environment is gone"):
        asyncio.run(rollout(harness(environment_options={"fault": "exec"}), one_task(tmp_path), script))
    assert len(script.given) == 1
    assert len(environments.started) == 1


def test_what_the_engine_raises_is_raised_as_it_is(tmp_path, environments):
    failure = ZeroDivisionError("in the engine")
    failure.__cause__ = KeyError("why")
    with pytest.raises(ZeroDivisionError) as caught:
        asyncio.run(rollout(harness(), one_task(tmp_path), Script(bash("true"), failure)))
    assert caught.value is failure
    assert isinstance(failure.__cause__, KeyError)
    assert len(environments.started) == 1


def test_an_environment_that_cannot_be_taken_down_is_told_beside_the_reward(tmp_path, environments):
    script = Script(bash("echo hello > greeting.txt"), "Done.")
    task = one_task(tmp_path)
    trace = asyncio.run(rollout(harness(environment_options={"fault": "stop"}), task, script))
    assert verdict(task, trace).score == 1.0
    assert trace.info["harbor"]["fault"] == "OSError: the folder is busy"


@pytest.mark.parametrize("times", [1, 3])
def test_a_cancelled_trial_leaves_no_environment(tmp_path, environments, times):
    async def main():
        script = Script(bash("true"))
        running = asyncio.create_task(rollout(harness(), one_task(tmp_path), script))
        await script.waits.wait()
        assert len(environments.there) == 1
        for _ in range(times):
            running.cancel()
            await asyncio.sleep(0.01)
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not environments.there
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_trials_of_one_task_run_at_once_and_apart(tmp_path, environments):
    task = one_task(tmp_path)
    scripts = [Script(bash(f"echo {word} > greeting.txt"), "Done.") for word in ("hello", "bye", "hello", "hi")]

    async def main():
        return await asyncio.gather(*(rollout(harness(), task, script) for script in scripts))

    traces = asyncio.run(main())
    assert [verdict(task, trace).score for trace in traces] == [1.0, 0.0, 1.0, 0.0]
    assert len({trace.info["harbor"]["trial"] for trace in traces}) == len(set(environments.started)) == 4


def test_what_harbor_writes_is_kept_where_it_is_wanted(tmp_path, environments):
    task = one_task(tmp_path, test=TEST + "echo checked\n")
    trace = asyncio.run(rollout(harness(trials_dir=tmp_path / "trials"), task, Script("Done.")))
    kept = tmp_path / "trials" / trace.info["harbor"]["trial"]
    assert (kept / "verifier" / "reward.txt").read_text() == "0\n"
    assert "checked" in (kept / "verifier" / "test-stdout.txt").read_text()


def test_files_that_changed_since_they_were_read_are_refused(tmp_path, environments):
    task = one_task(tmp_path)
    (tmp_path / "greet" / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    with pytest.raises(TaskError, match="have changed since they were read"):
        asyncio.run(rollout(harness(), task, Script("Done.")))
    assert environments.started == []


@pytest.mark.parametrize(
    ("config", "instruction"),
    [
        (CONFIG, "Do it.\n"),
        (CONFIG + '[task]\nname = "people/greet"\n', "\n\nDo it."),
        ("", "<!-- canary GUID 1 -->\n# Canary 2\n\n# Greetings\nDo it.\n"),
        ("[verifier]\ntimeout_sec = 5\n[agent]\ntimeout_sec = 7.5\n", "# Mind the gap\n"),
    ],
)
def test_tasks_are_read_as_harbor_reads_them(tmp_path, config, instruction):
    from harbor.models.task.task import Task

    folder = write_task(tmp_path / "greet", config=config, instruction=instruction)
    theirs, ours = Task(folder), read_task(folder)
    assert (ours.name, ours.instruction, ours.path) == (theirs.name, theirs.instruction, theirs.task_dir)
    assert ours.agent_timeout == theirs.config.agent.timeout_sec
    assert ours.verifier_timeout in (theirs.config.verifier.timeout_sec, None)


RUN = """
[model]
path = "builtin:tiny-tools"
[data]
task_set = {{ name = "harbor", path = "{path}" }}
verifiers = ["harbor"]
[rollout.harness]
name = "harbor"
environment_import_path = "host_environment:HostEnvironment"
environment_options = {options}
"""


@pytest.mark.parametrize(("fault", "code"), [("", 0), ("preflight", 2)])
def test_validate_asks_harbor_whether_its_environment_can_run(tmp_path, fault, code):
    write_task(tmp_path / "tasks" / "greet")
    run_file = tmp_path / "run.toml"
    run_file.write_text(RUN.format(path=tmp_path / "tasks", options=f'{{ fault = "{fault}" }}'))
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "reroll", "validate", str(run_file)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == code, done.stdout + done.stderr
    assert ("rollout.harness: environment_import_path" in done.stderr) == (code == 2)


def test_what_the_back_end_lacks_is_told_in_harbors_words(environments):
    assert harness().lacks() is None
    assert "no folder can be made on this host" in harness(environment_options={"fault": "preflight"}).lacks()
    unknown = HarborHarness(HarborConfig(environment="dokcer")).lacks()
    assert unknown.startswith("environment = 'dokcer' is no environment of Harbor's; there are: ")
    assert "docker" in unknown
    nowhere = HarborHarness(HarborConfig(environment_import_path="nowhere.at_all:Environment")).lacks()
    assert "nowhere" in nowhere
