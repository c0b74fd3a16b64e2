"""Whole generations in one process, on an engine that does as it is told."""

from __future__ import annotations

import asyncio
import io
import secrets
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from measuring_cases import addition, inline, measured
from rich.console import Console

from reroll.api import (
    Completion,
    Engine,
    EngineError,
    EngineUnavailable,
    RecordWriter,
    Verdict,
    Verifier,
    VersionSpan,
    hookimpl,
)
from reroll.config import load_run_file
from reroll.generation.assembly import open_generation
from reroll.generation.display import GenerationDisplay
from reroll.generation.loop import generate
from reroll.generation.mending import mend
from reroll.generation.protocol import check_results
from reroll.generation.states import TrialStates
from reroll.generation.store import read_journal
from reroll.generation.time_left import TimeLeft
from reroll.launch.attempts import register_attempt
from reroll.launch.start import Start
from reroll.plugins import load_plugins


class World:
    """What the parts of one start do, and what they were told.

    Attributes:
        breaks: answers after which the engines cannot go on; dies: answers after which the first engine is lost.
        refusals: restarts that fail.
    """

    def __init__(self, breaks=None, dies=None, refusals=0, fails=()):
        self.breaks, self.dies, self.refusals, self.fails = breaks, dies, refusals, set(fails)
        self.engines, self.heard, self.lines = [], [], io.StringIO()
        self.answers = 0
        self.context = None


now = World()


class ToldEngine(Engine):
    """Answers with the prompt's first token as often as its seed says; an answer takes a few turns of the loop."""

    name = "told"
    recoverable = True

    @classmethod
    async def start(cls, config, context):
        engine = cls()
        engine.address = context.name
        engine.kept = engine.recovered = engine.served = 0
        engine.death = asyncio.get_running_loop().create_future()
        now.engines.append(engine)
        return engine

    async def generate(self, request):
        for _ in range(request.sampling.seed % 7 + 1):
            await asyncio.sleep(0)
            self._check()
        now.answers += 1
        self.served += 1
        if now.breaks is not None and now.answers > now.breaks:
            raise EngineError("told to break")
        if now.dies is not None and now.answers > now.dies and self is now.engines[0]:
            now.dies = None
            self.death.set_result(EngineUnavailable("told to die"))
            self._check()
        ids = [int(request.input_ids[0])] * (request.sampling.seed % 3 + 1)
        spans = [VersionSpan(0, 0, len(ids))]
        seed = request.sampling.seed
        return Completion(request.request_id, ids, [-0.5] * len(ids), spans, "stop", seed, {"end": 1.0})

    def _check(self):
        if self.death.done():
            raise self.death.result()

    async def lost(self):
        return await asyncio.shield(self.death)

    async def recover(self):
        self.recovered += 1
        if now.refusals:
            now.refusals -= 1
            raise EngineError("told not to start")
        self.death = asyncio.get_running_loop().create_future()

    async def keep_weights(self):
        self.kept += 1

    async def weight_version(self):
        return 0

    async def close(self):
        return


class Even(Verifier):
    """1 for an even seed; fails where it is told to."""

    name = "even"

    async def score(self, task, trace):
        seed = trace.nodes[-1].seed
        if seed in now.fails:
            raise ConnectionError("told to fail")
        return Verdict(float(seed % 2 == 0))


class Heard(RecordWriter):
    name = "heard"

    def open(self, context):
        now.context = context

    def group_scored(self, observation_id, group, decision):
        now.heard.append((observation_id, group, decision))

    def group_left(self, observation_id, disposition, staleness):
        now.heard.append((observation_id, disposition))

    def close(self, timeout):
        return


class Plugin:
    @hookimpl
    def reroll_engines(self):
        return [ToldEngine]

    @hookimpl
    def reroll_verifiers(self):
        return [Even]

    @hookimpl
    def reroll_record_writers(self):
        return [Heard]


def run_of(*overrides, size=6, n_trials=3, plugin=None):
    """A run file of this module's parts, and of those that a further plugin has."""
    found = load_plugins()
    found.register(Plugin(), "generating-cases", "reroll-generating-cases")
    if plugin is not None:
        found.register(plugin, "stranger", "reroll-stranger")
    given = [
        'model.path="builtin:tiny-math"',
        'data.verifiers=["even"]',
        f"data.task_set={inline(addition(size, verifier='even'))}",
        'serving.engine="told"',
        f"generation.n_trials={n_trials}",
        "generation.n_concurrent=4",
        "generation.max_retries=0",
    ]
    return load_run_file(None, [*given, *overrides], found)


def start(run, folder, world, meanwhile=None):
    """One start in the folder, to its end; raises what ends it. Gives the entries that there are then.

    Args:
        meanwhile: called with the session, awaited beside it.
    """
    global now
    now = world
    folder.mkdir(parents=True, exist_ok=True)
    found = measured(run)
    check_results(folder, found.protocol)
    states = TrialStates(found.protocol.tasks, found.protocol.n_trials)
    mend(folder, states.note, lambda text: None)
    found.protocol.write(folder)

    async def body():
        attempt = register_attempt(folder, secrets.token_hex(4), None, -1, lambda text: None)
        console = Console(file=world.lines, width=1000)
        display = GenerationDisplay(found.protocol.tasks * found.protocol.n_trials, TimeLeft(128, 4), {}, console)
        where = Start(folder, attempt, None, "id", None)
        async with open_generation(run, found, where, states, display, lambda error: None) as session:
            beside = asyncio.create_task(meanwhile(session)) if meanwhile else None
            await generate(session)
            if beside is not None:
                await beside

    asyncio.run(asyncio.wait_for(body(), 120))
    return entries_of(folder)


def entries_of(folder):
    return list(read_journal(folder, lambda text: None))
