"""HTTP to one SGLang server: generation through many pooled connections, control beside it."""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import aiohttp
import orjson

from reroll.api import (
    Completion,
    EngineError,
    EngineUnavailable,
    FinishReason,
    GenerationRequest,
    RequestRefused,
    VersionSpan,
)
from reroll.serving.sglang.versions import PLAIN, UnknownVersion, VersionNames

RESENDS = 2
"""A request whose connection broke is made anew so often, under another id: nothing of the first one is kept, and its
seed makes the same response."""
BUSY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Waits before a request is made again that a server with a full queue refused; the last one repeats."""
ANSWER_SECONDS = 20.0
ABORT_CONNECTIONS = 4
SPARE_FILES = 256
"""Open files beside connections."""
ROUTER_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Waits before a request is made again that SGLang's router failed to bring anywhere."""
ROUTER_FAILURES = (500, 502, 504)
"""The router answers with these when the server that it had chosen ends."""
KEEP_SECONDS = 2.0
"""An unused connection is kept for less than the 5 s after which SGLang's server closes one."""
DISCONNECTED = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError)


class SGLangClient:
    """Requests to one server.

    Args:
        url: without a path.
        key: bearer token; empty where the server wants none.
        connections: most requests in flight; more wait here, first come first served.
        request_timeout: seconds that a response may take once it was sent; None waits.
        answer_timeout: seconds that a control route may take, but for those which are told to be slow.
        router: URL of SGLang's router, which is asked for responses in place of the server.
        peers: the other servers that the router may bring a request to.
        names: of the versions that the run loads.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        connections: int,
        request_timeout: float | None = None,
        answer_timeout: float = ANSWER_SECONDS,
        router: str | None = None,
        peers: Sequence[str] = (),
        names: VersionNames = PLAIN,
    ) -> None:
        self.url = url.rstrip("/")
        self.names = names
        self._router = router.rstrip("/") if router else None
        self._peers = [peer.rstrip("/") for peer in peers]
        self._generate_url = f"{self._router or self.url}/generate"
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        allow_open_files(connections + SPARE_FILES)
        # Without a limit in time: the longest response may take an hour, and health is watched beside it.
        waits = aiohttp.ClientTimeout(total=None, sock_connect=30.0)
        self._requests = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_SECONDS),
            headers=headers | {"Content-Type": "application/json"},
            timeout=waits,
            auto_decompress=False,
        )
        # Control never waits behind responses. Each call has a connection of its own: one that is kept may have been
        # closed by the server, and not everything that is asked here can be asked twice.
        self._control = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=16, force_close=True), headers=headers, timeout=waits
        )
        # Nor behind the aborts of requests that nobody waits for any more, which may be thousands at once.
        self._aborts = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=ABORT_CONNECTIONS, force_close=True), headers=headers, timeout=waits
        )
        self._aborting: set[asyncio.Task[None]] = set()
        self._timeout = request_timeout
        self._room = asyncio.Semaphore(connections)
        self._answer_timeout = answer_timeout
        # All of one length: SGLang aborts every request whose id begins with the given one, which must be one that it
        # has. And no other client's, of which the server may still have requests.
        self._ids = (f"{secrets.token_hex(8)}{number:016x}" for number in itertools.count())
        self._sent: dict[str, str] = {}  # SGLang's ids of requests in flight

    async def close(self) -> None:
        for task in list(self._aborting):
            task.cancel()
        for session in (self._requests, self._control, self._aborts):
            await session.close()

    async def generate(self, request: GenerationRequest) -> Completion:
        """The server's response.

        Raises:
            RequestRefused: the server does not take this one.
            EngineUnavailable: it does not answer.
            EngineError: it refuses the key, or answers what cannot be read; the router does not answer.
        """
        try:
            return await self._respond(request, time.time())
        except asyncio.CancelledError:
            # The closed connection tells the server as well, some seconds later.
            self._abort_beside(request.request_id)
            raise
        finally:
            self._sent.pop(request.request_id, None)

    async def _respond(self, request: GenerationRequest, queued: float) -> Completion:
        broken = busy = 0
        while True:
            rid = self._sent[request.request_id] = next(self._ids)
            body = generation_body(request, rid)
            try:
                async with self._room, asyncio.timeout(self._timeout):
                    status, found = await self._post(body)
            except TimeoutError:
                self._abort_beside(request.request_id)
                raise RequestRefused(
                    f"request {request.request_id!r}: no response within {self._timeout:g} s; raise "
                    "serving.request_timeout, or lower rollout.rollout_max_response_len"
                ) from None
            except DISCONNECTED as error:
                broken += 1
                if self._requests.closed:
                    raise self._unavailable(error) from error
                if self._router is not None:
                    await self._wait_for_router(broken, f"does not answer: {type(error).__name__}: {error}")
                elif broken > RESENDS:
                    raise self._unavailable(error) from error
                await asyncio.sleep(0)  # the ends of other idle connections are noticed, and those not used again
                continue
            if status == 200:
                try:
                    return read_completion(found, request, queued, self.names)
                except UnknownVersion as error:
                    if self._router is None:
                        raise
                    # A server that has just been started again, and is not loaded yet; the router does not ask.
                    broken += 1
                    await self._wait_for_router(broken, f"asks servers that this run did not load: {error}")
                    continue
            if self._router is not None and status in ROUTER_FAILURES:
                broken += 1
                await self._wait_for_router(broken, f"answers with {status}: {_reason(found.decode(errors='replace'))}")
                continue
            if status in (429, 503):
                await asyncio.sleep(BUSY_SECONDS[min(busy, len(BUSY_SECONDS) - 1)])
                busy += 1
                continue
            raise self._refusal(status, found, request)

    async def _wait_for_router(self, failures: int, reason: str) -> None:
        """The router's failure says nothing about this server, which is watched by itself."""
        if failures > len(ROUTER_SECONDS):
            raise EngineError(f"SGLang's router at {self._router} (serving.router) {reason}")
        await asyncio.sleep(ROUTER_SECONDS[failures - 1])

    async def _post(self, body: bytes) -> tuple[int, Any]:
        async with self._requests.post(self._generate_url, data=body) as response:
            raw = await response.read()
        return response.status, _parsed(raw) if response.status == 200 else raw

    async def control(
        self, path: str, body: Mapping[str, Any] | None = None, *, method: str = "POST", slow: bool = False
    ) -> Any:
        """The answer of a control route, parsed where it is JSON.

        Args:
            slow: it may take as long as it takes.

        Raises:
            EngineUnavailable: no answer, or none in time.
            EngineError: the server says no; with its reason.
        """
        status, text = await self.ask(path, body, method=method, slow=slow)
        if status != 200:
            raise self._failure(path, status, text)
        with suppress(ValueError):
            return json.loads(text)
        return text

    async def ask(
        self, path: str, body: Mapping[str, Any] | None = None, *, method: str = "POST", slow: bool = False
    ) -> tuple[int, str]:
        """Status and text of a control route, whatever they are."""
        timeout = None if slow else self._answer_timeout
        return await self._ask(self._control, self.url, path, body, method, timeout)

    async def _ask(
        self, session: aiohttp.ClientSession, url: str, path: str, body: Any, method: str, timeout: float | None
    ) -> tuple[int, str]:
        try:
            async with (
                asyncio.timeout(timeout),
                session.request(method, url + path, json=body if method == "POST" else None) as response,
            ):
                return response.status, await response.text()
        except TimeoutError:
            raise EngineUnavailable(f"SGLang at {self.url} did not answer {path} within {timeout:g} s") from None
        except DISCONNECTED as error:
            raise self._unavailable(error) from error

    async def abort(self, request_id: str | None) -> None:
        """Ends one request that is in flight here, wherever a router brought it, or all that the server has."""
        if request_id is None:
            await self.control("/abort_request", {"abort_all": True})
        elif request_id in self._sent:
            rid = self._sent[request_id]
            await asyncio.gather(self.control("/abort_request", {"rid": rid}), self._abort_on(self._peers, rid))

    def _abort_beside(self, request_id: str) -> None:
        """Nobody waits for the response, and nobody needs to know whether this reaches the server."""
        if request_id not in self._sent:
            return
        task = asyncio.create_task(self._abort_on([self.url, *self._peers], self._sent[request_id]))
        self._aborting.add(task)
        task.add_done_callback(self._aborting.discard)

    async def _abort_on(self, urls: Sequence[str], rid: str) -> None:
        for url in urls:
            with suppress(EngineError):
                await self._ask(self._aborts, url, "/abort_request", {"rid": rid}, "POST", self._answer_timeout)

    def _unavailable(self, error: BaseException) -> EngineUnavailable:
        return EngineUnavailable(f"SGLang at {self.url} does not answer: {type(error).__name__}: {error}")

    def _failure(self, path: str, status: int, text: str, url: str | None = None) -> EngineError:
        if status in (401, 403):
            return EngineError(
                f"SGLang at {url or self.url} refuses the key for {path}; serving.api_key_env names the variable that "
                "holds it"
            )
        return EngineError(f"SGLang at {self.url} answers {path} with {status}: {_reason(text)}")

    def _refusal(self, status: int, raw: bytes, request: GenerationRequest) -> EngineError:
        text = raw.decode(errors="replace")
        if status in (401, 403):
            return self._failure("/generate", status, text, self._router)
        return RequestRefused(f"request {request.request_id!r}: SGLang answers with {status}: {_reason(text)}")


def generation_body(request: GenerationRequest, rid: str) -> bytes:
    """What `/generate` takes."""
    wanted = request.sampling
    sampling: dict[str, Any] = {
        "max_new_tokens": wanted.max_new_tokens,
        "temperature": wanted.temperature,
        "top_p": wanted.top_p,
        "top_k": wanted.top_k,
        "min_p": wanted.min_p,
        "sampling_seed": wanted.seed,  # one each: without, deterministic inference makes siblings alike
        "skip_special_tokens": False,
        "no_stop_trim": True,
    }
    if wanted.stop:
        sampling["stop"] = list(wanted.stop)
    if wanted.stop_token_ids:
        sampling["stop_token_ids"] = list(wanted.stop_token_ids)
    return orjson.dumps(
        {
            "rid": rid,
            "input_ids": request.input_ids,
            "sampling_params": sampling,
            "return_logprob": True,
            "logprob_start_len": -1,
            "stream": False,
        }
    )


def read_completion(found: Any, request: GenerationRequest, queued: float, names: VersionNames = PLAIN) -> Completion:
    """A reply of `/generate`; EngineError if it lacks what a trainer must know of every token."""
    try:
        meta = found["meta_info"]
        tokens: list[list[Any]] = meta.get("output_token_logprobs") or []
        ids = [token[1] for token in tokens]
        if not ids and meta.get("completion_tokens"):
            raise ValueError(f"{meta['completion_tokens']} tokens without log-probabilities")
        given = found.get("output_ids")
        if given is not None and list(given) != ids:
            raise ValueError(f"{len(given)} output_ids, but log-probabilities of {len(ids)} others")
        seconds = float(meta.get("e2e_latency") or 0.0)
        end = time.time()
        return Completion(
            request_id=request.request_id,
            output_ids=ids,
            logprobs=[float(token[0]) for token in tokens],
            weight_versions=_spans(meta, len(ids), names),
            finish_reason=_finish_reason(meta["finish_reason"]),
            seed=request.sampling.seed,
            timing={"queued": queued, "start": max(queued, end - seconds), "end": end},
        )
    except UnknownVersion as error:
        raise UnknownVersion(f"SGLang's reply to {request.request_id!r}: {error}") from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise EngineError(f"SGLang's reply to {request.request_id!r} cannot be read: {error!r}") from error


def _spans(meta: Mapping[str, Any], length: int, names: VersionNames) -> list[VersionSpan]:
    """The versions of the tokens; a reply of one version alone may name just that."""
    if not length:
        return []
    given = meta.get("weight_versions") or [{"version": meta["weight_version"], "start": 0, "end": length}]
    spans = [VersionSpan(names.number(span["version"]), span["start"], span["end"]) for span in given]
    spans = [span for span in spans if span.end > span.start]
    ends = [0, *(span.end for span in spans)]
    if [span.start for span in spans] != ends[:-1] or ends[-1] != length:
        raise ValueError(f"weight_versions {given} do not cover {length} tokens")
    return spans


def _finish_reason(given: Mapping[str, Any] | None) -> FinishReason:
    kind = (given or {}).get("type")
    if kind == "stop":
        return "stop"
    if kind == "length":
        return "length"
    if kind == "abort":
        return "abort"
    raise ValueError(f"finish_reason {given!r}")


def _parsed(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except ValueError as error:
        raise EngineError(f"SGLang's reply is not JSON: {raw[:200]!r}") from error


def _reason(text: str) -> str:
    """SGLang's own words, from the shapes in which its routes wrap them."""
    with suppress(ValueError, AttributeError):
        found = json.loads(text)
        error = found.get("error", found)
        words = error.get("message", error) if isinstance(error, dict) else error
        return str(words)[:500]
    return text.strip()[:500] or "no reason"


def allow_open_files(count: int) -> None:
    """A connection is an open file, and many systems begin with a limit of 1,024 of them, far below what they allow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
