"""What SGLang's tokenizer manager and scheduler do with requests, of what a trainer relies on; `simulated_server.py`
gives it routes.

The rules are those of SGLang 0.5.23, as its own server was seen to follow them.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

END_OF_SEQUENCE = 0
SAMPLING = {
    *("max_new_tokens", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "min_new_tokens", "n", "ignore_eos"),
    *("skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "logit_bias", "sampling_seed"),
}

Sampled = tuple[list[int], list[float], dict[str, Any]]
"""Tokens, their log-probabilities, and the finish reason."""


@dataclass
class Running:
    """One request. `ran` are seconds of work until `since`; `since` is None while it stands still."""

    rid: str
    prompt_tokens: int
    tokens: list[int]
    logprobs: list[float]
    finish_reason: dict[str, Any]
    delay: float
    spans: list[tuple[str, int]]
    finished: asyncio.Future[dict[str, Any]]
    arrived: float
    ran: float = 0.0
    since: float | None = None
    timer: asyncio.TimerHandle | None = None
    started: asyncio.Event = field(default_factory=asyncio.Event)
    abort_sent: bool = False
    aborted: bool = False
    retractions: int = 0

    def produced(self) -> int:
        now = self.ran + (time.monotonic() - self.since if self.since is not None else 0.0)
        return len(self.tokens) if now >= self.delay else int(len(self.tokens) * now / self.delay)


class Refused(Exception):
    """A request that SGLang answers with 400."""


class Scheduler:
    """What SGLang's tokenizer manager and scheduler do, of what a trainer relies on."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.requests: dict[str, Running] = {}
        self.paused: str | None = None
        self.waiters: list[asyncio.Future[None]] = []
        self.tasks: set[asyncio.Task[Any]] = set()
        self.writing = 0
        self.session = False
        self.groups: set[str] = set()
        self.version = options.weight_version
        self.loaded: list[Any] = []
        self.released: set[str] = set()
        self.generated: Counter[str] = Counter()
        self.most_in_flight = 0

    # Requests

    async def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        running = self._admit(body)
        work = self._in_background(self._work(running))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self._in_background(self._notice_disconnect(running))
            raise

    async def _work(self, running: Running) -> dict[str, Any]:
        await self._until(lambda: self.paused is None and not self.writing)
        self._start(running)
        return await running.finished

    async def _notice_disconnect(self, running: Running) -> None:
        """SGLang looks whether the client is still there every few seconds, and not before the request has started."""
        await running.started.wait()
        await asyncio.sleep(self.options.notice_disconnect)
        if self.requests.get(running.rid) is running:
            self.abort(running.rid)

    def _admit(self, body: dict[str, Any]) -> Running:
        sampling = body.get("sampling_params", {})
        if unknown := set(sampling) - SAMPLING:
            raise Refused(f"unknown field `{min(unknown)}`, expected one of {sorted(SAMPLING)}")
        ids = body.get("input_ids")
        if not ids:
            raise Refused("input_ids cannot be empty." if ids == [] else "Either text or input_ids should be provided.")
        if isinstance(ids[0], list):
            raise Refused("the simulated server takes one prompt a request")
        rid = body.get("rid") or hashlib.blake2b(os.urandom(8), digest_size=16).hexdigest()
        if rid in self.requests:
            raise Refused(f"Duplicate request ID detected: {rid}")
        wanted = sampling.get("max_new_tokens", 128)
        if len(ids) + wanted > self.options.context_length:
            raise Refused(f"Requested token count exceeds the maximum context length of {self.options.context_length}")
        tokens, logprobs, reason = self._sampled(rid, sampling, wanted)
        loop = asyncio.get_running_loop()
        running = Running(
            rid, len(ids), tokens, logprobs, reason, self.options.delay, [], loop.create_future(), time.monotonic()
        )
        self.requests[rid] = running
        self.generated[rid] += 1
        self.most_in_flight = max(self.most_in_flight, len(self.requests))
        return running

    def _sampled(self, rid: str, sampling: dict[str, Any], wanted: int) -> Sampled:
        seed = sampling.get("sampling_seed")
        ends = {END_OF_SEQUENCE, *(sampling.get("stop_token_ids") or ())}
        if sampling.get("ignore_eos"):
            ends = set()
        tokens: list[int] = []
        logprobs: list[float] = []
        for number in self._numbers(rid if seed is None else str(seed), wanted):
            tokens.append(number % self.options.vocabulary)
            logprobs.append(-(number >> 16) / 2**14)
            if tokens[-1] in ends:
                return tokens, logprobs, {"type": "stop", "matched": tokens[-1]}
        return tokens, logprobs, {"type": "length", "length": wanted}

    @staticmethod
    def _numbers(seed: str, wanted: int) -> Iterator[int]:
        drawn = hashlib.shake_128(seed.encode()).digest(4 * wanted)
        yield from (int.from_bytes(drawn[at : at + 4], "big") for at in range(0, len(drawn), 4))

    def _start(self, running: Running) -> None:
        running.started.set()
        if not running.spans:
            running.spans.append((self.version, 0))
        running.since = time.monotonic()
        loop = asyncio.get_running_loop()
        running.timer = loop.call_later(max(running.delay - running.ran, 0.0), self._finish, running)

    def _stop(self, running: Running) -> None:
        if running.since is not None:
            running.ran += time.monotonic() - running.since
            running.since = None
        if running.timer is not None:
            running.timer.cancel()

    def _finish(self, running: Running, reason: dict[str, Any] | None = None) -> None:
        count = len(running.tokens) if reason is None else running.produced()
        self._stop(running)
        del self.requests[running.rid]
        running.finished.set_result(self._reply(running, count, reason or running.finish_reason))
        if self.writing:
            self._changed()

    def _reply(self, running: Running, count: int, reason: dict[str, Any]) -> dict[str, Any]:
        starts = [start for _, start in running.spans[1:]] + [count]
        spans = [
            {"version": version, "start": start, "end": end}
            for (version, start), end in zip(running.spans, starts, strict=True)
            if end > start
        ]
        tokens = running.tokens[:count]
        pairs = zip(running.logprobs, tokens, strict=False)
        return {
            "text": " ".join(map(str, tokens)),
            "output_ids": tokens,
            "meta_info": {
                "id": running.rid,
                "finish_reason": reason,
                "prompt_tokens": running.prompt_tokens,
                "completion_tokens": count,
                "cached_tokens": 0,
                "num_retractions": running.retractions,
                "weight_version": self.version,
                "weight_versions": spans,
                "input_token_logprobs": [],
                "output_token_logprobs": [[logprob, token, None] for logprob, token in pairs],
                "e2e_latency": time.monotonic() - running.arrived,
            },
        }

    def abort(self, rid: str = "", everything: bool = False) -> None:
        """As SGLang does: an id that no request has is ignored, one that is known ends all that begin with it; a
        request that still waits outside the scheduler is missed, and is never asked again."""
        if not everything:
            asked = self.requests.get(rid)
            if asked is None or asked.abort_sent:
                return
            asked.abort_sent = True
        for running in list(self.requests.values()):
            if running.started.is_set() and (everything or running.rid.startswith(rid)):
                if self.paused == "in_place":
                    running.aborted = True  # found out by the next step
                elif self.paused == "retract":
                    self._finish(running, {"type": "abort", "message": "Abort in waiting queue"})
                else:
                    self._finish(running, aborted())

    # Control

    def pause(self, mode: str) -> None:
        self.paused = mode
        if mode == "abort":
            self.abort(everything=True)
            return
        for running in self.requests.values():
            if running.started.is_set():
                self._stop(running)
                running.retractions += mode == "retract"

    def resume(self) -> None:
        self.paused = None
        for running in list(self.requests.values()):
            if running.aborted:
                self._finish(running, aborted())
            elif running.started.is_set() and running.since is None:
                self._start(running)
        self._changed()

    def flush(self) -> bool:
        return self.paused == "retract" or not any(running.started.is_set() for running in self.requests.values())

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Unpaused, a control call waits until nothing runs and lets nothing new in."""
        if self.paused is not None:
            yield
            return
        self.writing += 1
        try:
            await self._until(lambda: not any(item.started.is_set() for item in self.requests.values()))
            yield
        finally:
            self.writing -= 1
            self._changed()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            waiter = asyncio.get_running_loop().create_future()
            self.waiters.append(waiter)
            await waiter

    def _changed(self) -> None:
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def stamp(self, version: str | None) -> None:
        if version is None or version == self.version:
            return
        self.version = version
        for running in self.requests.values():
            if running.started.is_set():
                running.spans.append((version, running.produced()))

    def loaded_weights(self, what: Any, body: dict[str, Any]) -> tuple[bool, str]:
        self.loaded.append(what)
        self.stamp(body.get("weight_version"))
        if body.get("flush_cache", True) and not self.flush():
            return False, (
                "Weights were updated, but the cache was not flushed because requests are still running or queued. "
                "Retract or finish them, then call /flush_cache."
            )
        return True, "Succeeded to update model weights."


def aborted() -> dict[str, Any]:
    return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
