"""OpenAI's chat completions, for people and tools that talk to a checkpoint."""

from __future__ import annotations

import json as json_format
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from reroll.api import Completion, EngineError, GenerationRequest, Task, WorkerDied
from reroll.serving.http.answers import BadRequest, json, parsed
from reroll.serving.http.bodies import MOST_SAMPLES, Body, Sampling, new_rid, siblings
from reroll.serving.http.native import ending, text_of, weights_of
from reroll.serving.http.served import Served

if TYPE_CHECKING:
    from aiohttp import web

STREAM_SECONDS = 0.05
"""How often a stream looks for new tokens; each look is a call to the worker."""
UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a character decodes to while tokens of it are missing."""


class StreamOptions(Body):
    include_usage: bool = False


class ResponseFormat(Body):
    type: Literal["text"] = "text"


class Chat(Body):
    """The body of `/v1/chat/completions`, with SGLang's additions to the sampling."""

    not_built = {
        "tools": [],
        "tool_choice": "none",
        "functions": [],
        "function_call": "none",
        "parallel_tool_calls": None,
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "repetition_penalty": 1,
        "logit_bias": {},
        "top_logprobs": 0,
        "modalities": ["text"],
        "audio": None,
        "prediction": None,
        "reasoning_effort": None,
        "web_search_options": None,
        "store": False,
    }

    messages: list[dict[str, Any]] = Field(min_length=1)
    model: str | None = None
    """Repeated in the answer; this server has one model."""
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    n: int = Field(1, ge=1, le=MOST_SAMPLES)
    stop: str | list[str] = Field(default_factory=list)
    seed: int | None = None
    logprobs: bool = False
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    response_format: ResponseFormat = ResponseFormat()
    user: str | None = None
    """For the caller's own books."""
    metadata: dict[str, Any] | None = None
    """For the caller's own books."""

    def sampling(self, room: int) -> Sampling:
        """As `/generate` takes it; without a limit, a response may fill the context, which has `room` left."""
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise BadRequest(
                f"max_tokens is {self.max_tokens} and max_completion_tokens {self.max_completion_tokens}; "
                "give one of them"
            )
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return Sampling(
            max_new_tokens=room if limit is None else limit,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            n=self.n,
            stop=self.stop,
            sampling_seed=self.seed,
        )


def routes(served: Served) -> dict[tuple[str, str], Callable[[web.Request], Awaitable[web.StreamResponse]]]:
    """(method, path) → handler."""

    async def chat(request: web.Request) -> web.StreamResponse:
        body = await parsed(request, Chat)
        ids = _rendered(served, body)
        sampling = body.sampling(max(1, served.context_len - len(ids)))
        name = new_rid()
        requests = siblings(name, ids, sampling, served.files.eos_token_ids)
        if body.stream:
            return await _stream(request, served, body, sampling, name, requests)
        completions = await served.generate_all(requests)
        choices = [
            _choice(served, body, sampling, number, request, completion)
            for number, (request, completion) in enumerate(zip(requests, completions, strict=True))
        ]
        return json(
            {
                **_head(served, body, name, "chat.completion"),
                "choices": choices,
                "usage": _usage(ids, completions),
                "metadata": weights_of(served, completions[0]),
            }
        )

    async def models(_: web.Request) -> web.Response:
        card = {
            "id": served.model,
            "object": "model",
            "created": int(served.started),
            "owned_by": "reroll",
            "root": str(served.model_directory),
            "parent": None,
            "max_model_len": served.context_len,
        }
        return json({"object": "list", "data": [card]})

    return {("POST", "/v1/chat/completions"): chat, ("GET", "/v1/models"): models}


def _rendered(served: Served, body: Chat) -> list[int]:
    messages = [{**message, "content": _text(message.get("content"))} for message in body.messages]
    prompt = served.renderer.render(Task(messages, {}, "request", 0, "messages"))
    return list(prompt.token_ids)


def _text(content: Any) -> Any:
    """Content in parts, as OpenAI's clients may give it, as one text."""
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else part
            raise BadRequest(f"messages have content of type {kind!r}; this server takes text alone")
    return "".join(part["text"] for part in content)


def _head(served: Served, body: Chat, name: str, kind: str) -> dict[str, Any]:
    return {"id": name, "object": kind, "created": int(time.time()), "model": body.model or served.model}


def _usage(ids: list[int], completions: list[Completion]) -> dict[str, int]:
    generated = sum(len(completion.output_ids) for completion in completions)
    return {"prompt_tokens": len(ids), "completion_tokens": generated, "total_tokens": len(ids) + generated}


def _choice(
    served: Served, body: Chat, sampling: Sampling, number: int, request: GenerationRequest, completion: Completion
) -> dict[str, Any]:
    text = text_of(served, request.sampling, sampling, completion)["text"]
    return {
        "index": number,
        "message": {"role": "assistant", "content": text},
        "logprobs": _logprobs(served, completion) if body.logprobs else None,
        **_finish(served, request, completion),
    }


def _finish(served: Served, request: GenerationRequest, completion: Completion) -> dict[str, Any]:
    return {
        "finish_reason": completion.finish_reason,
        "matched_stop": ending(served, request.sampling, completion),
    }


def _logprobs(served: Served, completion: Completion) -> dict[str, Any]:
    content = []
    for token, logprob in zip(completion.output_ids, completion.logprobs, strict=True):
        text = served.decode([token], skip_special_tokens=False)
        content.append({"token": text, "bytes": list(text.encode()), "logprob": logprob, "top_logprobs": []})
    return {"content": content}


async def _stream(
    request: web.Request, served: Served, body: Chat, sampling: Sampling, name: str, requests: list[GenerationRequest]
) -> web.StreamResponse:
    """Server-sent events with the text as it grows."""
    from aiohttp import web

    if body.logprobs:
        raise BadRequest("logprobs = true is not built for stream = true; give one of them")
    if sampling.n > 1:
        raise BadRequest(f"n = {sampling.n} is not built for stream = true; give one of them")
    (sample,) = requests
    head = _head(served, body, name, "chat.completion.chunk")
    async with aclosing(_pieces(served, sampling, sample)) as pieces:
        # The first piece comes before the headers do: what the engine refuses is still an answer with a status.
        piece = await anext(pieces)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)

        async def send(content: dict[str, Any]) -> None:
            await response.write(b"data: " + json_format.dumps(content).encode() + b"\n\n")

        async def grow(delta: dict[str, Any], **finish: Any) -> None:
            await send({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None, **finish}]})

        await grow({"role": "assistant", "content": ""})
        try:
            while isinstance(piece, str):
                if piece:
                    await grow({"content": piece})
                piece = await anext(pieces)
        except (EngineError, WorkerDied) as error:
            await send({"error": {"message": str(error), "type": "InternalServerError", "code": 500}})
        else:
            await grow({}, **_finish(served, sample, piece))
            if body.stream_options.include_usage:
                await send({**head, "choices": [], "usage": _usage(sample.input_ids, [piece])})
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


async def _pieces(served: Served, sampling: Sampling, request: GenerationRequest) -> AsyncGenerator[str | Completion]:
    """What the text grows by, and the completion at last.

    The text's end is kept back while the next tokens may still change it: a character that is not whole, or what may
    become a stop string.
    """
    from asyncio import ensure_future, wait

    work = ensure_future(served.generate(request))
    sent = ""
    try:
        while not work.done():
            await wait([work], timeout=STREAM_SECONDS)
            if work.done():
                break
            ids = (await served.engine.outputs([request.request_id])).get(request.request_id)
            if ids is None:
                continue  # it waits at the gate, has just ended, or is about to be refused
            text = _certain(served.decode(ids, sampling.skip_special_tokens), sampling.stops)
            if text.startswith(sent):
                yield text[len(sent) :]
                sent = text
        completion = work.result()
        yield text_of(served, request.sampling, sampling, completion)["text"][len(sent) :]
        yield completion
    finally:
        work.cancel()


def _certain(text: str, stops: tuple[str, ...]) -> str:
    """The part of the text that stays, whatever follows."""
    text = text.rstrip(UNFINISHED)
    if ends := [text.find(stop) for stop in stops if stop in text]:
        return text[: min(ends)]
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), 0, -1):
            if text.endswith(stop[:length]):
                text = text[:-length]
                break
    return text
