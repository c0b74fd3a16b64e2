"""One collection of samples → optimizer steps. Shapes as in `objective`."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reroll.api import Correction, Sample, TrainingError
from reroll.traces.samples import optimizer_steps
from reroll.training.batching import MicroBatch, micro_batches, step_totals
from reroll.training.logprobs import PolicyHead, token_logprobs
from reroll.training.objective import Recipe, StepTotals, policy_objective, token_weights
from reroll.training.schedule import DecayShape, DecayStyle, learning_rate


@dataclass(frozen=True)
class StepSettings:
    """The resolved numbers of `[trainer]`, and the anchor of the ratio."""

    global_batch_size: int
    max_tokens: int | None
    rows: int | None
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


class PolicyTrainer:
    """A model, its optimizer and the recipe; `version` counts completed optimizer steps."""

    def __init__(
        self,
        model: Any,
        reference: Any | None,
        temperature: float,
        recipe: Recipe,
        correction: Correction | None,
        settings: StepSettings,
    ) -> None:
        self.model = model
        self.head = PolicyHead(model, temperature)
        self.head.check(model)
        self.reference = reference
        self.reference_head = PolicyHead(reference, temperature) if reference is not None else None
        self.recipe = recipe
        self.correction = correction
        self.settings = settings
        self.version = 0
        self.optimizer = torch.optim.AdamW(
            parameter_groups(model, settings.weight_decay),
            lr=settings.lr,
            betas=(settings.adam_beta1, settings.adam_beta2),
            eps=settings.adam_eps,
        )

    def train_collection(self, samples: Sequence[Sample]) -> list[dict[str, float]]:
        """Trains on the samples, one optimizer step a `global_batch_size` responses; metrics of each step.

        With several steps, old log-probabilities are scored once, before the first one; a ratio that is taken to the
        engine does not need them.
        """
        cut = optimizer_steps(samples, self.settings.global_batch_size)
        steps = [micro_batches(step, self.settings.max_tokens, self.settings.rows) for step in cut]
        totals = [step_totals(step) for step in cut]
        score = len(steps) > 1 and not self.settings.use_rollout_logprobs
        olds = [self._score(batches) if score else None for batches in steps]
        return [self.step(batches, total, old) for batches, total, old in zip(steps, totals, olds, strict=True)]

    def _score(self, batches: Sequence[MicroBatch]) -> list[Tensor]:
        with torch.no_grad():
            return [token_logprobs(self.model, self.head, batch)[0] for batch in batches]

    def step(self, batches: Sequence[MicroBatch], totals: StepTotals, old: Sequence[Tensor] | None) -> dict[str, float]:
        """One optimizer step; `old` are the anchor's log-probabilities of each micro-batch, None for the
        training forward's own. TrainingError leaves the weights as they were."""
        start = time.perf_counter()
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
        self.optimizer.zero_grad(set_to_none=True)
        metrics = self.accumulate_gradients(batches, totals, old)
        limit = self.settings.clip_grad or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit).item()
        if not all(torch.isfinite(torch.tensor([norm, metrics["loss"]]))):
            raise TrainingError(
                f"step {self.version}: loss {metrics['loss']}, gradient norm {norm}; the weights were not changed. "
                "Lower trainer.lr, or look for a response with extreme log-probabilities in the saved rollouts"
            )
        self.optimizer.step()
        self.version += 1
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self.model.parameters()):
            raise TrainingError(
                f"step {self.version} made weights that are not finite (lr {rate}, gradient norm {norm}); they are "
                "neither published nor exported. Lower trainer.lr or trainer.weight_decay"
            )
        return {
            **metrics,
            "grad_norm": norm,
            "lr": rate,
            "responses": totals.responses,
            "tokens": totals.tokens,
            "forward_tokens": sum(int(batch.attention_RT.sum()) for batch in batches),
            "padding_tokens": sum(batch.padding for batch in batches),
            "seconds": time.perf_counter() - start,
        }

    def accumulate_gradients(
        self, batches: Sequence[MicroBatch], totals: StepTotals, old: Sequence[Tensor] | None
    ) -> dict[str, float]:
        """Adds the step's gradient, one micro-batch after the other; the step's metrics."""
        sums: defaultdict[str, float] = defaultdict(float)
        for index, batch in enumerate(batches):
            if not len(batch.row_N):
                continue
            logprobs_N, entropy_N = token_logprobs(self.model, self.head, batch)
            current_N = logprobs_N.detach()
            old_N = current_N if old is None else old[index]
            reference_N = self._reference_logprobs(batch)
            per_token, constant = self.recipe.calculate_per_token_loss, self.recipe.constant_length
            weights_N = token_weights(batch.row_N, batch.rows, totals, per_token, constant)
            loss, metrics = policy_objective(
                logprobs_N=logprobs_N,
                entropy_N=entropy_N,
                old_logprobs_N=batch.rollout_logprobs_N if self.settings.use_rollout_logprobs else old_N,
                rollout_logprobs_N=batch.rollout_logprobs_N,
                advantages_N=batch.advantages_N,
                weights_N=weights_N,
                correction_N=self._correction(old_N, batch),
                reference_logprobs_N=reference_N,
                recipe=self.recipe,
                response_N=batch.row_N,
                mean_weights_N=None if constant is None else token_weights(batch.row_N, batch.rows, totals, True),
            )
            loss.backward()  # type: ignore[no-untyped-call]
            for name, value in metrics.items():
                sums[name] += float(value)
            gap_N = (old_N - batch.rollout_logprobs_N).abs()
            sums["train_rollout_logprob_abs_diff"] += float(gap_N.sum()) / totals.tokens
        return dict(sums)

    def _reference_logprobs(self, batch: MicroBatch) -> Tensor | None:
        if self.reference is None or self.reference_head is None or not self.recipe.kl_loss_coef:
            return None
        with torch.no_grad():
            return token_logprobs(self.reference, self.reference_head, batch)[0]

    def _correction(self, old_N: Tensor, batch: MicroBatch) -> Tensor | None:
        if self.correction is None:
            return None
        return self.correction.weights(old_N, batch.rollout_logprobs_N, batch.row_N).detach()


def parameter_groups(model: Any, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices with weight decay; norms, biases and other vectors without."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [parameter for parameter in parameters if parameter.ndim >= 2], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if parameter.ndim < 2], "weight_decay": 0.0},
    ]
