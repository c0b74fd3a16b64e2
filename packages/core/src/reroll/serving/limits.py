"""What an engine can serve, and what makes a request refusable."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from reroll.api import GenerationRequest, RequestRefused

LEAST_TEMPERATURE = 1e-4
"""Below it, logits divided by the temperature may overflow; 0 says what is meant."""
MOST_TOP_K = 2**31 - 1
"""Engines keep it in an array of integers of 32 or 64 bits: a larger one would end the engine for every request."""


class Limits(NamedTuple):
    """What one engine can serve.

    Attributes:
        vocab_size: token ids are below it.
        context_len: most tokens of prompt and response together.
        cache_tokens: most tokens that the cache can hold.
        stop_strings: whether there is a tokenizer to find stop strings with.
        more_cache: how a user makes the cache larger.
    """

    vocab_size: int
    context_len: int
    cache_tokens: int
    stop_strings: bool
    more_cache: str = "raise kv_cache_mb of serving.engine"


def check(request: GenerationRequest, limits: Limits) -> None:
    """RequestRefused, naming field, value and remedy, if the request cannot be served."""
    problem = _prompt_problem(request.input_ids, limits) or _sampling_problem(request, limits)
    if problem:
        raise RequestRefused(f"request {request.request_id!r}: {problem}")


def _prompt_problem(ids: list[int], limits: Limits) -> str | None:
    if not ids:
        return "input_ids is empty; give at least one token, such as the model's begin-of-sequence id"
    for index, token in enumerate(ids):
        if not _is_integer(token) or not 0 <= token < limits.vocab_size:
            return (
                f"input_ids[{index}] is {token!r}, but token ids are whole numbers from 0 to "
                f"{limits.vocab_size - 1}; use the tokenizer of this model"
            )
    return None


def _sampling_problem(request: GenerationRequest, limits: Limits) -> str | None:
    wanted, prompt = request.sampling, len(request.input_ids)
    if not _is_integer(wanted.max_new_tokens) or wanted.max_new_tokens < 1:
        return f"max_new_tokens is {wanted.max_new_tokens!r}; give a whole number of at least 1"
    total = prompt + wanted.max_new_tokens
    if total > limits.context_len:
        return (
            f"max_new_tokens is {wanted.max_new_tokens} after a prompt of {prompt} tokens, but the context holds "
            f"{limits.context_len}; " + _shorten(prompt, limits.context_len)
        )
    if total > limits.cache_tokens:
        return (
            f"max_new_tokens is {wanted.max_new_tokens} after a prompt of {prompt} tokens, but the cache holds "
            f"{limits.cache_tokens}; {limits.more_cache} or " + _shorten(prompt, limits.cache_tokens)
        )
    if not _is_number(wanted.temperature) or (wanted.temperature != 0 and wanted.temperature < LEAST_TEMPERATURE):
        return (
            f"temperature is {wanted.temperature!r}; give 0 for the most likely token or at least {LEAST_TEMPERATURE}"
        )
    if not _is_number(wanted.top_p) or not 0 < wanted.top_p <= 1:
        return f"top_p is {wanted.top_p!r}; give a number above 0 and up to 1 (1 switches it off)"
    if not _is_integer(wanted.top_k) or (wanted.top_k != -1 and not 1 <= wanted.top_k <= MOST_TOP_K):
        return f"top_k is {wanted.top_k!r}; give a whole number from 1 to {MOST_TOP_K}, or -1 to switch it off"
    if not _is_number(wanted.min_p) or not 0 <= wanted.min_p <= 1:
        return f"min_p is {wanted.min_p!r}; give a number from 0 to 1 (0 switches it off)"
    if not _is_integer(wanted.seed):
        return f"seed is {wanted.seed!r}; give a whole number"
    for token in wanted.stop_token_ids:
        if not _is_integer(token) or not 0 <= token < limits.vocab_size:
            return f"stop_token_ids has {token!r}, which the model cannot give; ids go up to {limits.vocab_size - 1}"
    if any(not isinstance(text, str) or not text for text in wanted.stop):
        return f"stop is {wanted.stop!r}; give strings that are not empty"
    if not all(is_text(text) for text in wanted.stop):
        return f"stop is {wanted.stop!r}, which has half of a surrogate pair; give whole characters"
    if wanted.stop and not limits.stop_strings:
        return f"stop is {wanted.stop!r}, but the model has no tokenizer.json to find it with; use stop_token_ids"
    return None


def is_text(value: str) -> bool:
    """Whether UTF-8 can write it. JSON's escapes bring halves of surrogate pairs, which no tokenizer takes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shorten(prompt: int, room: int) -> str:
    if prompt >= room:
        return f"shorten the prompt to at most {room - 1} tokens"
    return f"lower max_new_tokens to at most {room - prompt}"


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
