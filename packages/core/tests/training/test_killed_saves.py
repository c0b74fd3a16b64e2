"""A save may end at any moment, with the controller and all ranks: the newest whole checkpoint is taken."""

import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from reroll.checkpoints.store import CheckpointStore
from reroll.models.files import resolve_model

sys.path.insert(0, str(Path(__file__).parent))

from forked_workers import forkserver
from saving_cases import train_and_save

KILLS = 10


@pytest.mark.slow
def test_a_run_killed_at_random_moments_of_its_saves_goes_on(tmp_path):
    draw, store = random.Random(1), CheckpointStore(tmp_path / "checkpoints")
    model = resolve_model("builtin:tiny-math").directory
    interrupted, completed = 0, 0
    for number in range(KILLS):
        told = killed(tmp_path, model, 2, draw)
        restored = [(step, same) for what, step, same in told if what == "restored"]
        assert restored == ([(completed, True)] if number else []), "the newest whole checkpoint, to the bit"
        done = max((step for what, step, _ in told if what == "completed"), default=completed)
        found, passed_over = CheckpointStore(store.root).whole()
        assert done <= found.manifest.step <= done + 1
        left = store.folders()
        newer = left[: left.index(found.folder)]
        assert len(passed_over) == len(newer)
        for folder, reason in zip(newer, passed_over, strict=True):
            assert f"{folder} is not whole: manifest.json is missing" in reason
        interrupted += bool(newer)
        completed = found.manifest.step
    assert interrupted > KILLS // 4, "the kills did not meet saves"
    assert completed > 0


def killed(root, model, size, draw):
    """Lets a first save of the process complete where there is none yet, then kills its group within a later one."""
    ours, theirs = forkserver().Pipe(duplex=False)
    process = forkserver().Process(target=train_and_save, args=(str(root), model, size, theirs))
    process.start()
    theirs.close()
    told, wait = [], draw.randint(2, 4)
    try:
        while sum(what == "began" for what, *_ in told) < wait:
            assert ours.poll(60), "the process tells nothing"
            told.append(ours.recv())
        time.sleep(draw.uniform(0, told[-1][2]))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    with contextlib.suppress(EOFError):
        while ours.poll(1):
            told.append(ours.recv())
    return told
