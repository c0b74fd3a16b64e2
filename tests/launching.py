"""Runs that `reroll run` started: asked, killed and waited for as a user would."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

from reroll.launch.attempts import read_attempts
from reroll.launch.standing import standing_of
from reroll.plugins import load_plugins

SAVES = ["checkpoint.save_interval=1", "launch.auto_resume=true", "output.export_hf=true"]
LONG = ["rollout.num_rollout=100000", "rollout.max_empty_collections=100000"]
"""Until somebody ends it, however long that takes."""
SECONDS = 240


def command(*arguments, code=0):
    """What a command of `reroll` prints, on both streams."""
    done = subprocess.run([sys.executable, "-m", "reroll", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def submit(path, output, *overrides, code=0):
    sets = [f"output.dir={str(output)!r}", *overrides]
    return command("run", path, *(part for item in sets for part in ("--set", item)), code=code)


def standing(output):
    return standing_of(output, load_plugins())


def wait_for(output, happened, what):
    """Until it has happened; fails with what the run said."""
    until = time.monotonic() + SECONDS
    while not happened():
        if time.monotonic() > until:
            said = "".join(path.read_text() for path in sorted((output / "launch").glob("*.log")))
            raise AssertionError(f"not {what}: {standing(output)}\n{said}")
        time.sleep(0.05)


def wait_for_end(output):
    def ended():
        found = standing(output)
        return found.ended and not found.alive

    wait_for(output, ended, "ended")
    return standing(output)


@contextmanager
def ending(output):
    """Whatever goes on in the folder at the end is killed."""
    yield
    if (output / "launch" / "receipts.json").exists() and standing(output).alive:
        command("stop", "--now", output)


def wait_for_start(output, number):
    """The process of that start, once it is noted."""
    wait_for(output, lambda: started(output) >= number, f"started {number} times")
    return read_attempts(output)[number - 1].pid


def started(output):
    return len(read_attempts(output)) if output.exists() else 0


def wait_for_step(output, step):
    manifest = output / "checkpoints" / f"step_{step}" / "manifest.json"
    wait_for(output, manifest.exists, f"at a checkpoint of step {step}")


def kill_run(output, number):
    """SIGKILL to the process of that start, and to no other."""
    os.kill(wait_for_start(output, number), signal.SIGKILL)


def receipts(output):
    return json.loads((output / "launch" / "receipts.json").read_text())["receipts"]


def receipt(output):
    """Of the last submission."""
    return receipts(output)[-1]


def exported(output):
    return (output / "model" / "model.safetensors").read_bytes()


def said(output):
    return (output / "launch" / "output.log").read_text()
