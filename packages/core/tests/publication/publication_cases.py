"""Engines, a transport and a gate that do nothing but what the tests of publication watch, on a clock of their own."""

import asyncio
import itertools
import selectors
from collections import defaultdict
from contextlib import asynccontextmanager

from reroll.api import (
    CommitCost,
    Completion,
    Engine,
    EngineError,
    EngineUnavailable,
    GenerationRequest,
    SamplingParams,
    Transport,
    VersionSpan,
)
from reroll.publication.barrier import Barrier
from reroll.publication.engine_drain import EngineDrain
from reroll.publication.publisher import Publisher
from reroll.publication.recovery import Recovery
from reroll.publication.refresh import Refresh
from reroll.rollouts.admission import GroupAdmission
from reroll.serving.router import LeastOutstandingTokensRouter

MODES = [Barrier, EngineDrain, Refresh]
STAGES = ["begin", "stage", "commit", "committed", "flush", "weight_version", "finish"]
"""Where something may go wrong. At `commit` the old weights are still served, at `committed` the new ones are and the
answer is lost."""
OLD, NEW = 0, 7


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time passes at once where everything waits for it. Waiting for nothing fails instead of hanging."""

    def __init__(self):
        self.now = 0.0
        super().__init__(Jumping(self))

    def time(self):
        return self.now


class Jumping(selectors.SelectSelector):
    def __init__(self, loop):
        super().__init__()
        self.loop = loop

    def select(self, timeout=None):
        if timeout is None:
            raise AssertionError("everything waits for something that never happens")
        self.loop.now += max(0.0, timeout)
        return super().select(0)


def places(stages, engines=("first", "second")):
    """Each stage, of each engine where it has one."""
    return [
        place
        for stage in stages
        for place in ([(stage, None)] if stage in ("begin", "finish") else [(stage, name) for name in engines])
    ]


class Weights(Engine):
    """An engine that has weights and decodes a token a second. Everything that happens is noted in the shared log.

    Attributes:
        tensors: the trainer's steps that its weights are the result of.
        broken: what it loads is not what it was given.
        gone: it was killed, and whatever it is asked fails.
    """

    name = "weights"
    recoverable = True
    digest_like_trainer = True

    def __init__(self, address, setting):
        super().__init__()
        self.address = address
        self.setting = setting
        self.claims = None
        self.broken = False
        self.gone = asyncio.Event()
        self.restarts = 0
        self._start()

    def _start(self):
        self.version = self.tensors = OLD
        self.staged = None
        self.running = 0
        self.cached = None

    def die(self):
        self.gone.set()

    def alive(self):
        if self.gone.is_set():
            raise EngineUnavailable(f"the server of {self.address} was killed")

    async def lost(self):
        await self.gone.wait()
        await asyncio.sleep(self.setting.takes.get("notice", 0.5))
        return EngineUnavailable(f"{self.address} was killed")

    async def recover(self):
        await self.setting.reaches("recover", self.address)
        self.restarts += 1
        self.gone.clear()
        self._start()

    async def resume(self):
        self.alive()

    async def weights_digest(self):
        self.alive()
        return "other tensors" if self.broken else f"tensors {self.tensors}"

    async def generate(self, request):
        self.alive()
        if self.cached not in (None, self.version):
            self.setting.violations.append(f"{self.address} goes on from a prefix of version {self.cached}")
        self.cached = self.version
        self.running += 1
        made_by = []
        try:
            for _ in range(request.sampling.max_new_tokens):
                await asyncio.sleep(1)
                self.alive()
                made_by.append(self.version)
        finally:
            self.running -= 1
        count = len(made_by)
        spans = [
            VersionSpan(version, made_by.index(version), made_by.index(version) + made_by.count(version))
            for version in dict.fromkeys(made_by)
        ]
        return Completion(request.request_id, [5] * count, [0.0] * count, spans, "length", 0)

    async def stage_weights(self, buckets):
        self.alive()
        (self.staged,) = buckets

    async def commit_weights(self, version, recompute=False):
        self.alive()
        if self.staged is None:
            raise EngineError("nothing was staged")
        if self.running and not recompute:
            self.setting.violations.append(f"{self.address} changes weights under {self.running} requests")
        self.staged, self.version, self.tensors = None, version, self.staged
        if not recompute:
            return CommitCost()
        self.cached = None
        return CommitCost(pause_seconds=0.25, recompute_seconds=2.0)

    async def flush_cache(self):
        await self.setting.reaches("flush", self.address)
        self.alive()
        self.cached = None

    async def weight_version(self):
        await self.setting.reaches("weight_version", self.address, noted=False)
        self.alive()
        return self.version if self.claims is None else self.claims


class Source:
    """A trainer that answers its calls one after another."""

    def __init__(self):
        self.steps = OLD
        self.turn = asyncio.Lock()

    async def train(self, seconds):
        async with self.turn:
            await asyncio.sleep(seconds)
            self.steps += 1

    async def export_weights(self, directory, bucket_bytes):
        async with self.turn:
            return self.steps

    async def completed_steps(self):
        async with self.turn:
            return self.steps

    async def weights_digest(self):
        async with self.turn:
            return f"tensors {self.steps}"


class Carrier(Transport):
    """A transport without files."""

    name = "carrier"

    def __init__(self, setting):
        super().__init__()
        self.setting = setting
        self.begun = 0
        self.finished = 0

    async def begin(self, source, version):
        self.begun += 1
        await self.setting.reaches("begin", None)
        self.tensors = await source.export_weights(None, 0)
        return 1234

    async def stage(self, engine):
        await self.setting.reaches("stage", engine.address)
        await engine.stage_weights([self.tensors])

    async def commit(self, engine, version, recompute=False):
        await self.setting.reaches("commit", engine.address)
        cost = await super().commit(engine, version, recompute)
        await self.setting.reaches("committed", engine.address, noted=False)
        return cost

    async def finish(self):
        self.finished += 1
        await self.setting.reaches("finish", None)


class Gate(GroupAdmission):
    def __init__(self, setting):
        super().__init__()
        self.setting = setting

    def close(self):
        super().close()
        self.setting.note("close")

    def open(self):
        if not self._open.is_set():
            self.setting.note("open")
        super().open()


class Routes(LeastOutstandingTokensRouter):
    """Remembers which engines are out of routing, and the most that were at once."""

    def __init__(self, engines, setting):
        super().__init__(engines)
        self.setting = setting
        self.out = set()
        self.gone = set()
        self.most_out = 0
        self.evicted = []

    def exclude(self, engine, evict=False):
        super().exclude(engine, evict)
        if engine.address not in self.out:
            self.setting.note(f"exclude {engine.address}")
        self.out.add(engine.address)
        self.most_out = max(self.most_out, len(self.out))
        if evict:
            self.evicted.append(engine.address)

    def lose(self, engine):
        super().lose(engine)
        self.gone.add(engine.address)

    def restore(self, engine):
        super().restore(engine)
        self.gone.discard(engine.address)

    def include(self, engine):
        super().include(engine)
        if engine.address in self.out:
            self.setting.note(f"include {engine.address}")
        self.out.discard(engine.address)


class Setting:
    """Engines, and what happens at a place, that is (stage, engine): it `takes` seconds, it waits for `hold`, it fails
    with the next of `fail`."""

    def __init__(self, mode=Barrier, engines=2, timeout=200.0, check_equal=False):
        self.log = []
        self.times = []
        self.violations = []
        self.warnings = []
        self.takes = {}
        self.hold = {}
        self.deaths = {}
        self.fail = defaultdict(lambda: iter(()))
        self.engines = [Weights(address, self) for address in ("first", "second", "third")[:engines]]
        self.source = Source()
        self.transport = Carrier(self)
        self.admission = Gate(self)
        self.router = Routes(self.engines, self)
        self.publisher = Publisher(
            mode=mode(),
            transport=self.transport,
            source=self.source,
            engines=self.engines,
            router=self.router,
            admission=self.admission,
            timeout=timeout,
            warn=self.warnings.append,
            check_equal=check_equal,
        )
        self.publish = self.publisher.publish

    def note(self, event):
        self.log.append(event)
        self.times.append(now())

    def when(self, event):
        """The last time at which it happened."""
        return max(time for noted, time in zip(self.log, self.times, strict=True) if noted == event)

    async def reaches(self, stage, address, noted=True):
        await asyncio.sleep(self.takes.get(stage, 0))
        if held := self.hold.get((stage, address)):
            await held.wait()
        if died := self.deaths.pop((stage, address), None):
            died.die()
        if error := next(self.fail[stage, address], None):
            raise error
        if noted:
            self.note(stage if address is None else f"{stage} {address}")

    def fails_once(self, place, error=None, after=0):
        """The call at `place` that comes after so many others fails."""
        self.fail[place] = iter([*[None] * after, error or EngineError("no room for the weights")])

    def fails_always(self, place, error=None):
        self.fail[place] = itertools.repeat(error or EngineError("no room for the weights"))

    def hangs(self, place):
        self.hold[place] = asyncio.Event()

    def dies_at(self, place, engine):
        """The engine is killed at the next call there."""
        self.deaths[place] = engine

    @asynccontextmanager
    async def watched(self, most=3, timeout=110.0):
        """Engines are watched in here, and started again."""
        recovery = Recovery(self.publisher, self.router, most=most, timeout=timeout, warn=self.warnings.append)
        async with asyncio.TaskGroup() as tasks:
            recovery.start(tasks)
            yield recovery
            recovery.stop()

    @property
    def versions(self):
        return [engine.version for engine in self.engines]

    async def group(self, name, tokens=3, turns=1, siblings=2):
        """A group's responses; every turn is a request of each sibling."""

        async def conversation(sibling):
            return [
                await self.router.generate(name, request(f"{name}.{sibling}.{turn}", tokens)) for turn in range(turns)
            ]

        async with self.admission.admit():
            self.note(f"{name} enters")
            try:
                return list(itertools.chain(*await asyncio.gather(*map(conversation, range(siblings)))))
            finally:
                self.router.release(name)
                self.note(f"{name} leaves")

    async def serves(self, name="a new group"):
        """The versions of a group that comes now; fails if it does not get through soon."""
        async with asyncio.timeout(30):
            return versions_of(await self.group(name))

    async def check(self, doubtful=(), old=OLD, new=NEW):
        """What holds after a publication, however it ended."""
        assert set(self.versions) <= {old, new}
        assert self.transport.finished >= self.transport.begun
        assert self.router.out == set(doubtful)
        async with asyncio.timeout(1), self.admission.admit():
            pass


def request(name, tokens=3):
    return GenerationRequest(name, [1], SamplingParams(max_new_tokens=tokens))


def versions_of(completions):
    """Every weight version in them."""
    return sorted({span.version for completion in completions for span in completion.weight_versions})


def now():
    return asyncio.get_running_loop().time()


async def settle():
    for _ in range(30):
        await asyncio.sleep(0)


def on_a_virtual_clock(scenario):
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scenario)


def run(scenario, **options):
    async def main():
        setting = Setting(**options)
        async with asyncio.timeout(5000):
            await scenario(setting)
        assert setting.violations == []

    on_a_virtual_clock(main())
