"""Workers on a Ray cluster of two nodes: what a run computes there, and what it leaves there."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import psutil
import pytest
from driving import run_and_watch, session_of
from launching import LONG
from ray_cluster import left_over, quiet_ray, two_nodes

from reroll.api import RerollError, WorkerDied, WorkerSpec
from reroll.loop import train
from reroll.placement.ray.config import RayPlacementConfig
from reroll.placement.ray.placement import RayPlacement
from reroll.workers import calling

pytestmark = pytest.mark.ray
CONFIGS = Path(__file__).parents[1] / "configs"


@pytest.fixture(scope="module")
def address():
    """Of the cluster, whose workers can import this folder's modules."""
    with two_nodes(Path(__file__).parent) as address:
        yield address


def on_ray(address, strategy="PACK"):
    return f'placement.backend={{ name = "ray", address = "{address}", strategy = "{strategy}" }}'


def test_an_interrupted_run_takes_its_own_cluster_down(run_file, tmp_path):
    """Ctrl-C reaches every process that was started from the terminal, Ray's among them: the run must end by itself.

    The first test, since the others' cluster would take the room of this machine that it needs.
    """
    output = tmp_path / "run"
    overrides = ['placement.backend="ray"', f'output.dir="{output}"', *LONG]
    command = [sys.executable, "-m", "reroll", "train", str(run_file()), *(f"--set={each}" for each in overrides)]
    with quiet_ray(), subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True) as program:
        while not (output / "rollouts" / "step_0" / "train_rollouts.done").exists():
            assert program.poll() is None, program.stderr.read()
            time.sleep(0.1)
        started = psutil.Process(program.pid).children(recursive=True)
        os.killpg(program.pid, signal.SIGINT)
        told = program.stderr.read()
    assert program.returncode == 130, told
    assert "SIGINT: ending the run" in told
    assert json.loads((output / "summary.json").read_text())["ended"] == "interrupted"
    _, alive = psutil.wait_procs(started, timeout=30)
    assert alive == []


def test_the_quickstart_on_ray_gives_what_it_gives_locally(address, tmp_path):
    held_out = 'eval.sets=[{ name = "held-out", task_set = { name = "addition", split = "held_out", size = 8 } }]'
    # The nodes only say that they have GPUs.
    quick = ['trainer.device="cpu"', "rollout.num_rollout=2", held_out, "output.export_hf=false"]
    path = CONFIGS / "quickstart-sync.toml"
    local = run_and_watch(path, tmp_path / "local", *quick)
    remote = run_and_watch(path, tmp_path / "ray", *quick, on_ray(address))
    assert remote.token_ids == local.token_ids
    assert remote.gradients == local.gradients
    assert remote.weights == local.weights
    assert remote.engine_weights == local.engine_weights == local.weights
    assert len(set(local.weights)) == 2
    assert saved(tmp_path / "ray") == saved(tmp_path / "local")


def saved(output):
    """What a replay needs of the saved rollouts; the marker says that a step is whole, wherever it was made."""
    found = []
    for step in sorted((output / "rollouts").glob("step_*")):
        assert (step / "train_rollouts.done").exists()
        for line in (step / "train_rollouts.jsonl").read_text("utf-8").splitlines():
            record = json.loads(line)
            stamp = record["info"]["reroll"]
            kept = {name: stamp[name] for name in ("kind", "env_name", "weight_versions", "is_filtered", "group_index")}
            found.append((step.name, kept, record["nodes"], record["rewards"]))
    assert found
    return found


def test_two_ranks_on_two_nodes_train_as_two_here(address, run_file, tmp_path):
    path, ranks = run_file(), ["trainer.num_ranks=2", 'trainer.device="cpu"', "rollout.num_rollout=1"]
    local = run_and_watch(path, tmp_path / "local", *ranks)
    remote = run_and_watch(path, tmp_path / "ray", *ranks, on_ray(address, strategy="SPREAD"))
    assert remote.digest == local.digest


class Echo:
    """What a worker may do."""

    def __init__(self, refused=False):
        if refused:
            raise ValueError("this is refused")
        print("hello from the worker", flush=True)
        self.seen = []

    def note(self, value):
        self.seen.append(value)

    def notes(self):
        return self.seen

    def later(self):
        self.promise = Future()
        return self.promise

    def keep(self, value):
        self.promise.set_result(value)

    def fail(self):
        raise KeyError("lost")

    def unpicklable(self):
        return lambda: 1

    def die(self):
        print("these are my last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def hang(self):
        threading.Event().wait()

    def environment(self, name):
        return os.environ.get(name)

    def place(self):
        import ray

        return os.getpid(), ray.get_runtime_context().get_node_id(), "torch" in sys.modules


TARGET = f"{Path(__file__).stem}:Echo"


def spec(number=0, **given):
    return WorkerSpec(f"echo-{number}", TARGET, **given)


def placed(address, body, **options):
    """Runs the body with a placement, and closes it."""

    async def work():
        placement = RayPlacement(RayPlacementConfig(**{"address": address, "startup_timeout": 60.0, **options}))
        try:
            return await body(placement)
        finally:
            await placement.close()

    return asyncio.run(work())


def test_a_worker_answers_in_order_and_keeps_nobody_waiting(address, tmp_path):
    async def body(placement):
        log = tmp_path / "logs" / "echo.log"
        worker = await placement.start(spec(environment={"FLAVOUR": "mint"}, log=log))
        noting = [worker.call("note", number) for number in range(300)]
        for number in range(300, 340):  # in frames of their own
            noting.append(worker.call("note", number))
            await asyncio.sleep(0)
        await asyncio.gather(*noting)
        assert await worker.call("notes") == list(range(340))
        promise = worker.call("later")
        assert await worker.call("environment", "FLAVOUR") == "mint"
        assert await worker.call("environment", "REROLL_HOST") is None, "one machine needs no other than loopback"
        await worker.call("keep", "late")
        assert await promise == "late"
        with pytest.raises(KeyError, match="lost") as failed:
            await worker.call("fail")
        assert "in fail" in failed.value.__notes__[0]
        with pytest.raises(RuntimeError, match="cannot be sent"):
            await worker.call("unpicklable")
        assert len(await worker.call("note", "x" * 2_000_000) or "") == 0
        assert len((await worker.call("notes"))[-1]) == 2_000_000, "also what is too large for a message"
        assert "hello from the worker" in log.read_text()
        assert not (await worker.call("place"))[2], "torch comes after the environment"

    placed(address, body)
    assert left_over(address) == ([], [])


def test_a_death_is_told_once_with_name_and_last_words(address, tmp_path):
    told = []

    async def body(placement):
        placement.on_death = told.append
        first = await placement.start(spec(1, log=tmp_path / "first.log"))
        second = await placement.start(spec(2, log=tmp_path / "second.log"))
        with pytest.raises(WorkerDied, match="these are my last words") as died:
            await first.call("die")
        assert died.value.worker == "echo-1"
        with pytest.raises(WorkerDied):
            await first.call("notes")
        os.kill((await second.call("place"))[0], signal.SIGKILL)  # while nothing waits for it
        while len(told) < 2:
            await asyncio.sleep(0.05)
        again = await placement.start(spec(1))
        assert await again.call("notes") == []

    placed(address, body)
    assert [death.worker for death in told] == ["echo-1", "echo-2"]
    assert left_over(address) == ([], [])


def test_a_stopped_worker_is_noticed_and_ended(address, monkeypatch):
    """One that neither answers nor dies."""
    monkeypatch.setattr(calling, "PING_SECONDS", 0.25)
    monkeypatch.setattr(calling, "STARTING_PINGS", 1000)

    async def body(placement):
        worker = await placement.start(spec())
        pid = (await worker.call("place"))[0]
        await asyncio.sleep(1)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(WorkerDied, match="had not answered for 2 s"):
            await asyncio.wait_for(worker.call("notes"), 60)
        return pid

    pid = placed(address, body)
    for _ in range(300):
        if not psutil.pid_exists(pid):
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    pytest.fail(f"the stopped process {pid} is left")


def test_ranks_lie_next_to_each_other(address):
    specs = [
        *(spec(number, role="trainer") for number in range(2)),
        *(spec(number, role="engine") for number in (2, 3)),
    ]

    async def body(placement):
        await placement.prepare(specs)
        workers = [await placement.start(each) for each in specs]
        return [(await worker.call("place"))[1] for worker in workers]

    first, second, third, fourth = placed(address, body)
    assert first == second != third == fourth


def seen_devices(address, specs, share_devices):
    async def body(placement):
        assert await placement.devices() == 4
        await placement.prepare(specs, share_devices)
        workers = await asyncio.gather(*(placement.start(each) for each in specs))
        return [await worker.call("environment", "CUDA_VISIBLE_DEVICES") for worker in workers]

    return placed(address, body, cpus_per_worker=0.5)


def test_a_worker_sees_its_own_devices_alone(address):
    ranks = [spec(number, role="trainer", gpus=1) for number in range(2)]
    first, second, engine = seen_devices(address, [*ranks, spec(2, role="engine", gpus=2)], share_devices=False)
    assert {first, second} == {"0", "1"}
    assert engine == "0,1"
    (none,) = seen_devices(address, [spec(environment={"CUDA_VISIBLE_DEVICES": ""})], share_devices=False)
    assert none == ""


def test_an_engine_that_shares_devices_sees_those_of_the_ranks(address):
    ranks = [spec(number, role="trainer", gpus=1) for number in range(2)]
    *seen, engine = seen_devices(address, [*ranks, spec(2, role="engine", gpus=2)], share_devices=True)
    assert sorted(seen) == ["0", "1"]
    assert engine == "0,1"
    assert left_over(address) == ([], [])


def test_starts_that_fail_leave_nothing(address):
    async def refused(placement):
        with pytest.raises(ValueError, match="this is refused"):
            await placement.start(spec(arguments={"refused": True}))

    async def missing(placement):
        with pytest.raises(ModuleNotFoundError, match="nowhere"):
            await placement.start(WorkerSpec("lost", "nowhere:Thing"))

    async def too_many(placement):
        with pytest.raises(RerollError, match=r"found no room within 1 s .* lower trainer.num_ranks"):
            await placement.prepare([spec(number) for number in range(9)])

    async def cancelled(placement):
        task = asyncio.create_task(placement.start(spec()))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    placed(address, refused)
    placed(address, missing)
    placed(address, too_many, startup_timeout=1.0)
    placed(address, cancelled)
    assert left_over(address) == ([], [])


def test_a_cluster_that_is_not_there_is_told():
    async def body(placement):
        with pytest.raises(RerollError, match="address"):
            await placement.prepare([spec()])

    placed("127.0.0.1:9", body, startup_timeout=2.0)


def test_a_killed_program_leaves_nothing(address, tmp_path):
    """Nor does one that ends without closing anything."""
    script = tmp_path / "program.py"
    script.write_text(
        "import asyncio, sys\n"
        "from test_ray import placed, spec\n"
        "async def body(placement):\n"
        "    worker = await placement.start(spec())\n"
        "    print((await worker.call('place'))[0], flush=True)\n"
        "    await worker.call('hang')\n"
        "placed(sys.argv[1], body)\n"
    )
    command = [sys.executable, str(script), address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        pid = int(program.stdout.readline())
        program.kill()
    for _ in range(300):
        if not psutil.pid_exists(pid) and left_over(address) == ([], []):
            return
        time.sleep(0.1)
    pytest.fail(f"{left_over(address)} are left, process {pid} {'lives' if psutil.pid_exists(pid) else 'has ended'}")


def test_a_killed_rank_ends_a_run_with_its_name(address, run_file, tmp_path):
    path = run_file()

    async def body():
        deaths = []
        async with session_of(path, tmp_path / "run", on_ray(address), on_death=deaths.append) as session:
            (rank,) = session.trainer.workers
            rank.kill()
            with pytest.raises(WorkerDied, match="trainer"):
                await train(session)
        return deaths

    (death,) = asyncio.run(body())
    assert death.worker == "trainer"
    assert left_over(address) == ([], [])


@pytest.mark.gpu
def test_a_rank_on_a_gpu_of_ray_trains_as_one_here(run_file, tmp_path):
    """On a cluster of the run's own. Sums on a GPU have no fixed order: the first tokens alone are equal."""
    path, quick = run_file(), ['trainer.device="cuda"', "rollout.num_rollout=2"]
    local = run_and_watch(path, tmp_path / "local", *quick)
    remote = run_and_watch(path, tmp_path / "ray", *quick, 'placement.backend="ray"')
    assert remote.token_ids[0] == local.token_ids[0]
    assert remote.summary.steps == local.summary.steps == 2
