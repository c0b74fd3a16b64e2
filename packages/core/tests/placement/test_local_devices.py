"""Which GPUs a worker on this machine sees. They are only named here; no process opens one."""

import asyncio
import os

import pytest

from reroll.api import RerollError, WorkerSpec
from reroll.placement.local import VISIBLE, LocalPlacement


def specs():
    ranks = [WorkerSpec(f"trainer-{rank}", "os:path", gpus=1, role="trainer") for rank in range(2)]
    engines = [WorkerSpec(f"engine-{number}", "os:path", gpus=2, role="engine") for number in range(2)]
    return [*ranks, *engines]


def handed_out(share_devices=False):
    placement = LocalPlacement()
    asyncio.run(placement.prepare(specs(), share_devices))
    return [placement._devices.get(spec.name) for spec in specs()]


def test_every_worker_has_devices_of_its_own(monkeypatch):
    monkeypatch.setenv(VISIBLE, "7,1,2,3,4,5")
    assert asyncio.run(LocalPlacement().devices()) == 6
    assert handed_out() == ["7", "1", "2,3", "4,5"]


def test_engines_get_the_ranks_devices_where_they_take_turns(monkeypatch):
    monkeypatch.setenv(VISIBLE, "0,1,2,3")
    assert handed_out(share_devices=True) == ["0", "1", "0,1", "2,3"]


def test_too_few_devices_are_an_error_before_anything_starts(monkeypatch):
    monkeypatch.setenv(VISIBLE, "0,1,2")
    with pytest.raises(RerollError, match="needs 6 GPUs .*engine-1 2.* shows 3: lower trainer.num_ranks"):
        handed_out()


def test_without_devices_nothing_is_handed_out(monkeypatch):
    monkeypatch.setenv(VISIBLE, "")
    assert asyncio.run(LocalPlacement().devices()) is None
    assert handed_out() == [None] * 4


def test_a_worker_sees_what_it_was_given(monkeypatch, tmp_path):
    monkeypatch.setenv(VISIBLE, "3,5")
    (tmp_path / "told_devices.py").write_text(
        "import os\nclass Told:\n    def visible(self):\n        return os.environ.get('CUDA_VISIBLE_DEVICES')\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    spec = WorkerSpec("engine-0", "told_devices:Told", gpus=1, role="engine")

    async def body():
        placement = LocalPlacement()
        await placement.prepare([WorkerSpec("trainer", "os:path", gpus=1, role="trainer"), spec])
        worker = await placement.start(spec)
        try:
            return await worker.call("visible")
        finally:
            await placement.close()

    assert asyncio.run(body()) == "5"
