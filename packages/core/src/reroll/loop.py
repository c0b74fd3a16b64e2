"""The training loop: collect, train, publish, evaluate, save. Generation and scoring run beside it, as far as the
staleness bound lets them; with a bound of 0 they take turns with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reroll.api import RerollError

if TYPE_CHECKING:
    from reroll.session import Session


class NothingToLearn(RerollError):
    """Collection after collection held no group to train on."""


async def train(session: Session) -> None:
    """Runs every collection; returns early when the data runs out."""
    async with session.producing():
        if session.exit_after is not None:
            return await session.only_generate(session.exit_after)
        await session.evaluate(every_set=session.context.fresh and not session.evaluation.skip_eval_before_train)
        empty, collection = 0, None
        for rollout_id in session.collections:
            found = await session.collect()
            if found is None:
                session.accounts.tell_end_of_data(rollout_id)
                break
            collection = found
            steps = await session.train(collection)
            publication = await session.publisher.publish(session.trainer.version) if steps else None
            session.report(collection, steps, publication)
            empty = 0 if steps else empty + 1
            if empty == session.rollout.max_empty_collections:
                raise NothingToLearn(session.accounts.why_empty(collection, empty))
            await session.evaluate()
            await session.checkpoint(collection)
        if collection is not None and not session.trainer.version:
            raise NothingToLearn(session.accounts.why_empty(collection, empty))
        await session.evaluate(every_set=True)
        if collection is not None:
            await session.checkpoint(collection, last=True)
