"""Whole runs in which engines and trainer take turns on the same devices."""

import sys

import pytest
from driving import run_and_watch

from reroll.api import EngineError, hookimpl
from reroll.serving.local.engine import LocalEngine


class Sharing(LocalEngine):
    """The embedded engine, which says that it gave its memory up and holds itself to that."""

    name = "sharing"
    shares_devices = True
    has_memory = True
    has_caches = True
    fails = False

    async def release_memory(self):
        assert (await self.health())["running"] == 0
        self.has_memory = self.has_caches = False

    async def resume_memory(self, weights_only=False):
        if self.fails:
            raise EngineError("no memory is left")
        self.has_memory = True
        self.has_caches = not weights_only

    async def generate(self, request):
        assert self.has_caches
        return await super().generate(request)

    async def stage_weights(self, buckets):
        assert self.has_memory and not self.has_caches
        await super().stage_weights(buckets)


class Failing(Sharing):
    name = "failing"
    fails = True


@hookimpl
def reroll_engines():
    return [Sharing, Failing]


def colocated(engine):
    return [f'serving.engine="{engine}"', "placement.colocate=true", "rollout.num_rollout=2"]


def test_taking_turns_changes_nothing_that_is_computed(run_file, tmp_path):
    path = run_file()
    apart = run_and_watch(path, tmp_path / "apart", "rollout.num_rollout=2")
    turns = run_and_watch(path, tmp_path / "turns", *colocated("sharing"), plugin=sys.modules[__name__])
    assert turns.digest == apart.digest
    assert turns.versions == apart.versions == [1, 2]


def test_a_failure_between_turns_ends_the_run(run_file, tmp_path):
    with pytest.raises(EngineError, match="no memory is left"):
        run_and_watch(run_file(), tmp_path / "run", *colocated("failing"), plugin=sys.modules[__name__])
