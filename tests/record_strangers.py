"""A verifier that ends in the way that a task wants, for runs in which every record state occurs."""

import asyncio

from reroll import Verdict, Verifier, hookimpl

SLOW = 2.5
"""Seconds; several optimizer steps of the built-in model."""


class Moody(Verifier):
    """What it does stands in the task's target. Where it judges, half of the answers are right."""

    name = "moody"
    concurrency = 1000

    async def score(self, task, trace):
        mood = task.targets[self.name]
        score = float(sum(trace.nodes[-1].token_ids) % 2)
        if mood == "timeout":
            await asyncio.sleep(3600)
        if mood == "service_error":
            raise ConnectionError("the service does not answer")
        if mood == "slow":
            await asyncio.sleep(SLOW)
        if mood in ("unknown", "judge_error"):
            return Verdict(None, state=mood)
        if mood == "rejected":
            return Verdict(0.0, state="rejected")
        return Verdict(score, state="completed" if mood == "completed" else "ok")


@hookimpl
def reroll_verifiers():
    return [Moody]
