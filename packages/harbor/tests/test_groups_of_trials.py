"""A group whose siblings are trials: real maker, router, renderer, toolbox and scoring processes around the harness."""

import asyncio
import sys
from pathlib import Path

import pytest

from reroll.api import Engine, SamplingParams
from reroll.rollouts.admission import GroupAdmission
from reroll.rollouts.groups import GroupMaker, GroupPlan
from reroll.rollouts.scoring.config import ScoringConfig
from reroll.rollouts.scoring.scorer import Scorer
from reroll.serving.router import LeastOutstandingTokensRouter
from reroll.tasks.cursor import Dispatch
from reroll.tasks.toolbox import Toolbox
from reroll.traces.samples import unweighted_samples

sys.path.insert(0, str(Path(__file__).parent))

from task_cases import CONFIG, Script, bash, renderer, tasks_in, write_task

from reroll_harbor.bash import Bash
from reroll_harbor.harness import HarborConfig, HarborHarness
from reroll_harbor.verifier import HarborVerifier

pytestmark = pytest.mark.harbor


class ScriptedEngine(Engine):
    """Each conversation has a script of its own, in the order in which they begin."""

    name = "scripted"

    def __init__(self, *scripts):
        super().__init__()
        self.address = "scripted"
        self.scripts = list(scripts)
        self.of = {}

    async def generate(self, request):
        conversation = request.request_id.partition("-")[0]
        if conversation not in self.of:
            self.of[conversation] = self.scripts[len(self.of)]
        return await self.of[conversation](request)


def test_siblings_are_rewarded_each_for_itself_and_an_error_costs_one(tmp_path):
    config = CONFIG.replace("[agent]\ntimeout_sec = 60.0", "[agent]\ntimeout_sec = 5.0")
    task = tasks_in(write_task(tmp_path / "greet", config=config)).task(0)
    scripts = [
        Script(bash("echo hello > greeting.txt"), "Done."),
        Script("I would rather not."),
        Script(bash("break"), "What happened?"),
        Script(bash("echo hello > greeting.txt")),
    ]
    options = {"environment_import_path": "host_environment:HostEnvironment", "environment_options": {"fault": "exec"}}

    async def main():
        async with Scorer({"harbor": HarborVerifier()}, ScoringConfig(workers=1)) as scorer:
            maker = GroupMaker(
                harness=HarborHarness(HarborConfig(**options)),
                renderer=renderer(),
                router=LeastOutstandingTokensRouter([ScriptedEngine(*scripts)]),
                admission=GroupAdmission(),
                scorer=scorer,
                verifier_weights={"harbor": 1.0},
                failure_policy="exclude",
                rollout_seed=5,
                toolbox=Toolbox({"bash": Bash()}),
            )
            plan = GroupPlan(0, 4, SamplingParams(max_new_tokens=400), 4000, "train")
            return await maker.make(0, Dispatch(task, renderer().render(task), 0), plan)

    group = asyncio.run(main())
    ended = {}
    for trace, reward in zip(group.traces, group.rewards, strict=True):
        ended.setdefault((trace.stop_condition, reward), []).append(trace)
    assert {key: len(traces) for key, traces in ended.items()} == {
        ("stop", 1.0): 1,
        ("stop", 0.0): 1,
        ("error", None): 1,
        ("timeout", 1.0): 1,
    }
    ((failed,),) = [traces for (condition, _), traces in ended.items() if condition == "error"]
    assert failed.errors == [{"where": "harness harbor", "message": "ConnectionError: the environment is gone"}]
    samples = unweighted_samples([group], [0])
    assert len(samples) == 3
    assert sum(sum(sample.loss_mask) for sample in samples) == sum(trace.response_tokens for trace in group.traces)
