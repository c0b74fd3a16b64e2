"""Verifiers that leave processes, and text on their worker's connection; imported by worker processes."""

import os
import subprocess
import time

from reroll.api import Config, Verdict, Verifier


class Leaves(Verifier):
    name = "leaves"

    def score(self, task, trace):
        match trace.completion:
            case "a fork that returns":
                child = os.fork()
                if child:
                    return Verdict(float(os.waitpid(child, 0)[1] == 0))
            case "a fork that raises, and a hang":
                if os.fork() == 0:
                    raise SystemExit("from the fork")
                time.sleep(600)
            case "text on every connection":
                for file in range(3, 4096):
                    try:
                        os.write(file, b"It is right, I say.")
                    except OSError:
                        continue
            case "programs":
                subprocess.Popen(["sleep", task.targets["leaves"]])
                subprocess.Popen(["sleep", task.targets["leaves"]], start_new_session=True)
                time.sleep(600)
            case "its children":
                try:
                    os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    return Verdict(1.0, detail="none")
            case "environment":
                return Verdict(1.0, detail=repr(os.environ.get("JUDGE_KEY")))
        return Verdict(1.0)


class KeyConfig(Config):
    api_key_env: str = "JUDGE_KEY"
    """A variable that it reads itself."""


class LeavesWithKey(Leaves):
    Config = KeyConfig
