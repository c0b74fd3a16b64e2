"""A derivation of the tests' own, folders of saved rollouts to derive from, and run files that do."""

import json
from types import SimpleNamespace

import tomli_w

from reroll.api import Derivation, Harness, TaskSet, Verdict, hookimpl
from reroll.config import load_run_file
from reroll.plan import size_problems
from reroll.plugins import load_plugins
from reroll.replay import conversation, replay_tasks, without_dangling
from reroll.rollouts.harnesses import SingleTurn
from reroll.tasks.arithmetic import Addition


class Again(Derivation):
    """The finished conversation, and one more turn of the user."""

    name = "again"

    def prompt(self, record, anchor):
        return [*without_dangling(conversation(record, anchor.node)), {"role": "user", "content": "Again?"}]


class Guess(Derivation):
    """Judges its answers itself."""

    name = "guess"

    def prompt(self, record, anchor):
        return [{"role": "user", "content": "Was it right?"}]

    def target(self, record, anchor):
        return record["info"]["reroll"]["reward"] >= 1

    def score(self, task, trace):
        return Verdict(float((trace.completion == "yes") == task.targets[self.name]))


class Stateful(SingleTurn):
    name = "stateful"
    resumable = False


class Contained(Addition):
    name = "contained"
    container = True


class Judged(Addition):
    name = "judged"

    def judges(self):
        return {}


class Plugin:
    @hookimpl
    def reroll_derivations(self) -> list[type[Derivation]]:
        return [Again, Guess]

    @hookimpl
    def reroll_task_sets(self) -> list[type[TaskSet]]:
        return [replay_tasks(Again), replay_tasks(Guess), Contained, Judged]

    @hookimpl
    def reroll_harnesses(self) -> list[type[Harness]]:
        return [Stateful]


def plugins():
    found = load_plugins()
    found.register(Plugin(), "replay-cases", "reroll-replay-cases")
    return found


def record(number, reward=1.0, answer="3", env_name="sums", version=0, **changes):
    """A saved rollout of one question and one answer."""
    task = {
        "prompt": [{"role": "user", "content": f"What is {number}?"}],
        "targets": {"exact_match": "3"},
        "source_dataset": "sums/train",
        "source_row": number,
        "prepared_sample_id": f"sum-{number}",
        "tools": [],
        "metadata": {"hard": True},
    }
    nodes = [
        {"parent": None, "message": task["prompt"][0], "sampled": False, "token_ids": [1], "mask": [False]},
        {
            "parent": 0,
            "message": {"role": "assistant", "content": answer},
            "sampled": True,
            "token_ids": [2],
            "mask": [True],
            "logprobs": [-0.5],
            "finish_reason": "stop",
        },
    ]
    stamp = {"kind": "train", "env_name": env_name, "group_id": "g", "policy_version": version, "reward": reward}
    return {
        "schema": 1,
        "id": f"r{number}",
        "task": task,
        "nodes": nodes,
        "rewards": {"exact_match": reward},
        "info": {"reroll": stamp},
        "errors": [],
        **changes,
    }


def write_step(folder, step, records, done=True):
    """A step of the run in `folder`."""
    path = folder / "rollouts" / f"step_{step}"
    path.mkdir(parents=True, exist_ok=True)
    (path / "train_rollouts.jsonl").write_text("".join(json.dumps(item) + "\n" for item in records), "utf-8")
    if done:
        (path / "train_rollouts.done").write_text(json.dumps({"schema": 1, "traces": len(records)}))


def write_run_file(folder, data, rollout=None):
    """The resolved run file of the run in `folder`, as far as a derived task needs it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.toml").write_text(tomli_w.dumps({"data": data, "rollout": rollout or {}}))


SOURCE_DATA = {
    "sources": [{"name": "sums", "task_set": {"name": "addition", "verifier": "exact_match"}}],
    "verifiers": [{"name": "exact_match", "case_sensitive": False}],
    "verifier_weights": {"exact_match": 2.0},
}


def run_file(tmp_path, task_set, verifiers="exact_match", **more):
    """A loaded run file with one more source beside the replayed one."""
    table = {
        "model": {"path": "builtin:tiny-math"},
        "data": {
            "verifiers": [verifiers],
            "sources": [
                {"name": "sums", "ratio": 1.0, "task_set": {"name": "addition", "verifier": "exact_match"}},
                {"name": "replayed", "ratio": 1.0, "task_set": task_set},
            ],
            **more.pop("data", {}),
        },
        **more,
    }
    path = tmp_path / "replaying.toml"
    path.write_text(tomli_w.dumps(table))
    return load_run_file(path, [], plugins(), [size_problems])


def opened(tmp_path, options, output=None, seed=0, verifiers="exact_match", **more):
    """The replay task set of a run file, opened, and what it warned of."""
    run = run_file(tmp_path, options, verifiers, **more)
    selection = run.sections["data"].sources[1].task_set
    tasks = run.make("task_sets", selection)
    warnings = []
    tasks.warn = warnings.append
    tasks.open(run, output, seed)
    return SimpleNamespace(tasks=tasks, warnings=warnings, run=run)
