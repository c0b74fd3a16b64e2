"""One collection of samples → optimizer steps. Shapes as in `objective`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from reroll.api import Correction, TrainingError
from reroll.training.batching import MicroBatch, micro_batch
from reroll.training.cut import RankStep, StepTotals
from reroll.training.diagnostics import Diagnosis
from reroll.training.objective import Recipe, policy_objective, token_weights
from reroll.training.policy import Policy
from reroll.training.ranks import Ranks
from reroll.training.schedule import DecayShape, DecayStyle, learning_rate
from reroll.training.scoring import ScoringRule, StepScores
from reroll.training.tensors import all_finite, local, whole

ScoringPass = Literal["standalone", "checked", "skipped"]


@dataclass(frozen=True)
class StepSettings:
    """The resolved numbers of `[trainer]`, and the anchor of the ratio."""

    lr: float
    min_lr: float
    lr_decay_style: DecayStyle
    warmup_steps: int
    decay_steps: int
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_eps: float
    clip_grad: float
    use_rollout_logprobs: bool
    warmup_init: float = 0.0
    wsd_decay_steps: int = 0
    wsd_decay_style: DecayShape = "linear"
    packed: bool = False
    dropout: bool = False
    max_train_rollout_logprob_abs_diff: float | None = None
    diagnostic_interval: int | None = None


class PolicyTrainer:
    """A policy, its optimizer and the recipe; `version` counts completed optimizer steps."""

    def __init__(
        self,
        policy: Policy,
        reference: Policy | None,
        ranks: Ranks,
        recipe: Recipe,
        correction: Correction | None,
        scoring: ScoringRule,
        settings: StepSettings,
    ) -> None:
        self.policy = policy
        self.reference = reference
        self.ranks = ranks
        self.recipe = recipe
        self.correction = correction
        self.scoring = scoring
        self.settings = settings
        self.version = 0
        self.optimizer = torch.optim.AdamW(
            parameter_groups(policy, settings.weight_decay),
            lr=settings.lr,
            betas=(settings.adam_beta1, settings.adam_beta2),
            eps=settings.adam_eps,
        )
        policy.train(settings.dropout)

    def train_collection(
        self, steps: Sequence[RankStep], scores: Sequence[StepScores] | None = None
    ) -> list[dict[str, Any]]:
        """Trains on this rank's part of each optimizer step; the steps' metrics, over all ranks.

        Args:
            scores: of the standalone scoring pass, where it was made already.
        """
        if scores is None and self.scoring.standalone:
            scores = self.score(steps)
        found: list[StepScores | None] = list(scores) if scores is not None else [None] * len(steps)
        return [self.step(step, score) for step, score in zip(steps, found, strict=True)]

    def score(self, steps: Sequence[RankStep]) -> list[StepScores]:
        """The standalone scoring pass, at unchanged weights: the policy's log-probabilities, and the reference's."""
        return [
            StepScores([self.policy.score(batch) for batch in batches], self._reference_scores(batches))
            for batches in map(self.micro_batches, steps)
        ]

    def _reference_scores(self, batches: Sequence[MicroBatch]) -> list[Tensor] | None:
        return [self.reference.score(batch) for batch in batches] if self.reference is not None else None

    def micro_batches(self, step: RankStep) -> list[MicroBatch]:
        packed, device = self.settings.packed, self.ranks.device
        return [micro_batch([step.samples[index] for index in cut], packed, device) for cut in step.micro_batches]

    def step(self, part: RankStep, scores: StepScores | None) -> dict[str, Any]:
        """One optimizer step. `scores` are of the standalone scoring pass; without them the training forward, which
        runs at the same weights, serves. TrainingError leaves the weights as they were."""
        start = time.perf_counter()
        batches = self.micro_batches(part)
        done: ScoringPass = "standalone" if scores is not None else "skipped"
        if scores is None and self.scoring.check_is_due():
            done, scores = "checked", self.score([part])[0]
        rate = self._set_learning_rate()
        self.optimizer.zero_grad(set_to_none=True)
        diagnosis = self._diagnosis()
        metrics = self.ranks.sum(
            self.accumulate_gradients(batches, part.totals, scores, done == "standalone", diagnosis)
            | {
                "forward_tokens": sum(batch.tokens for batch in batches if batch.responses),
                "padding_tokens": sum(batch.padding for batch in batches if batch.responses),
            }
        )
        self._check_agreement(metrics, done)
        if diagnosis is not None:
            diagnosis.before_update()
        norm = self._clip()
        if not all(torch.isfinite(torch.tensor([norm, metrics["loss"]]))):
            raise TrainingError(
                f"step {self.version}: loss {metrics['loss']}, gradient norm {norm}; the weights were not changed. "
                "Lower trainer.lr, or look for a response with extreme log-probabilities in the saved rollouts"
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)  # or gradients would be held through scoring, saves and exports
        self.version += 1
        finite = all_finite([local(parameter.detach()) for parameter in self.policy.parameters()])
        if self.ranks.sum({"bad": not finite})["bad"]:
            raise TrainingError(
                f"step {self.version} made weights that are not finite (lr {rate}, gradient norm {norm}); they are "
                "neither published, saved nor exported. Lower trainer.lr or trainer.weight_decay"
            )
        if diagnosis is not None:
            diagnosis.after_update()
        padded = metrics["forward_tokens"] + metrics["padding_tokens"]
        return {
            **metrics,
            **(diagnosis.metrics() if diagnosis is not None else {}),
            "padding_fraction": metrics["padding_tokens"] / padded,
            "grad_norm": norm,
            "lr": rate,
            "responses": part.totals.responses,
            "tokens": part.totals.tokens,
            "scoring_pass": done,
            "seconds": time.perf_counter() - start,
        }

    def _diagnosis(self) -> Diagnosis | None:
        """For the step that is about to be made, if it is a diagnostic one."""
        interval = self.settings.diagnostic_interval
        due = interval is not None and (self.version + 1) % interval == 0
        return Diagnosis(self.policy, self.ranks) if due else None

    def _set_learning_rate(self) -> float:
        rate = learning_rate(
            self.version,
            self.settings.lr,
            self.settings.min_lr,
            self.settings.lr_decay_style,
            self.settings.warmup_steps,
            self.settings.decay_steps,
            self.settings.warmup_init,
            self.settings.wsd_decay_steps,
            self.settings.wsd_decay_style,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _clip(self) -> float:
        """The norm of the whole gradient, before it is cut to `clip_grad`."""
        limit = self.settings.clip_grad or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), limit)
        return float(whole(norm))

    def _check_agreement(self, metrics: dict[str, float], done: ScoringPass) -> None:
        gap = metrics.pop("scoring_gap", 0.0)
        if done == "checked" and not gap <= self.scoring.tolerance:
            raise TrainingError(
                f"step {self.version}: the training forward differs from the scoring pass by {gap:.3g} on average over "
                f"tokens, more than trainer.scoring_check_tolerance = {self.scoring.tolerance:g}; the weights were not "
                "changed. Set trainer.scoring_pass_required = true to anchor the ratio at the scoring pass"
            )
        gate, found = self.settings.max_train_rollout_logprob_abs_diff, metrics["train_rollout_logprob_abs_diff"]
        if gate is not None and not found <= gate:
            raise TrainingError(
                f"step {self.version}: log-probabilities of trainer and engine differ by {found:.3g} on average over "
                f"tokens, more than trainer.max_train_rollout_logprob_abs_diff = {gate:g}; the weights were not "
                "changed. Look for a difference in type, temperature or template between them, or raise the bound"
            )

    def accumulate_gradients(
        self,
        batches: Sequence[MicroBatch],
        totals: StepTotals,
        scores: StepScores | None,
        anchored: bool = True,
        diagnosis: Diagnosis | None = None,
    ) -> dict[str, float]:
        """Adds the step's gradient, one micro-batch after the other; this rank's share of the step's metrics.

        Args:
            anchored: `scores` are the anchor; otherwise the training forward is, and is compared with them.
            diagnosis: is shown the log-probabilities.
        """
        sums: dict[str, Tensor] = {}

        def add(name: str, value: Tensor) -> None:
            sums[name] = sums[name] + value.double() if name in sums else value.detach().double()

        per_token, constant = self.recipe.calculate_per_token_loss, self.recipe.constant_length
        for index, batch in enumerate(batches):
            logprobs_N, entropy_N = self.policy.logprobs(batch)
            current_N = logprobs_N.detach()
            old_N = scores.policy[index] if scores is not None and anchored else current_N
            loss, metrics = policy_objective(
                logprobs_N=logprobs_N,
                entropy_N=entropy_N,
                old_logprobs_N=batch.rollout_logprobs_N if self.settings.use_rollout_logprobs else old_N,
                rollout_logprobs_N=batch.rollout_logprobs_N,
                advantages_N=batch.advantages_N,
                weights_N=token_weights(batch.response_N, batch.responses, totals, per_token, constant),
                correction_N=self._correction(old_N, batch),
                reference_logprobs_N=self._reference_logprobs(scores, index),
                recipe=self.recipe,
                response_N=batch.response_N,
                mean_weights_N=None
                if constant is None
                else token_weights(batch.response_N, batch.responses, totals, per_token=True),
            )
            # Sharded gradients are averaged over ranks, and the step's is their sum.
            (loss * self.ranks.size if self.ranks.size > 1 else loss).backward()  # type: ignore[no-untyped-call]
            for name, value in metrics.items():
                add(name, value)
            add("train_rollout_logprob_abs_diff", (old_N - batch.rollout_logprobs_N).abs().sum() / totals.tokens)
            if diagnosis is not None:
                diagnosis.compare(batch, old_N)
            if scores is not None and not anchored:
                add("scoring_gap", (scores.policy[index] - current_N).abs().sum() / totals.tokens)
        # A device is waited for once, when all of it is under way.
        return dict(zip(sums, torch.stack(list(sums.values())).tolist(), strict=True)) if sums else {}

    def _reference_logprobs(self, scores: StepScores | None, index: int) -> Tensor | None:
        """For the KL term of the loss; a penalty in the reward has done its work in the advantages."""
        if scores is None or scores.reference is None or not self.recipe.kl_loss_coef:
            return None
        return scores.reference[index]

    def _correction(self, old_N: Tensor, batch: MicroBatch) -> Tensor | None:
        if self.correction is None:
            return None
        return self.correction.weights(old_N, batch.rollout_logprobs_N, batch.response_N).detach()


def parameter_groups(model: Any, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices with weight decay; norms, biases and other vectors without."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [parameter for parameter in parameters if parameter.ndim >= 2], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if parameter.ndim < 2], "weight_decay": 0.0},
    ]
