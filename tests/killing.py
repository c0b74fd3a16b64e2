"""Runs as commands, which are killed at a chosen moment and go on."""

import os
import signal
import subprocess
import sys
import time


def command(path, output, *overrides):
    sets = [f"output.dir={str(output)!r}", *overrides]
    return [sys.executable, "-m", "reroll", "train", str(path), *(part for item in sets for part in ("--set", item))]


def run_to_end(path, output, *overrides):
    done = subprocess.run(command(path, output, *overrides), capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stderr


def kill_when(path, output, happened, *overrides, delay=0.0, number=signal.SIGKILL):
    """Starts the run, sends the controller a signal `delay` seconds after `happened()`, and waits until its workers
    are gone, whose connection to it has closed; false if the run came to its end before."""
    with (output.parent / "killed.log").open("ab") as log:
        run = subprocess.Popen(command(path, output, *overrides), stdout=log, stderr=log, start_new_session=True)
    while not happened():
        if run.poll() is not None:
            assert run.returncode == 0, (output.parent / "killed.log").read_text()
            return False
        time.sleep(0.01)
    time.sleep(delay)
    if run.poll() is not None:
        return False
    run.send_signal(number)
    assert run.wait() in (-number, 128 + number), (output.parent / "killed.log").read_text()
    for _ in range(1000):
        try:
            os.killpg(run.pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    raise AssertionError("workers outlive their controller")


def whole(output, step):
    return (output / "checkpoints" / f"step_{step}" / "manifest.json").exists()
