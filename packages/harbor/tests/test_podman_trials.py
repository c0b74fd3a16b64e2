"""Trials in containers, through the environment `podman` of Harbor's own: image, mounts, commands and clean-up."""

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from container_image import write_build
from task_cases import CONFIG, Script, bash, rollout, tasks_in, write_task

from reroll_harbor.harness import HarborConfig, HarborHarness
from reroll_harbor.verifier import HarborVerifier

pytestmark = [pytest.mark.harbor, pytest.mark.podman]


@pytest.fixture(scope="module", autouse=True)
def settings(tmp_path_factory):
    """What containers need where limits cannot be raised and control groups are mixed, as within a container."""
    patch = pytest.MonkeyPatch()
    lines = ["[containers]", 'default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]']
    lines += ["[engine]", "stop_timeout = 1"]
    lines += ['runtime = "runc"'] if shutil.which("runc") else []
    path = tmp_path_factory.mktemp("podman") / "containers.conf"
    path.write_text("\n".join(lines) + "\n")
    patch.setenv("CONTAINERS_CONF", str(path))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def image(settings, tmp_path_factory):
    folder = write_build(tmp_path_factory.mktemp("image") / "build")
    name = "localhost/reroll-harbor-test:1"
    subprocess.run(["podman", "build", "--tag", name, str(folder)], check=True, capture_output=True)
    yield name
    subprocess.run(["podman", "rmi", "--force", name], check=True, capture_output=True)


def built(folder, image):
    """A task whose image is made for each trial."""
    environment = {"Dockerfile": f"FROM {image}\nCOPY notes.txt /app/\n", "notes.txt": "of the task\n"}
    return tasks_in(write_task(folder / "greet", environment=environment)).task(0)


def prebuilt(folder, image):
    """A task whose image is there, and to which Harbor uploads the files of its environment."""
    config = CONFIG.replace("[environment]\n", f'[environment]\ndocker_image = "{image}"\n')
    return tasks_in(write_task(folder / "greet", config=config, environment={"notes.txt": "of the task\n"})).task(0)


@pytest.fixture(autouse=True)
def nothing_left():
    before = containers()
    yield
    assert containers() == before


def containers():
    listed = subprocess.run(["podman", "ps", "--all", "--format", "json"], check=True, capture_output=True, text=True)
    return {item["Id"] for item in json.loads(listed.stdout or "[]")}


def images():
    listed = subprocess.run(["podman", "images", "--format", "json"], check=True, capture_output=True, text=True)
    return {name for item in json.loads(listed.stdout or "[]") for name in item.get("Names") or ()}


def harness(**options):
    return HarborHarness(HarborConfig(environment="podman", **options))


def test_podman_can_be_used_here():
    assert harness().lacks() is None


@pytest.mark.parametrize(
    ("made", "word", "score", "options"),
    [
        (built, "hello", 1.0, {}),
        # podman-compose would delete an image that a task names, as if it had been built for the trial.
        (prebuilt, "bye", 0.0, {"delete": False}),
    ],
)
def test_a_trial_in_a_container_is_judged_by_its_tests(image, tmp_path, made, word, score, options):
    task = made(tmp_path, image)
    script = Script(bash(f"echo {word} > greeting.txt; ls; id -u; ls /tests"), "Done.")
    before = images()
    trace = asyncio.run(rollout(harness(**options), task, script))
    assert images() == before
    (said,) = [node.message["content"] for node in trace.nodes if node.message["role"] == "tool"]
    assert "greeting.txt" in said
    assert "notes.txt" in said
    assert "No such file" in said, "the model does not see the tests"
    assert HarborVerifier().score(task, trace).score == score
    sampled = [node for node in trace.nodes if node.sampled]
    assert [node.token_ids for node in sampled] == [given.output_ids for given in script.given]


def test_a_cancelled_trial_leaves_no_container(image, tmp_path):
    task = built(tmp_path, image)

    async def main():
        script = Script(bash("true"))
        running = asyncio.create_task(rollout(harness(), task, script))
        waiting = asyncio.create_task(script.waits.wait())
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        assert not running.done()
        assert len(containers()) == 1
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())


def test_an_image_that_is_not_there_is_an_error(image, tmp_path):
    config = CONFIG.replace("[environment]\n", '[environment]\ndocker_image = "localhost/no-such-image:1"\n')
    task = tasks_in(write_task(tmp_path / "greet", config=config)).task(0)
    with pytest.raises(Exception, match="the trial of .* failed: "):
        asyncio.run(rollout(harness(), task, Script("Done.")))
