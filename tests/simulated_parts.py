"""Engines, a trainer, verifiers and the rest of a run that draw from it how long they take and what goes wrong."""

import asyncio
from itertools import pairwise
from pathlib import Path

from reroll.api import (
    CommitCost,
    Completion,
    Engine,
    EngineError,
    EngineUnavailable,
    PublicationMode,
    PublicationReport,
    RecordWriter,
    RenderedPrompt,
    RequestRefused,
    Task,
    TaskSet,
    Tracker,
    Transport,
    Verdict,
    VersionSpan,
)
from reroll.publication.barrier import Barrier
from reroll.publication.engine_drain import EngineDrain
from reroll.publication.refresh import Refresh
from reroll.reporting.display import Display
from reroll.traces.samples import optimizer_steps
from reroll.workers.together import together


class SimulatedEngine(Engine):
    """Draws tokens one after another; a token is of the version at which its decode step began.

    Attributes:
        version: what it says; `tensors`: the trainer's steps that its weights are the result of.
        gone: it was lost. Some calls then hang, and others fail.
    """

    name = "simulated"
    recoverable = True

    def __init__(self, address, run):
        super().__init__()
        self.address = address
        self._run = run
        self._fresh()

    def _fresh(self):
        self.version = self.tensors = 0
        self.gone = asyncio.Event()
        self._staged = None
        self._paused = False
        self._running = set()
        self._ending = set()
        self._poke = asyncio.Event()

    @classmethod
    async def start(cls, config, context):
        raise NotImplementedError

    def _may_be_lost(self, rate=None):
        run = self._run
        if not self.gone.is_set() and run.chance(run.scenario.losses if rate is None else rate):
            self.gone.set()
            self._poke.set()

    async def _alive(self):
        """Here the engine may be lost. What a lost one is asked fails, now or never."""
        self._may_be_lost()
        if self.gone.is_set():
            await self._fails()

    async def _fails(self):
        if self._run.chance(0.3):
            await asyncio.Event().wait()
        await self._run.delay()
        raise EngineUnavailable(f"the server of {self.address} has ended")

    async def lost(self):
        await self.gone.wait()
        await self._run.delay(2.0)
        return EngineUnavailable(f"{self.address} has ended by itself")

    async def recover(self):
        await self._run.delay(4.0)
        if self._run.chance(self._run.scenario.lost_again):
            raise EngineError(f"{self.address} does not start")
        self._fresh()
        self._may_be_lost(self._run.scenario.lost_again)

    async def generate(self, request):
        run, scenario, name = self._run, self._run.scenario, request.request_id
        run.takes_request(self)
        run.reaches("engine")
        run.reaches("worker")
        await self._alive()
        if run.chance(scenario.refused):
            raise RequestRefused("this one is not taken")
        length = run.random.randint(1, scenario.tokens)
        factor = scenario.pace * (20.0 if run.chance(scenario.slow) else 1.0)
        last = run.random.randint(0, length - 1) if run.chance(scenario.aborted) else length
        if scenario.hopeless and request.input_ids == HOPELESS:
            last = 0
        versions, gone = [], self.gone
        running, ending = self._running, self._ending
        running.add(name)
        try:
            while len(versions) < length:
                while self._paused and name not in ending and not gone.is_set():
                    self._poke.clear()
                    await self._poke.wait()
                if name in ending or len(versions) == last:
                    break
                versions.append(self.version)
                await run.delay(factor)
                self._may_be_lost()
                if gone.is_set():
                    await self._fails()
        finally:
            running.discard(name)
            ending.discard(name)
        return Completion(
            request_id=name,
            output_ids=[7] * len(versions),
            logprobs=[-1.0] * len(versions),
            weight_versions=spans(versions),
            finish_reason="stop" if len(versions) == length else "abort",
            seed=request.sampling.seed,
        )

    async def pause(self, mode="in_place"):
        await self._alive()
        self._paused = True
        if mode == "abort":
            await self.abort()

    async def resume(self):
        await self._alive()
        self._paused = False
        self._poke.set()

    async def abort(self, request_id=None):
        self._ending |= {request_id} if request_id is not None else self._running
        self._poke.set()

    async def flush_cache(self):
        await self._alive()
        await self._run.delay()

    async def stage_weights(self, buckets):
        await self._alive()
        self._run.reaches("stage")
        await self._run.publication_step("no room for the tensors")
        (self._staged,) = buckets

    async def commit_weights(self, version, recompute=False):
        await self._alive()
        await self._run.publication_step("the tensors do not fit")
        await self._alive()
        if self._staged is None:
            raise EngineError("nothing was staged")
        drains = self._run.scenario.mode in ("barrier", "engine_drain")
        if drains and self._running:
            self._run.violations.append(f"{self.address} changes weights under {len(self._running)} requests")
        tensors = await self._staged()
        await self._alive()
        self._staged, self.version, self.tensors = None, version, tensors
        await self._run.publication_step("the answer is lost")
        return CommitCost(0.25, 0.5 if recompute else 0.0)

    async def weight_version(self):
        await self._alive()
        await self._run.publication_step("no answer")
        return self.version + 100 * self._run.chance(self._run.scenario.publication_faults)

    async def weights_digest(self):
        raise NotImplementedError

    async def health(self):
        return {}

    async def close(self):
        pass


def spans(versions):
    """Spans over tokens of these versions."""
    starts = [index for index, version in enumerate(versions) if not index or version != versions[index - 1]]
    return [VersionSpan(versions[start], start, end) for start, end in pairwise([*starts, len(versions)])]


class SimulatedTransport(Transport):
    name = "simulated"

    def __init__(self, run):
        super().__init__()
        self._run = run

    async def begin(self, source, version):
        await self._run.publication_step("the weights cannot be written")
        written = None if self._run.scenario.streamed else await source.export_weights(None, 0)

        async def tensors():
            return await source.export_weights(None, 0) if written is None else written

        self._tensors = tensors
        return 1000

    async def stage(self, engine):
        await engine.stage_weights([self._tensors])

    async def finish(self):
        await self._run.delay()


class Restart(PublicationMode):
    """A stranger's: ends everything in flight, so that it is generated again."""

    name = "restart"

    async def publish(self, context):
        await context.transport.begin(context.source, context.version)
        await together(context.transport.stage(engine) for engine in context.engines)
        try:
            for engine in context.engines:
                await engine.pause("abort")
            await together(context.transport.commit(engine, context.version) for engine in context.engines)
        finally:
            for engine in context.engines:
                await engine.resume()
        return PublicationReport(context.version, self.name)


class Careless(PublicationMode):
    """A stranger's: claims groups of one version, and changes weights in the middle of them."""

    name = "careless"

    async def publish(self, context):
        await context.transport.begin(context.source, context.version)
        for engine in context.engines:
            await context.transport.stage(engine)
            await context.transport.commit(engine, context.version, recompute=True)
        return PublicationReport(context.version, self.name)


MODES = {mode.name: mode for mode in (Barrier, EngineDrain, Refresh, Restart, Careless)}
HOPELESS, OTHER = [1], [1, 2]
"""Prompts: of the task that is never answered, and of all others."""
HELD_OUT = 1_000_000
"""Rows of evaluation tasks begin here."""


class SimulatedRenderer:
    hopeless, other = (RenderedPrompt("q", tuple(ids), "", "") for ids in (HOPELESS, OTHER))

    def render(self, task):
        return self.other if task.source_row else self.hopeless

    def decode(self, token_ids):
        return "an answer"

    def parse(self, token_ids):
        raise AssertionError("no harness here calls tools")

    extend = parse


class SimulatedTasks(TaskSet):
    name = "simulated"

    def __init__(self, count, first=0):
        super().__init__()
        self._count = count
        self._first = first

    def __len__(self):
        return self._count

    def task(self, index):
        if index >= self._count:
            raise IndexError(index)
        row = self._first + index
        return Task("q", {"checked": None}, "simulated", row, str(row))


class SimulatedScorer:
    def __init__(self, run):
        self._run = run

    async def score_group(self, task, traces, keys=None):
        await self._run.delay()
        self._run.reaches("scorer")
        return [{"checked": self._verdict()} for _ in traces]

    def _verdict(self):
        if self._run.chance(self._run.scenario.unscored):
            return Verdict(None, state="timeout", detail="over the deadline")
        return Verdict(float(self._run.chance(self._run.scenario.right)))


class SimulatedTrainer:
    """Answers its calls one after another. `version` is what the controller knows of its steps."""

    def __init__(self, run):
        self.version = 0
        self._run = run
        self._batch = run.scenario.batch * run.scenario.siblings // run.scenario.updates
        self._turn = asyncio.Lock()
        self._steps = 0

    async def train(self, samples):
        steps = optimizer_steps(samples, self._batch)
        async with self._turn:
            for step in steps:
                self._run.reaches("trainer")
                await self._run.delay()
                self._run.stepped(self._steps, step)
                self._steps += 1
        self.version += len(steps)
        tokens = [sum(len(sample.token_ids) for sample in step) for step in steps]
        return [
            {"responses": len(step), "forward_tokens": count, "seconds": 1.0, "loss": 0.0}
            for step, count in zip(steps, tokens, strict=True)
        ]

    async def completed_steps(self):
        async with self._turn:
            return self._steps

    async def export_weights(self, directory, bucket_bytes):
        async with self._turn:
            return self._steps

    def start_save(self, folder, background):
        return asyncio.ensure_future(self._save())

    async def _save(self):
        async with self._turn:
            await self._run.delay()


class SimulatedStore:
    """Keeps version and next collection of every whole checkpoint in the run's `kept`."""

    def __init__(self, run):
        self._run = run

    def begin(self, version):
        return Path(f"step_{version}")

    def complete(self, version, collection, facts):
        self._run.kept.append((version, collection))

    def discard(self, version): ...

    def prune(self, keep_last, keep_every): ...


class Quiet(Display):
    """Keeps the lines."""

    def __init__(self):
        self.lines = []

    def line(self, text):
        self.lines.append(text)

    def warn(self, text):
        self.lines.append(f"warning: {text}")

    def evaluated(self, name, result): ...
    def begin(self): ...
    def phase(self, name): ...
    def collected(self, done, step, metrics): ...


class Metrics(Tracker):
    """Keeps what trackers are told in the run's `metrics`."""

    name = "kept"

    def __init__(self, run):
        self._run = run

    def open(self, context): ...

    def log(self, step, metrics):
        self._run.metrics.append((step, dict(metrics)))

    def close(self): ...


class Recorder(RecordWriter):
    """Keeps what writers are told in the run's `heard`."""

    name = "recorder"

    @classmethod
    def from_run(cls, run):
        writer = cls()
        writer.heard = run.heard
        return writer

    def open(self, context): ...

    def group_scored(self, observation_id, group, decision):
        self.heard.append(("scored", observation_id, group, decision))

    def group_left(self, observation_id, disposition, staleness):
        self.heard.append(("left", observation_id, disposition, staleness))

    def close(self, timeout): ...
