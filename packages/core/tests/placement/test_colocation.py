"""Engines and trainer in turns: who has the devices when."""

import asyncio
import sys

import pytest

from reroll.api import PublicationReport, RunFileError, hookimpl
from reroll.config import load_run_file
from reroll.placement.colocation import HeldAdmission, TakingTurns
from reroll.plan import size_problems
from reroll.plugins import load_plugins
from reroll.rollouts.admission import GroupAdmission
from reroll.serving.local.engine import LocalEngine

RUN = """
[model]
path = "builtin:tiny-math"
[data]
verifiers = [{ name = "regex", pattern = "(\\\\d+)" }]
[placement]
colocate = true
"""


class Sharing(LocalEngine):
    name = "sharing"
    shares_devices = True


class Noting:
    """An engine of which only the order of calls counts."""

    def __init__(self, noted, fails_at=None):
        self.noted, self.fails_at = noted, fails_at

    def _note(self, what):
        self.noted.append(what)
        if what == self.fails_at:
            raise RuntimeError(f"failed at {what}")

    async def release_memory(self):
        self._note("release")

    async def resume_memory(self, weights_only=False):
        self._note("resume weights" if weights_only else "resume rest")


def turns(fails_at=None):
    noted, gate = [], GroupAdmission()
    held = HeldAdmission(gate)

    async def publish(version):
        noted.append(f"publish {version}")
        held.close()
        held.open()  # as modes and publisher do
        noted.append("open" if gate._open.is_set() else "still closed")
        return PublicationReport(version, "barrier")

    return TakingTurns(publish, [Noting(noted, fails_at)], held), gate, noted


def test_devices_go_to_the_trainer_and_come_back_with_the_weights():
    async def body():
        taking, gate, noted = turns()
        await taking.publish(0)
        assert noted == ["publish 0", "open"], "engines that have their devices are published to as ever"
        noted.clear()
        await taking.to_trainer()
        await taking.to_trainer()
        await taking.publish(1)
        assert noted == ["release", "resume weights", "publish 1", "still closed", "resume rest"]
        async with asyncio.timeout(5), gate.admit():
            pass
        noted.clear()
        await taking.to_engines(1)
        assert noted == []
        await taking.to_trainer()
        await taking.to_engines(1)
        assert noted[1:3] == ["resume weights", "publish 1"], "without a step, the same weights again"

    asyncio.run(body())


def test_memory_is_given_up_once_nothing_is_in_flight():
    async def body():
        taking, gate, noted = turns()
        async with gate.admit():
            waiting = asyncio.create_task(taking.to_trainer())
            await asyncio.sleep(0.01)
            assert noted == []
        await waiting
        assert noted == ["release"]

    asyncio.run(body())


@pytest.mark.parametrize("fails_at", ["release", "resume weights", "resume rest"])
def test_after_a_failure_nothing_is_let_in(fails_at):
    async def body():
        taking, gate, _ = turns(fails_at)
        with pytest.raises(RuntimeError, match=f"failed at {fails_at}"):
            await taking.to_trainer()
            await taking.publish(1)
        assert not gate._open.is_set()

    asyncio.run(body())


def problems(tmp_path, *overrides, engine="sharing"):
    path, plugins = tmp_path / "run.toml", load_plugins()
    path.write_text(RUN)
    plugins.register(sys.modules[__name__], "stranger", "reroll-stranger")
    try:
        load_run_file(path, [f'serving.engine="{engine}"', *overrides], plugins, [size_problems])
    except RunFileError as error:
        return [str(problem) for problem in error.problems]
    return []


@hookimpl
def reroll_engines():
    return [Sharing]


def test_what_cannot_take_turns_is_refused(tmp_path):
    assert problems(tmp_path) == []
    (told,) = problems(tmp_path, engine="local")
    assert "serving.engine = 'local' cannot give its memory up" in told
    (told,) = problems(tmp_path, 'sglang.device="cpu"', engine="sglang")
    assert 'cannot give memory up with sglang.device = "cpu"' in told
    assert problems(tmp_path, engine="sglang") == []
    (told,) = problems(tmp_path, "async.fully_async=true", "async.max_weight_staleness=1")
    assert "set async.fully_async = false" in told
