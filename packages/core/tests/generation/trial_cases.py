"""Verifiers, an engine and a harness that fail as they are told to, and attempts with everything else as it is."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, nullcontext
from types import SimpleNamespace

from reroll.api import Completion, Engine, RenderedPrompt, SamplingParams, Task, TaskSet, Verdict, Verifier, VersionSpan
from reroll.generation.tasklist import Part
from reroll.generation.trials import Job, TrialRunner
from reroll.rollouts.admission import GroupAdmission
from reroll.rollouts.groups import GroupMaker, GroupPlan
from reroll.rollouts.harnesses import SingleTurn
from reroll.rollouts.scoring.config import ScoringConfig
from reroll.rollouts.scoring.scorer import Scorer
from reroll.serving.router import LeastOutstandingTokensRouter
from reroll.tasks.cursor import Dispatch

SEED = 17


class Scripted(Verifier):
    """Does what its script says, one step a call, and then judges: 1 for an even seed."""

    name = "scripted"
    deadline_seconds = 0.2

    def __init__(self, *script):
        super().__init__(self.Config())
        self.script = list(script)
        self.asked = []

    async def score(self, task, trace):
        self.asked.append(trace.id)
        step = self.script.pop(0) if self.script else "judge"
        if step == "raise":
            raise ConnectionError("the service is away")
        if step == "hang":
            await asyncio.Event().wait()
        if step == "unknown":
            return Verdict(None, state="unknown", detail="in no language that it knows")
        return Verdict(float(step) if step != "judge" else even(trace))


def even(trace):
    return float(trace.nodes[-1].seed % 2 == 0)


class Compared(Verifier):
    """The first trial of those that it sees is right; how many there were is said."""

    name = "compared"

    def score_group(self, task, traces):
        return [Verdict(float(not place), {"seen": float(len(traces))}) for place in range(len(traces))]


class Answers(Engine):
    """Answers with the prompt's tokens; `behave` may raise, or give another finish reason or version."""

    name = "answers"

    def __init__(self, behave=lambda number, request: None):
        super().__init__()
        self.address = "answers"
        self.behave = behave
        self.requests = []

    async def generate(self, request):
        self.requests.append(request)
        found = self.behave(len(self.requests), request) or {}
        await asyncio.sleep(0)
        ids = list(request.input_ids)
        spans = [VersionSpan(found.get("version", 0), 0, len(ids))]
        finish = found.get("finish", "stop")
        return Completion(request.request_id, ids, [-0.5] * len(ids), spans, finish, request.sampling.seed, {})


class Fragile(SingleTurn):
    """Raises the first so many times."""

    name = "fragile"

    def __init__(self, times):
        super().__init__()
        self.times = times

    async def run(self, task, rendered, context):
        self.times -= 1
        if self.times >= 0:
            raise OSError("no sandbox")
        return await super().run(task, rendered, context)


class Rows(TaskSet):
    name = "rows"

    def __init__(self, *verifiers):
        super().__init__()
        self.verifiers = verifiers

    def __len__(self):
        return 5

    def task(self, index):
        return Task(f"q{index}", dict.fromkeys(self.verifiers, "x"), "rows", index, f"r{index}")


class Case:
    """Attempts on tasks of a set that verifiers judge."""

    def __init__(self, scorer, engine, harness, verifiers, retries=3, pass_reward=None, policy="exclude", weights=None):
        self.engine = engine
        self.generated = []
        self.part = Part("rows", Rows(*verifiers), 5, 0, plan(), 100)
        renderer = SimpleNamespace(render=None, parse=None, extend=None, decode=lambda ids: " ".join(map(str, ids)))
        maker = GroupMaker(
            harness=harness or SingleTurn(),
            renderer=renderer,
            router=LeastOutstandingTokensRouter([engine]),
            admission=GroupAdmission(),
            scorer=scorer,
            verifier_weights=weights or {},
            failure_policy=policy,
            rollout_seed=SEED,
        )
        self.runner = TrialRunner(maker, pass_reward, retries)

    def job(self, position, trials):
        task = self.part.task(position)
        rendered = RenderedPrompt(str(task.prompt), (position + 1, 7), "", "")
        pointers = task.source_dataset, task.source_row, task.prepared_sample_id
        return Job(position, trials, self.part, Dispatch(task, rendered, 0), pointers)

    async def run(self, position=0, trials=range(1), slot=None):
        """The entries of a job, and its group."""
        job = self.job(position, trials)
        group, finished = await self.runner.run(job, slot or nullcontext(), self.generated.append)
        assert [item.entry.trial for item in finished] == list(trials)
        return [item.entry for item in finished], group, finished


def plan():
    return GroupPlan(
        rollout_id=0,
        size=1,
        sampling=SamplingParams(temperature=0.7, max_new_tokens=20),
        max_context=100,
        purpose="generate",
        env_name="rows",
    )


@asynccontextmanager
async def case(*verifiers, engine=None, harness=None, workers=1, **options):
    scorer = Scorer({item.name: item for item in verifiers}, ScoringConfig(workers=workers))
    async with scorer:
        yield Case(scorer, engine or Answers(), harness, [item.name for item in verifiers], **options)
