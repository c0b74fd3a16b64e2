"""Log-probabilities and entropies of chosen tokens, without the whole `[tokens, vocabulary]` matrix.

Shapes: R rows, T tokens of a row, D hidden size, N tokens that carry loss, V vocabulary, C tokens of one chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reroll.api import TrainingError
from reroll.training.attention import packed_arguments
from reroll.training.batching import MicroBatch
from reroll.training.limits import CHUNK_ELEMENTS, KEPT_ELEMENTS


class LogitShape(NamedTuple):
    """What comes between the output embedding and the softmax: `z = c·tanh(s·u / c) / temperature` for logits `u`,
    without the tanh where there is no soft cap `c`."""

    scale: float
    softcap: float | None
    temperature: float

    def forward(self, logits_CV: Tensor) -> Tensor:
        """In place where it can be: the argument is no longer of use."""
        if self.scale != 1.0:
            logits_CV = logits_CV * self.scale
        if self.softcap is not None:
            logits_CV = torch.tanh(logits_CV / self.softcap) * self.softcap
        z_CV = logits_CV.float()
        return z_CV.div_(self.temperature) if self.temperature != 1.0 else z_CV

    def backward(self, grad_CV: Tensor, z_CV: Tensor) -> Tensor:
        """Gradient of `u` from that of `z`, in place."""
        if self.softcap is not None:
            tanh_CV = z_CV.mul(self.temperature / self.softcap)
            grad_CV.mul_(tanh_CV.square_().neg_().add_(1.0))
        factor = self.scale / self.temperature
        return grad_CV.mul_(factor) if factor != 1.0 else grad_CV


class ChosenLogprobs(torch.autograd.Function):
    """Hidden states → log-probability of each target and entropy of its distribution, chunk by chunk.

    With `p = softmax(z)`: `log p_t = z_t - lse(z)`, `H = lse(z) - Σ p z`, and for the backward pass
    `∂ log p_t / ∂z_j = [j = t] - p_j`, `∂H / ∂z_j = -p_j (log p_j + H)`. The derivatives are written out because
    automatic differentiation keeps, or makes in the backward pass, a copy of the output embedding for every chunk.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        target_N: Tensor,
        shape: LogitShape,
        keep: bool,
    ) -> tuple[Tensor, Tensor]:
        tokens, vocabulary = len(target_N), weight_VD.shape[0]
        few = tokens * vocabulary <= KEPT_ELEMENTS[hidden_ND.device.type]
        kept: list[Tensor] | None = [] if keep and few else None
        logprobs_N = torch.empty(tokens, dtype=torch.float32, device=hidden_ND.device)
        lse_N, entropy_N = torch.empty_like(logprobs_N), torch.empty_like(logprobs_N)
        for part in _chunks(hidden_ND, vocabulary):
            z_CV = shape.forward(_logits(hidden_ND[part], weight_VD, bias_V))
            lse_C = torch.logsumexp(z_CV, dim=-1)
            p_CV = torch.exp(z_CV - lse_C[:, None])
            logprobs_N[part] = z_CV.gather(-1, target_N[part, None]).squeeze(-1) - lse_C
            entropy_N[part] = lse_C - p_CV.mul_(z_CV).sum(-1)
            lse_N[part] = lse_C
            if kept is not None:
                kept.append(z_CV)
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, target_N, lse_N, entropy_N, *(kept or ()))
        ctx.shape = shape
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_logprobs_N, grad_entropy_N = grads
        hidden_ND, weight_VD, bias_V, target_N, lse_N, entropy_N, *kept = ctx.saved_tensors
        grad_hidden_ND = torch.empty_like(hidden_ND)
        # Summed in float32, whatever the weight's type: there is one addition a chunk.
        grad_weight_VD = torch.zeros(weight_VD.shape, dtype=torch.float32, device=weight_VD.device)
        grad_bias_V = None if bias_V is None else torch.zeros_like(bias_V, dtype=torch.float32)
        for number, part in enumerate(_chunks(hidden_ND, weight_VD.shape[0])):
            if kept:
                z_CV = kept[number]
            else:
                z_CV = ctx.shape.forward(_logits(hidden_ND[part], weight_VD, bias_V))
            logp_CV = z_CV - lse_N[part, None]
            grad_CV = torch.exp(logp_CV)
            # -p_j (g + h (log p_j + H)), then g more at the target
            slope_CV = logp_CV.add_(entropy_N[part, None]).mul_(grad_entropy_N[part, None])
            grad_CV.mul_(slope_CV.add_(grad_logprobs_N[part, None])).neg_()
            grad_CV.scatter_add_(-1, target_N[part, None], grad_logprobs_N[part, None])
            grad_CV = ctx.shape.backward(grad_CV, z_CV)
            half_CV = grad_CV.to(weight_VD.dtype)  # itself in float32
            grad_hidden_ND[part] = half_CV @ weight_VD
            if half_CV is grad_CV:
                grad_weight_VD.addmm_(grad_CV.T, hidden_ND[part])
            else:  # multiplied in the weight's type, where the device is many times faster
                grad_weight_VD.add_(half_CV.T @ hidden_ND[part])
            if grad_bias_V is not None:
                grad_bias_V.add_(grad_CV.sum(0))
        grad_bias_V = None if grad_bias_V is None or bias_V is None else grad_bias_V.to(bias_V.dtype)
        return grad_hidden_ND, grad_weight_VD.to(weight_VD.dtype), grad_bias_V, None, None, None


def _logits(hidden_CD: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> Tensor:
    return torch.nn.functional.linear(hidden_CD, weight_VD, bias_V)


def _chunks(hidden_ND: Tensor, vocabulary: int) -> Iterator[slice]:
    tokens, size = len(hidden_ND), max(1, CHUNK_ELEMENTS[hidden_ND.device.type] // vocabulary)
    for start in range(0, tokens, size):
        yield slice(start, min(start + size, tokens))


class PolicyHead:
    """The last part of a causal language model: hidden states → log-probabilities.

    Beside the output embedding, three steps that published architectures add are known: `final_logit_softcapping`
    (Gemma 2), `logit_scale` (Cohere) and `logits_scaling` (Granite). `Policy.check_head` compares with the model's
    own logits.
    """

    def __init__(self, model: Any, temperature: float) -> None:
        embedding = model.get_output_embeddings()
        if not isinstance(embedding, torch.nn.Linear):
            raise TrainingError(
                f"{type(model).__name__} has {embedding!r} for an output embedding instead of a linear layer: is it a "
                "causal language model?"
            )
        self.embedding = embedding
        self.vocabulary: int = embedding.weight.shape[0]
        config = model.config.get_text_config()
        scale = getattr(config, "logit_scale", None) or 1.0
        if divisor := getattr(config, "logits_scaling", None):
            scale = scale / divisor
        self.shape = LogitShape(scale, getattr(config, "final_logit_softcapping", None), temperature)

    def logits(self, hidden_CD: Tensor) -> Tensor:
        """The model's logits, `[…, V]`, before the temperature."""
        return self.shape._replace(temperature=1.0).forward(self.embedding(hidden_CD))

    def __call__(self, hidden_ND: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of each target, and the exact entropy of its distribution, both `[N]`, in float32."""
        embedding = self.embedding
        found: tuple[Tensor, Tensor] = ChosenLogprobs.apply(
            hidden_ND, embedding.weight, embedding.bias, target_N, self.shape, torch.is_grad_enabled()
        )  # type: ignore[no-untyped-call]
        return found


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
