"""What requests for tokens may say. What the embedded engine cannot do is refused by name, never passed over."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from reroll.api import GenerationRequest, SamplingParams
from reroll.serving.http.answers import BadRequest, checked, spelled

MOST_SAMPLES = 4096
"""Of one prompt in one request; more would be a slip, and fill the memory."""


class Body(BaseModel):
    """A JSON object with known keys; null stands for a default."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)
    not_built: ClassVar[Mapping[str, Any]] = {}
    """Fields of the protocol that the embedded engine does not have → the value that asks for nothing."""

    @model_validator(mode="before")
    @classmethod
    def _without_defaults(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        kept = {}
        for name, value in values.items():
            if name not in cls.not_built:
                if value is not None:
                    kept[name] = value
            elif value is not None and value != cls.not_built[name]:
                raise ValueError(f"{name} = {spelled(value)} is not built into this server; leave it out")
        return kept


class Sampling(Body):
    """`sampling_params` of `/generate`."""

    not_built = {
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "repetition_penalty": 1,
        "min_new_tokens": 0,
        "beam_width": 1,
        "json_schema": None,
        "regex": None,
        "ebnf": None,
        "structural_tag": None,
        "stop_regex": None,
        "logit_bias": None,
        "stream_interval": None,
        "custom_params": None,
        "watermark": None,
        "choice": None,
        "spaces_between_special_tokens": True,
    }

    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop: str | list[str] = Field(default_factory=list)
    stop_token_ids: list[int] = Field(default_factory=list)
    n: int = Field(1, ge=1, le=MOST_SAMPLES)
    """Samples a prompt."""
    ignore_eos: bool = False
    """The response does not end at the model's EOS tokens."""
    skip_special_tokens: bool = True
    """Leaves special tokens out of `text`."""
    no_stop_trim: bool = False
    """Keeps in `text` what ended the response."""
    sampling_seed: int | None = None
    """Two requests with one seed and one prompt give equal tokens; left out, every sample gets one of its own."""

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def params(self, eos: tuple[int, ...], seed: int) -> SamplingParams:
        """As the engine takes it; `eos` are the model's ends."""
        if self.ignore_eos and self.stop_token_ids:
            # SGLang passes over them without a word.
            raise BadRequest(
                f"stop_token_ids is {self.stop_token_ids} with ignore_eos, under which SGLang ends at no token; "
                "give one of the two"
            )
        ends = () if self.ignore_eos else tuple(dict.fromkeys((*eos, *self.stop_token_ids)))
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=-1 if self.top_k == EVERY_TOKEN else self.top_k,
            min_p=self.min_p,
            max_new_tokens=self.max_new_tokens,
            stop_token_ids=ends,
            stop=self.stops,
            seed=seed,
        )


EVERY_TOKEN = 1 << 30
"""SGLang's other way to switch `top_k` off."""


class Generate(Body):
    """The body of `/generate`: one prompt, or a list of them."""

    not_built = {
        "stream": False,
        "input_embeds": None,
        "image_data": None,
        "video_data": None,
        "audio_data": None,
        "modalities": None,
        "top_logprobs_num": 0,
        "token_ids_logprob": None,
        "return_hidden_states": False,
        "return_routed_experts": False,
        "return_sampling_mask": False,
        "return_indexer_topk": False,
        "lora_path": None,
        "lora_id": None,
        "session_params": None,
        "custom_logit_processor": None,
        "bootstrap_host": None,
        "bootstrap_port": None,
        "bootstrap_room": None,
        "priority": None,
        "watermark": None,
    }

    rid: str | list[str] | None = None
    text: str | list[str] | None = None
    input_ids: list[int] | list[list[int]] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] = Field(default_factory=dict)
    return_logprob: bool | list[bool] = False
    return_text_in_logprobs: bool = False
    logprob_start_len: int | list[int] = -1
    extra_key: str | list[str] | None = None
    """Requests with different ones share no cached prefix. The embedded engine keeps no prefixes at all."""

    @model_validator(mode="after")
    def _one_prompt(self) -> Generate:
        if (self.text is None) == (self.input_ids is None):
            raise ValueError("give either text or input_ids")
        starts = self.logprob_start_len if isinstance(self.logprob_start_len, list) else [self.logprob_start_len]
        if any(start != -1 for start in starts):
            raise ValueError(
                f"logprob_start_len = {self.logprob_start_len}: log-probabilities of prompts are not built into this "
                "server; leave it out, or give -1"
            )
        return self

    @property
    def single(self) -> bool:
        prompts = self.text if self.input_ids is None else self.input_ids
        return isinstance(prompts, str) or not prompts or isinstance(prompts[0], int)

    def each(self, name: str, count: int) -> list[Any]:
        """A field for every prompt: itself, or its own of the list."""
        value = getattr(self, name)
        if not isinstance(value, list):
            return [value] * count
        if self.single or len(value) != count:
            raise BadRequest(f"{name} has {len(value)} entries for {count} prompts; give one for each")
        return value

    def samplings(self, count: int) -> list[Sampling]:
        return [_sampling(values) for values in self.each("sampling_params", count)]

    def rids(self, count: int) -> list[str]:
        if self.rid is None:
            return [new_rid() for _ in range(count)]
        if isinstance(self.rid, str):
            return [self.rid] if self.single else [f"{self.rid}_{number}" for number in range(count)]
        return [str(rid) for rid in self.each("rid", count)]


def _sampling(values: dict[str, Any]) -> Sampling:
    try:
        return checked(values, Sampling)
    except BadRequest as error:
        raise BadRequest(f"sampling_params: {error}") from None


def new_rid() -> str:
    return secrets.token_hex(16)


def new_seed() -> int:
    return secrets.randbits(63)


def sibling_seed(seed: int, number: int) -> int:
    """The seed of the n-th sample of a request that gave one seed; the first has the seed itself."""
    if number == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:8], "big") >> 1


def siblings(rid: str, input_ids: list[int], sampling: Sampling, eos: tuple[int, ...]) -> list[GenerationRequest]:
    """The requests for a prompt's samples."""
    found = []
    for number in range(sampling.n):
        seed = new_seed() if sampling.sampling_seed is None else sibling_seed(sampling.sampling_seed, number)
        name = rid if sampling.n == 1 else f"{rid}_{number}"
        found.append(GenerationRequest(name, input_ids, sampling.params(eos, seed)))
    return found
