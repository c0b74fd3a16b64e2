"""Log-probabilities and entropies of chosen tokens, without the whole `[tokens, vocabulary]` matrix.

Shapes: R rows, T tokens, D hidden size, N tokens that carry loss, V vocabulary, C tokens of one chunk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from reroll.api import TrainingError
from reroll.training.batching import MicroBatch

CHUNK_ELEMENTS = 8_000_000
"""Logits held at once (32 MB in float32)."""


class PolicyHead:
    """The last part of a causal language model: hidden states → log-probabilities.

    Beside the output embedding, three steps that published architectures add are known: `final_logit_softcapping`
    (Gemma 2), `logit_scale` (Cohere) and `logits_scaling` (Granite). `check` compares with the model's own logits.
    """

    def __init__(self, model: Any, temperature: float) -> None:
        embedding = model.get_output_embeddings()
        if embedding is None:
            raise TrainingError(f"{type(model).__name__} has no output embedding: is it a causal language model?")
        self.embedding = embedding
        self.temperature = temperature
        config = model.config.get_text_config()
        self.softcap = getattr(config, "final_logit_softcapping", None)
        self.scale = getattr(config, "logit_scale", None) or 1.0
        if divisor := getattr(config, "logits_scaling", None):
            self.scale = self.scale / divisor

    def logits(self, hidden_CD: Tensor) -> Tensor:
        """The model's logits, `[C, V]`, before the temperature."""
        logits_CV = self.embedding(hidden_CD) * self.scale if self.scale != 1.0 else self.embedding(hidden_CD)
        if self.softcap is not None:
            logits_CV = torch.tanh(logits_CV / self.softcap) * self.softcap
        logits: Tensor = logits_CV.float()
        return logits

    def __call__(self, hidden_ND: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of each target, and the exact entropy of its distribution, both `[N]`.

        Works through chunks of tokens; with gradient, a chunk's logits are computed again in the backward pass
        instead of being kept, unless one chunk holds them all.
        """
        size = max(1, CHUNK_ELEMENTS // self.embedding.weight.shape[0])
        keep = len(target_N) <= size or not torch.is_grad_enabled()
        parts = [
            self._chunk(hidden_CD, target_C)
            if keep
            else checkpoint(self._chunk, hidden_CD, target_C, use_reentrant=False, preserve_rng_state=False)
            for hidden_CD, target_C in zip(torch.split(hidden_ND, size), torch.split(target_N, size), strict=True)
        ]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def _chunk(self, hidden_CD: Tensor, target_C: Tensor) -> tuple[Tensor, Tensor]:
        logits_CV = self.logits(hidden_CD) / self.temperature
        logprobs_CV = torch.log_softmax(logits_CV, dim=-1)
        entropy_C = -(logprobs_CV.exp() * logprobs_CV).sum(-1)
        return logprobs_CV.gather(-1, target_C[:, None]).squeeze(-1), entropy_C

    def check(self, model: Any) -> None:
        """TrainingError unless this head and the model's own forward give the same logits."""
        ids_RT = torch.arange(1, 9)[None] % self.embedding.weight.shape[0]
        with torch.no_grad():
            ours = self.logits(hidden_states(model, ids_RT, torch.ones_like(ids_RT), None)[0])
            theirs = model(input_ids=ids_RT, use_cache=False).logits[0].float()
        if not torch.allclose(ours, theirs, atol=1e-4, rtol=1e-4):
            raise TrainingError(
                f"{type(model).__name__} computes logits in a way that the trainer does not know "
                f"(largest difference {(ours - theirs).abs().max():.3g}): its log-probabilities would be wrong"
            )


def hidden_states(
    model: Any, token_ids_RT: Tensor, attention_RT: Tensor | None, position_ids_RT: Tensor | None
) -> Tensor:
    """The last hidden states, `[R, T, D]`, of the model without its head; no mask where nothing is padded."""
    output = model.base_model(
        input_ids=token_ids_RT, attention_mask=attention_RT, position_ids=position_ids_RT, use_cache=False
    )
    hidden: Tensor = output.last_hidden_state
    return hidden


def token_logprobs(model: Any, head: PolicyHead, batch: MicroBatch) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of every token of the batch that carries loss, both `[N]`."""
    mask_RT = None if batch.padding == 0 else batch.attention_RT
    hidden_RTD = hidden_states(model, batch.token_ids_RT, mask_RT, batch.position_ids_RT)
    return head(hidden_RTD[batch.row_N, batch.position_N - 1], batch.target_N)
