"""Log-probabilities and entropies of chosen tokens, without the whole `[tokens, vocabulary]` matrix.

Shapes: R rows, T tokens of a row, D hidden size, N tokens that carry loss, V vocabulary, C tokens of one chunk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from reroll.api import TrainingError
from reroll.training.attention import packed_arguments
from reroll.training.batching import MicroBatch

CHUNK_ELEMENTS = 8_000_000
"""Logits held at once (32 MB in float32)."""


class PolicyHead:
    """The last part of a causal language model: hidden states → log-probabilities.

    Beside the output embedding, three steps that published architectures add are known: `final_logit_softcapping`
    (Gemma 2), `logit_scale` (Cohere) and `logits_scaling` (Granite). `Policy.check` compares with the model's own
    logits.
    """

    def __init__(self, model: Any, temperature: float) -> None:
        embedding = model.get_output_embeddings()
        if embedding is None:
            raise TrainingError(f"{type(model).__name__} has no output embedding: is it a causal language model?")
        self.embedding = embedding
        self.vocabulary: int = embedding.weight.shape[0]
        self.temperature = temperature
        config = model.config.get_text_config()
        self.softcap = getattr(config, "final_logit_softcapping", None)
        self.scale = getattr(config, "logit_scale", None) or 1.0
        if divisor := getattr(config, "logits_scaling", None):
            self.scale = self.scale / divisor

    def logits(self, hidden_CD: Tensor) -> Tensor:
        """The model's logits, `[…, V]`, before the temperature."""
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
        size = max(1, CHUNK_ELEMENTS // self.vocabulary)
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


def hidden_states(model: Any, batch: MicroBatch) -> Tensor:
    """The last hidden states, `[R, T, D]`, of the model without its head."""
    packed = packed_arguments(batch.lengths, batch.token_ids_RT.device) if batch.lengths else {}
    output = model.base_model(
        input_ids=batch.token_ids_RT,
        attention_mask=batch.attention_RT,
        position_ids=batch.position_ids_RT,
        use_cache=False,
        **packed,
    )
    hidden: Tensor = output.last_hidden_state
    return hidden


def token_logprobs(model: Any, head: PolicyHead, batch: MicroBatch) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of every token of the batch that carries loss, both `[N]`."""
    hidden_RTD = hidden_states(model, batch)
    return head(hidden_RTD[batch.row_N, batch.position_N - 1], batch.target_N)
