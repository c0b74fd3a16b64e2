"""Every metric that a run can log: its name or a pattern of names, its unit, its meaning."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from reroll.plugins.manager import HOOKS, PluginManager


class Metric(NamedTuple):
    """One metric, or several of one kind.

    Attributes:
        pattern: the name; `<word>` stands for anything without a slash, and at the end for anything.
        given_by: the distribution that logs it.
    """

    pattern: str
    unit: str
    meaning: str
    given_by: str = "reroll"

    def names(self, name: str) -> bool:
        """Whether the pattern fits a whole name."""
        parts = re.split(r"(<[a-z ]+>)", self.pattern)
        last = len(parts) - 2 if not parts[-1] else -1
        text = "".join(
            re.escape(part) if not index % 2 else (".+" if index == last else "[^/]+")
            for index, part in enumerate(parts)
        )
        return re.fullmatch(text, name) is not None


OF_STEPS = {
    "train": "come with each of them",
    "diagnostics": "with diagnostic ones",
    "eval": "with an evaluation",
}
"""Rooms whose metrics belong to an optimizer step, and when they come. Everything else, what plugins log included,
comes once a collection."""


def comes_with_steps(name: str) -> bool:
    """Whether a metric belongs to an optimizer step; else to a collection."""
    return name.partition("/")[0] in OF_STEPS


CORE = [
    Metric("rollout/collections", "collections", "generated so far; counts those that held nothing to train on"),
    Metric("rollout/reward", "reward", "mean over the scored responses of the collection"),
    Metric("rollout/reward_std", "reward", "standard deviation over them"),
    Metric("rollout/reward/<verifier>", "reward", "mean of that verifier's weighted part"),
    Metric(
        "rollout/components/<verifier>/<part>", "score", "mean of what the verifier reports as a part, such as `parsed`"
    ),
    Metric("rollout/verdicts/<state>", "verdicts", "in the collection, of that state: `ok`, `timeout`, `unknown`, …"),
    Metric("rollout/groups", "groups", "decided in the collection"),
    Metric("rollout/groups_passed", "groups", "that are trained on"),
    Metric("rollout/groups_filtered", "groups", "that a group filter left out"),
    Metric("rollout/groups_aborted", "groups", "with too few scored responses"),
    Metric("rollout/groups_equal_rewards", "groups", "in which every response has the same reward"),
    Metric("rollout/groups_unknown", "groups", "in which a verifier could not judge"),
    Metric("rollout/failed_responses", "responses", "without a reward"),
    Metric("rollout/response_tokens", "tokens", "mean length of a response"),
    Metric("rollout/response_tokens_min", "tokens", "of the shortest response"),
    Metric("rollout/response_tokens_max", "tokens", "of the longest response"),
    Metric("rollout/truncated", "share", "of the responses that reached the length limit"),
    Metric("rollout/skipped_prompts", "prompts", "skipped before generation so far; `summary.json` has the reasons"),
    Metric("source/<source>/groups", "groups", "of that data source, one of several, in the collection"),
    Metric("source/<source>/groups_passed", "groups", "of it that are trained on"),
    Metric("source/<source>/groups_unknown", "groups", "of it in which a verifier could not judge"),
    Metric("source/<source>/reward", "reward", "mean over its scored responses"),
    Metric("source/<source>/response_tokens", "tokens", "mean length of its responses"),
    Metric("source/<source>/dispatches_<ending>", "groups", "of it that have ended so far, as `groups/…` count all"),
    Metric("source/<source>/<room>/<name>", "as there", "the metric `room/name` over its responses alone"),
    Metric("tools/turns", "turns", "of the model, mean per response with the harness `tool_loop`"),
    Metric("tools/calls", "calls", "of tools, mean per response"),
    Metric("tools/errors", "calls", "that failed, mean per response"),
    Metric("tools/malformed", "turns", "with what cannot be read as a call, mean per response"),
    Metric("tools/compactions", "compactions", "mean per response"),
    Metric("replay/source_step", "collections", "mean number of the one that the replayed rollout is from"),
    Metric("replay/source_reward", "reward", "mean of what the replayed rollouts had got"),
    Metric("staleness/mean", "optimizer steps", "from the oldest token of a trained group to its use"),
    Metric("staleness/max", "optimizer steps", "largest of the collection"),
    Metric("staleness/groups_<steps>", "groups", "trained on that were so many optimizer steps old"),
    Metric("groups/dispatched", "groups", "so far; the six endings, `in_flight` and `queued` add up to it"),
    Metric("groups/consumed", "groups", "trained on so far"),
    Metric("groups/expired", "groups", "too old for any collection so far"),
    Metric("groups/filtered", "groups", "left out by a group filter so far"),
    Metric("groups/aborted", "groups", "with too few scored responses so far"),
    Metric("groups/failed", "groups", "of which no response came to its end, so far"),
    Metric("groups/returned", "groups", "given back and dispatched again, so far"),
    Metric("groups/in_flight", "groups", "being generated or scored"),
    Metric("groups/queued", "groups", "scored and waiting for a collection"),
    Metric("groups/retried", "groups", "expired ones whose task was dispatched again, so far"),
    Metric("wait/trainer_seconds", "s", "the trainer waited for the collection"),
    Metric("wait/producer_seconds", "s", "generation stood still and waited for the trainer"),
    Metric(
        "throughput/generated_tokens_per_second",
        "tokens/s",
        "while training groups were generated; absent where none were",
    ),
    Metric("throughput/generation_seconds", "s", "in which training groups were generated"),
    Metric("throughput/trained_tokens_per_second", "tokens/s", "read by the trainer in its optimizer steps"),
    Metric("throughput/training_seconds", "s", "of the collection's optimizer steps"),
    Metric("engines/restarts", "engines", "started again after a loss, since the last collection"),
    Metric("engines/absent_seconds", "s", "from a loss until the engine is back, summed over engines"),
    Metric("publication/seconds", "s", "of one publication in all"),
    Metric("publication/pause_seconds", "s", "engines stood still, summed over engines; recomputation apart"),
    Metric("publication/recompute_seconds", "s", "engines computed caches again, summed over engines"),
    Metric("publication/in_flight", "requests", "running when it began"),
    Metric("publication/attempts", "attempts", "above 1 where one failed"),
    Metric("publication/engines", "engines", "that took part"),
    Metric("publication/bytes", "bytes", "of the weights that were carried"),
    Metric("train/loss", "loss", "of the optimizer step"),
    Metric("train/policy_loss", "loss", "its part without the KL term"),
    Metric("train/entropy", "nats", "mean over tokens that carry loss"),
    Metric("train/kl", "nats", "mean divergence from the reference, with a KL term"),
    Metric("train/clip_fraction", "share", "of tokens whose ratio is clipped"),
    Metric("train/ratio", "ratio", "mean of new over old probability"),
    Metric("train/correction_weight", "ratio", "mean weight of the off-policy correction"),
    Metric("train/correction_dropped", "share", "of tokens that the correction drops"),
    Metric(
        "train/train_rollout_logprob_abs_diff", "nats", "mean distance between log-probabilities of trainer and engine"
    ),
    Metric("train/grad_norm", "norm", "of the whole gradient before it is cut"),
    Metric("train/lr", "learning rate", "of the step"),
    Metric("train/responses", "responses", "of the step"),
    Metric("train/tokens", "tokens", "that carry loss"),
    Metric("train/forward_tokens", "tokens", "that were read"),
    Metric("train/padding_tokens", "tokens", "that were padding"),
    Metric("train/padding_fraction", "share", "of padding in the forward passes"),
    Metric("train/scoring_pass", "word", "`standalone`, `checked` or `skipped`: where old log-probabilities are from"),
    Metric("train/seconds", "s", "of the step"),
    Metric("diagnostics/grad_norm/<kind>", "norm", "of the gradient of one kind of parameter, before it is cut"),
    Metric("diagnostics/weight_norm/<kind>", "norm", "of that kind's weights after the step"),
    Metric("diagnostics/update_norm/<kind>", "norm", "of what the step changed in them"),
    Metric(
        "diagnostics/logprob_gap/<half>/<quantile>",
        "nats",
        "`p50`, `p99` and `max` over tokens of the distance between log-probabilities of trainer and engine, in the "
        "`first_half` and the `second_half` of responses",
    ),
    Metric("eval/<set>/accuracy", "share", "of an evaluation's responses with the full reward"),
    Metric("eval/<set>/reward", "reward", "mean over them"),
    Metric("eval/<set>/parse_rate", "share", "in which a verifier found an answer, where one says so"),
    Metric("eval/<set>/accuracy_parsed", "share", "of those with the full reward"),
    Metric("eval/<set>/failed", "responses", "without a score"),
    Metric("eval/<set>/truncated", "share", "that reached the length limit"),
    Metric("eval/<set>/response_tokens", "tokens", "mean length of a response"),
]
"""What core logs of every run; components add theirs, see `Component.metrics_logged`."""


def catalog(plugins: PluginManager) -> list[Metric]:
    """Core's metrics, and those that the installed components say they log."""
    found = dict.fromkeys(CORE)
    for hook in HOOKS:
        for given in plugins.all(hook).values():
            logged = getattr(given.cls, "metrics_logged", {})
            for name, (unit, meaning) in logged.items():
                found[Metric(name, unit, meaning, given.distribution)] = None
    return list(found)


def entries(metrics: Iterable[Metric], name: str) -> list[Metric]:
    """Those that describe a logged name: one, where all is well."""
    return [metric for metric in metrics if metric.names(name)]
