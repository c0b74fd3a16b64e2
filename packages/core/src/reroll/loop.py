"""The training loop, synchronous: generate, score, filter, train, publish, evaluate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reroll.api import RerollError

if TYPE_CHECKING:
    from reroll.session import Session


class NothingToLearn(RerollError):
    """Collection after collection held no group to train on."""


async def train(session: Session) -> None:
    """Runs every collection; returns early when the data runs out."""
    if not session.evaluation.skip_eval_before_train:
        await session.evaluate(every_set=True)
    empty = 0
    for rollout_id in range(session.rollout.num_rollout):
        dispatches = session.dispatch()
        if not dispatches:
            session.display.line(f"the data ran out after {rollout_id} collections")
            break
        groups = await session.producer.groups(dispatches, session.plan(rollout_id))
        decided = session.decide(groups)
        session.save(rollout_id, decided)
        samples = session.samples(decided)
        version = session.trainer.version
        steps = await session.trainer.train(samples) if samples else []
        session.consume(decided, version)
        publication = await session.publisher.publish(session.trainer.version) if steps else None
        session.report(rollout_id, version, decided, samples, steps, publication)
        empty = 0 if steps else empty + 1
        last = rollout_id == session.rollout.num_rollout - 1
        if empty == session.rollout.max_empty_collections or (last and not session.trainer.version):
            raise NothingToLearn(session.why_empty(decided, empty))
        await session.evaluate()
    await session.evaluate(every_set=True)
