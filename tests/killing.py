"""Runs as commands, which are killed at a chosen moment and go on."""

import os
import signal
import time

from forked_commands import ForkedCommand


def start(path, output, *overrides, log):
    """A run as a command of its own; `log` is the file that everything which it prints is added to."""
    sets = [f"output.dir={str(output)!r}", *overrides]
    arguments = ["train", str(path), *(part for item in sets for part in ("--set", item))]
    return ForkedCommand(arguments, log)


def ended(arguments, log):
    """The exit code of another command of `reroll`, and what it printed."""
    log.unlink(missing_ok=True)
    return _end_of(ForkedCommand(arguments, log), log, 60)


def _end_of(run, log, seconds):
    """Its exit code and what it printed; one that does not end is killed."""
    try:
        return run.wait(seconds), log.read_text()
    finally:
        if run.poll() is None:
            run.send_signal(signal.SIGKILL)


def run_to_end(path, output, *overrides):
    """Gives what the run printed."""
    output.parent.mkdir(parents=True, exist_ok=True)
    log = output.parent / f"{output.name}.log"
    log.unlink(missing_ok=True)
    code, said = _end_of(start(path, output, *overrides, log=log), log, 250)
    assert code == 0, said
    return said


def kill_when(path, output, happened, *overrides, delay=0.0, number=signal.SIGKILL):
    """Starts the run, sends the controller a signal `delay` seconds after `happened()`, and waits until its workers
    are gone, whose connection to it has closed; false if the run came to its end before."""
    log = output.parent / "killed.log"
    run = start(path, output, *overrides, log=log)
    while not happened():
        if run.poll() is not None:
            assert run.returncode == 0, log.read_text()
            return False
        time.sleep(0.01)
    time.sleep(delay)
    if run.poll() is not None:
        return False
    run.send_signal(number)
    assert run.wait() in (-number, 128 + number), log.read_text()
    for _ in range(1000):
        try:
            os.killpg(run.pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    raise AssertionError("workers outlive their controller")


def whole(output, step):
    return (output / "checkpoints" / f"step_{step}" / "manifest.json").exists()
