"""SGLang's routes for tokens, and those that tell about the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from reroll.api import Completion, EngineError, GenerationRequest, SamplingParams, WorkerDied
from reroll.serving.http.answers import BadRequest, json, parsed
from reroll.serving.http.bodies import Body, Generate, Sampling, new_rid, siblings
from reroll.serving.http.served import Served

if TYPE_CHECKING:
    from aiohttp import web

HEALTH_SECONDS = 20.0
"""How long `/health_generate` waits for its token, as in SGLang: a paused server is not healthy by that route."""


class Abort(Body):
    """The body of `/abort_request`."""

    rid: str = ""
    abort_all: bool = False


def routes(served: Served) -> dict[tuple[str, str], Callable[[web.Request], Awaitable[web.StreamResponse]]]:
    """(method, path) → handler."""

    async def generate(request: web.Request) -> web.Response:
        body = await parsed(request, Generate)
        began = time.perf_counter()
        prompts = _prompts(served, body)
        samplings = body.samplings(len(prompts))
        wants = body.each("return_logprob", len(prompts))
        requests = [
            (request, sampling, want)
            for rid, ids, sampling, want in zip(body.rids(len(prompts)), prompts, samplings, wants, strict=True)
            for request in siblings(rid, ids, sampling, served.files.eos_token_ids)
        ]
        completions = await served.generate_all([request for request, _, _ in requests])
        latency = time.perf_counter() - began
        answers = [
            {
                **text_of(served, request.sampling, sampling, completion),
                "meta_info": _meta(served, request, completion, latency, want, body.return_text_in_logprobs),
            }
            for (request, sampling, want), completion in zip(requests, completions, strict=True)
        ]
        return json(answers[0] if body.single and len(answers) == 1 else answers)

    async def abort(request: web.Request) -> web.Response:
        body = await parsed(request, Abort)
        if body.abort_all:
            await served.abort_all()
        else:
            await served.abort(body.rid)
        return _empty(200)

    async def health(_: web.Request) -> web.Response:
        try:
            await served.engine.health()
        except (EngineError, WorkerDied):
            return _empty(503)
        return _empty(200)

    async def health_generate(_: web.Request) -> web.Response:
        probe = GenerationRequest(f"HEALTH_CHECK_{new_rid()}", [0], SamplingParams(temperature=0.0, max_new_tokens=1))
        try:
            await asyncio.wait_for(served.generate(probe), HEALTH_SECONDS)
        except (EngineError, WorkerDied, TimeoutError):
            return _empty(503)
        return _empty(200)

    async def ready(_: web.Request) -> web.Response:
        return _empty(503 if served.gate.paused else 200)

    async def model_info(_: web.Request) -> web.Response:
        return json(
            {
                "model_path": str(served.model_directory),
                "served_model_name": served.model,
                "tokenizer_path": str(served.model_directory),
                "is_generation": True,
                "weight_version": served.weight_version,
                "load_format": "auto",
                "model_type": served.files.config.get("model_type"),
                "architectures": served.files.config.get("architectures"),
            }
        )

    async def server_info(_: web.Request) -> web.Response:
        return json(
            {
                "model_path": str(served.model_directory),
                "served_model_name": served.model,
                "dtype": "float32",
                "device": "cpu",
                "tp_size": 1,
                "dp_size": 1,
                "pp_size": 1,
                "context_length": served.context_len,
                "weight_version": served.weight_version,
                **served.engine.config.model_dump(mode="json", exclude={"eos_token_ids", "max_context_len"}),
                "internal_states": [await served.engine.health()],
                "version": version("reroll"),
                "frontend": "reroll",
                "status": "ready",
            }
        )

    return {
        ("POST", "/generate"): generate,
        ("POST", "/abort_request"): abort,
        ("GET", "/health"): health,
        ("GET", "/health_generate"): health_generate,
        ("GET", "/ready"): ready,
        ("GET", "/model_info"): model_info,
        ("GET", "/server_info"): server_info,
    }


def _empty(status: int) -> web.Response:
    from aiohttp import web

    return web.Response(status=status)


def _prompts(served: Served, body: Generate) -> list[list[int]]:
    if body.input_ids is None:
        texts = [body.text] if isinstance(body.text, str) else body.text or []
        prompts = [served.renderer.tokenizer.encode(text).ids for text in texts]
    elif body.single:
        prompts = [body.input_ids]
    else:
        prompts = list(body.input_ids)
    if not prompts:
        raise BadRequest("text is an empty list; give at least one prompt")
    return prompts


def ending(served: Served, params: SamplingParams, completion: Completion) -> int | str | None:
    """What a response with `stop` ended at: a token id, or one of the strings."""
    if completion.finish_reason != "stop":
        return None
    last = completion.output_ids[-1]
    if last in params.stop_token_ids:
        return last
    text = served.decode(completion.output_ids, skip_special_tokens=False)
    found = [(text.find(stop), stop) for stop in params.stop if stop in text]
    return min(found)[1] if found else None


def text_of(served: Served, params: SamplingParams, sampling: Sampling, completion: Completion) -> dict[str, Any]:
    """`text` and `output_ids`. The text is without what ended it; the ids are as they were sampled."""
    ids, matched = completion.output_ids, ending(served, params, completion)
    if isinstance(matched, int) and not sampling.no_stop_trim:
        ids = ids[:-1]
    text = served.decode(ids, sampling.skip_special_tokens)
    if isinstance(matched, str) and not sampling.no_stop_trim and matched in text:
        text = text[: text.find(matched)]
    return {"text": text, "output_ids": completion.output_ids}


def _meta(
    served: Served, request: GenerationRequest, completion: Completion, latency: float, logprobs: bool, texts: bool
) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "id": completion.request_id,
        "finish_reason": _finish_reason(served, request.sampling, completion),
        "prompt_tokens": len(request.input_ids),
        "completion_tokens": len(completion.output_ids),
        "cached_tokens": 0,  # the engine keeps no prefixes
        **weights_of(served, completion),
        "e2e_latency": latency,
    }
    if logprobs:
        meta["input_token_logprobs"] = []
        meta["output_token_logprobs"] = [
            [logprob, token, served.decode([token], skip_special_tokens=False) if texts else None]
            for logprob, token in zip(completion.logprobs, completion.output_ids, strict=True)
        ]
        meta["output_token_logprobs_length"] = len(completion.output_ids)
    return meta


def weights_of(served: Served, completion: Completion) -> dict[str, Any]:
    """Which weights made the tokens: the last ones, and all as spans over the output."""
    spans = served.versions.spans(completion)
    return {
        "weight_version": spans[-1].version if spans else served.weight_version,
        "weight_versions": [span._asdict() for span in spans],
    }


def _finish_reason(served: Served, params: SamplingParams, completion: Completion) -> dict[str, Any]:
    if completion.finish_reason == "length":
        return {"type": "length", "length": len(completion.output_ids)}
    if completion.finish_reason == "abort":
        return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    return {"type": "stop", "matched": ending(served, params, completion)}
