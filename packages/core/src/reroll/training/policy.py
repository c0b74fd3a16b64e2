"""The policy: a causal language model from token ids to the log-probabilities of chosen tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from reroll.api import Sample, TrainingError
from reroll.training.attention import VARLEN
from reroll.training.batching import MicroBatch, micro_batch
from reroll.training.logprobs import PolicyHead, hidden_states, token_logprobs

PROBE_LENGTHS = (7, 7, 3, 12)
"""Of the sequences that a policy is checked with: equal and unequal ones side by side."""


class Policy(torch.nn.Module):
    """One module around model and head, so that sharded parameters of both are whole while either runs.

    Args:
        model: a causal language model of transformers, in evaluation mode.
        temperature: of the rollouts; logits are divided by it.
    """

    def __init__(self, model: Any, temperature: float) -> None:
        super().__init__()
        self.model = model
        self.head = PolicyHead(model, temperature)
        self.padded_attention: str = model.config._attn_implementation

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()

    def logprobs(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of every token of the batch that carries loss, both `[N]`."""
        self._select_attention(batch)
        found: tuple[Tensor, Tensor] = self(lambda: token_logprobs(self.model, self.head, batch))
        return found

    def score(self, batch: MicroBatch) -> Tensor:
        """The log-probabilities alone, `[N]`, without gradient and without dropout."""
        training = self.training
        self.eval()
        try:
            with torch.no_grad():
                logprobs_N, _ = self.logprobs(batch)
        finally:
            self.train(training)
            self.put_away()
        return logprobs_N

    def put_away(self) -> None:
        """After a forward pass without a backward one, or one that failed: where the module is sharded, parameters
        that were gathered are sharded again, and what FSDP noted for the backward pass, which would otherwise grow for
        ever in a model that is never trained, is forgotten."""
        for name in ("reset_iter_state", "reshard"):  # the first from torch 2.13 on
            if hasattr(self, name):
                getattr(self, name)()
                return

    def _select_attention(self, batch: MicroBatch) -> None:
        """Packed rows have an attention of their own; transformers reads the name at every forward pass."""
        wanted = VARLEN if batch.lengths else self.padded_attention
        if self.model.config._attn_implementation != wanted:
            self.model.set_attn_implementation(wanted)
            if self.model.config._attn_implementation != wanted:
                raise ValueError(f"its attention cannot be set to {wanted!r}")

    def check_head(self, device: torch.device, tolerance: float) -> None:
        """TrainingError unless head and log-probabilities are those of the model's own logits, up to `tolerance`,
        absolute and relative."""
        batch = micro_batch(_probes(self.head.vocabulary), packed=False, device=device)
        try:
            ours, theirs, chosen_N = self._both(batch)
        except ValueError:
            # Some attentions, such as one with a soft cap, exist only as the model's own code.
            self.padded_attention = "eager"
            ours, theirs, chosen_N = self._both(batch)
        logprobs = (theirs[batch.row_N, batch.position_N - 1] / self.head.shape.temperature).log_softmax(-1)
        expected_N = logprobs.gather(-1, batch.target_N[:, None]).squeeze(-1)
        pairs = ((ours, theirs), (chosen_N, expected_N))
        if not all(torch.allclose(*pair, atol=tolerance, rtol=tolerance) for pair in pairs):
            raise TrainingError(
                f"model.path: {type(self.model).__name__} computes logits in a way that the trainer does not know "
                f"(largest difference {(ours - theirs).abs().max():.3g}): its log-probabilities would be wrong; use "
                "another model"
            )

    def _both(self, batch: MicroBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of head and model, `[R, T, V]`, 0 where a row is padded, and the head's log-probabilities, `[N]`."""
        self._select_attention(batch)
        assert batch.attention_RT is not None

        def work() -> tuple[Tensor, Tensor, Tensor]:
            hidden_RTD = hidden_states(self.model, batch)
            chosen_N, _ = self.head(hidden_RTD[batch.row_N, batch.position_N - 1], batch.target_N)
            theirs = self.model(
                input_ids=batch.token_ids_RT,
                attention_mask=batch.attention_RT,
                position_ids=batch.position_ids_RT,
                use_cache=False,
            ).logits
            return self.head.logits(hidden_RTD), theirs.float(), chosen_N

        try:
            with torch.no_grad():
                ours, theirs, chosen_N = self(work)
        finally:
            self.put_away()
        seen_RT1 = batch.attention_RT.bool()[..., None]
        return ours.where(seen_RT1, 0.0), theirs.where(seen_RT1, 0.0), chosen_N

    def check_packing(self, device: torch.device, tolerance: float) -> None:
        """TrainingError unless the tokens of a packed row have the log-probabilities that they have alone, up to
        `tolerance` on average."""
        probes = _probes(self.head.vocabulary)
        alone = self.score(micro_batch(probes, packed=False, device=device))
        try:
            packed = self.score(micro_batch(probes, packed=True, device=device))
        except (TypeError, ValueError, ImportError, RuntimeError) as error:
            raise TrainingError(
                f"trainer.packing: {type(self.model).__name__} takes no packed rows: {error}; set it to false"
            ) from None
        if not float((alone - packed).abs().mean()) <= tolerance:
            raise TrainingError(
                f"trainer.packing: tokens of {type(self.model).__name__} see more than their own sequence in a packed "
                f"row (mean difference {(alone - packed).abs().mean():.3g}); set trainer.packing = false"
            )


def _probes(vocabulary: int) -> Sequence[Sample]:
    """Sequences of arbitrary tokens, all of which carry loss."""
    return [
        Sample(
            token_ids=[(7 * number + 3 * place + 1) % vocabulary for place in range(length)],
            loss_mask=[True] * length,
            rollout_logprobs=[0.0] * length,
            advantage=0.0,
            reward=0.0,
            group_index=0,
            weight_version=0,
            slot=number,
        )
        for number, length in enumerate(PROBE_LENGTHS)
    ]
