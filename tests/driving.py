"""Driving whole runs in a test: a run file, a session, and a record of what training saw."""

import asyncio
import hashlib
import json
import sys
from contextlib import asynccontextmanager

from forked_workers import forked_workers
from rich.console import Console

from reroll.assembly import open_session
from reroll.config import load_run_file
from reroll.launch.start import begin
from reroll.loop import train
from reroll.plan import size_problems
from reroll.plugins import load_plugins
from reroll.reporting.display import Display
from reroll.reporting.summary import Summary

RUN = """
[model]
path = "builtin:tiny-math"
[data]
task_set = { name = "addition", high = 40, verifier = "regex" }
verifiers = [{ name = "regex", pattern = '\\\\boxed\\{(-?\\d+)\\}' }]
[rollout]
num_rollout = 3
rollout_batch_size = 4
n_samples_per_prompt = 4
rollout_max_prompt_len = 32
rollout_max_response_len = 16
[trainer]
lr = 1e-3
"""


@asynccontextmanager
async def session_of(path, output, *overrides, plugin=None, on_death=None):
    """An open session of the run file, which goes on with the run in `output` if the run file says so; `plugin` is a
    module registered beside the installed ones."""
    plugins = load_plugins()
    if plugin is not None:
        plugins.register(plugin, "stranger", "reroll-stranger")
    run = load_run_file(path, [f"output.dir={str(output)!r}", *overrides], plugins, [size_problems])
    output.mkdir(parents=True, exist_ok=True)
    display = Display(1, Console(file=sys.stderr, force_terminal=False))
    start = begin(run, output, display.line, display.warn)
    with forked_workers():
        async with open_session(run, start, display, Summary("test", output), on_death) as session:
            yield session


class Seen:
    """What a run trained on and became: token ids, gradients and weights, never losses alone."""

    def __init__(self):
        self.token_ids = []
        self.gradients = []
        self.weights = []
        self.engine_weights = []
        self.versions = []

    @property
    def digest(self):
        return hashlib.sha256(json.dumps([self.token_ids, self.gradients, self.weights]).encode()).hexdigest()


def watch(session, seen):
    """Notes every collection's samples and gradient before it is trained on, and the weights after."""
    trainer, inner = session.trainer, session.trainer.train

    async def train_and_note(samples):
        seen.token_ids.append([sample.token_ids for sample in samples])
        seen.gradients.append(await trainer.gradient_digest(samples))
        steps = await inner(samples)
        seen.weights.append(await trainer.weights_digest())
        return steps

    trainer.train = train_and_note
    publish = session.publisher.publish

    async def publish_and_note(version):
        report = await publish(version)
        for engine in session.engines:
            seen.engine_weights.append(await engine.weights_digest())
            seen.versions.append(await engine.weight_version())
        return report

    session.publisher.publish = publish_and_note


def run_and_watch(path, output, *overrides, plugin=None):
    """A whole run, and what was seen of it."""
    seen = Seen()

    async def body():
        async with session_of(path, output, *overrides, plugin=plugin) as session:
            watch(session, seen)
            await train(session)
            session.finish_summary()
            seen.summary = session.accounts.summary

    asyncio.run(body())
    return seen
