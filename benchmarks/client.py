"""What an SGLang server costs the controller: its CPU time and its memory for each of thousands of requests in flight.

    python benchmarks/client.py [--in-flight 2000] [--tokens 16 256 1024] [--rounds 3] [--json FILE]

The server is a simulated one, in a process of its own, that holds all requests until the last one has come. Four ways
to ask it take turns in this process:

- `bare`: an aiohttp post of a body that was made before, and `json.loads` of the reply;
- `client`: `reroll.serving.sglang.client`, from a request to a completion;
- `engine`: the SGLang engine, which checks requests and may have to let go of them;
- `router`: the engine behind the router, as a run asks it.

Each has new connections every time. CPU time is `time.process_time` of this process, from before the first request is
made to after the last response, and is 1 ms a request at most; ratios are to `bare`, medians over rounds. Memory is
what the resident set has grown by when all requests are in flight, in a process of its own for each way.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from reroll.api import GenerationRequest, SamplingParams
from reroll.placement.local import LocalPlacement
from reroll.serving.router import LeastOutstandingTokensRouter
from reroll.serving.sglang.client import SGLangClient, allow_open_files, generation_body
from reroll.serving.sglang.engine import SGLangEngine, SGLangEngineConfig
from reroll.serving.sglang.server import AttachedServer, ServerSettings

SERVER = Path(__file__).parents[1] / "packages" / "core" / "tests" / "serving_sglang" / "simulated_server.py"
METHODS = ("bare", "client", "engine", "router")
PROMPT_TOKENS = 64
VOCABULARY = 100_000
LIMIT_MS = 1.0
PAGE = os.sysconf("SC_PAGE_SIZE")

Ask = Callable[[GenerationRequest], Awaitable[int]]
"""Gives the number of tokens of the response."""


def requests(count: int, tokens: int) -> list[GenerationRequest]:
    prompt = [1 + number * 7919 % (VOCABULARY - 1) for number in range(PROMPT_TOKENS)]
    return [
        GenerationRequest(f"{number:06}", list(prompt), SamplingParams(max_new_tokens=tokens, seed=number))
        for number in range(count)
    ]


def settings(url: str, folder: Path, connections: int) -> ServerSettings:
    (folder / "config.json").write_text(json.dumps({"vocab_size": VOCABULARY, "max_position_embeddings": 32768}))
    return ServerSettings(
        name="engine-0", model_directory=folder, version=0, placement=LocalPlacement(), log=folder / "log", url=url,
        key="", router=None, python=sys.executable, arguments=(), environment={}, ranks=1, device="cpu",
        connections=connections, startup_timeout=60.0, health_interval=600.0, health_timeout=60.0, request_timeout=None,
    )  # fmt: skip


@asynccontextmanager
async def way(method: str, url: str, asked: list[GenerationRequest], folder: Path) -> AsyncIterator[Ask]:
    """A way to ask the server."""
    count = len(asked)
    if method == "bare":
        allow_open_files(count + 256)
        bodies = {one.request_id: generation_body(one, f"{one.request_id:>032}") for one in asked}
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=count), timeout=timeout) as session:

            async def post(one: GenerationRequest) -> int:
                headers = {"Content-Type": "application/json"}
                async with session.post(f"{url}/generate", data=bodies[one.request_id], headers=headers) as response:
                    return len(json.loads(await response.read())["output_ids"])

            yield post
        return
    if method == "client":
        client = SGLangClient(url, "", connections=count)
        generate: Callable[[GenerationRequest], Awaitable[Any]] = client.generate
        close = client.close
    else:
        engine = SGLangEngine(SGLangEngineConfig(), AttachedServer(settings(url, folder, count)))
        await engine._begin()
        await engine.client.control("/update_weight_version", {"new_version": "0", "abort_all_requests": False})
        engine._sound.set()
        router = LeastOutstandingTokensRouter([engine])
        generate, close = engine.generate, engine.close
        if method == "router":
            generate = lambda one: router.generate(one.request_id, one)  # noqa: E731

    async def respond(one: GenerationRequest) -> int:
        return len((await generate(one)).output_ids)

    try:
        yield respond
    finally:
        await close()


async def control(url: str, path: str) -> Any:
    """Something said to the simulated server. A few times a round: it is counted, and too little to matter."""
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        if path == "/simulate":
            async with session.get(url + path) as reply:
                return await reply.json()
        async with session.post(url + path, json={"mode": "retract"} if "pause" in path else {}) as reply:
            assert reply.status == 200


async def once(method: str, url: str, asked: list[GenerationRequest], folder: Path) -> tuple[float, int]:
    """CPU seconds of all requests, and bytes that the resident set has grown by when all are in flight."""
    async with way(method, url, asked, folder) as ask:
        await control(url, "/pause_generation")  # what comes is held
        gc.collect()
        resident = resident_bytes()
        began = time.process_time()
        tasks = [asyncio.ensure_future(ask(one)) for one in asked]
        while True:
            await asyncio.sleep(0.5)
            state = await control(url, "/simulate")
            if state["in_flight"] == len(asked):
                break
            if ended := [task for task in tasks if task.done()]:
                raise SystemExit(f"a request ended before all were in flight: {ended[0]}")
        grown = resident_bytes() - resident
        await control(url, "/continue_generation")
        counts = await asyncio.gather(*tasks)
        seconds = time.process_time() - began
    wanted = [one.sampling.max_new_tokens for one in asked]
    short = sum(count < want for count, want in zip(counts, wanted, strict=True))
    if short > len(asked) // 10:
        raise SystemExit(f"{short} of {len(asked)} responses were shorter than asked for")
    return seconds, grown


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


@asynccontextmanager
async def server() -> AsyncIterator[str]:
    options = ["--weight-version", "0", "--vocabulary", str(VOCABULARY), "--context-length", "32768"]
    process = subprocess.Popen([sys.executable, str(SERVER), *options], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()


async def measure(count: int, tokens: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Milliseconds of CPU a request for each way in each round, and the ratios to the bare one."""
    found: dict[str, list[float]] = {method: [] for method in METHODS}
    asked = requests(count, tokens)
    async with server() as url:
        for number in range(-1, rounds):
            for method in METHODS:
                some = asked[:100] if number < 0 else asked  # the first ones warm up
                seconds, _ = await once(method, url, some, folder)
                if number >= 0:
                    found[method].append(1000 * seconds / count)
    ratios = {
        method: statistics.median(a / b for a, b in zip(found[method], found["bare"], strict=True))
        for method in METHODS[1:]
    }
    return {"tokens": tokens, "in_flight": count, "milliseconds": found, "ratios": ratios}


async def grown_by(method: str, count: int, folder: Path) -> float:
    """KiB of memory a request in flight."""
    async with server() as url:
        asked = requests(count, 16)
        await once(method, url, asked[:10], folder)
        _, grown = await once(method, url, asked, folder)
    return grown / 1024 / count


def in_a_process(method: str, count: int) -> float:
    command = [sys.executable, __file__, "--memory-of", method, "--in-flight", str(count)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def show(result: dict[str, Any]) -> None:
    print(f"{result['in_flight']:,} requests in flight, responses of {result['tokens']:,} tokens")
    for method, figures in result["milliseconds"].items():
        ratio = f"{result['ratios'][method]:.2f}x of bare" if method in result["ratios"] else ""
        print(f"  {method:<8}{statistics.median(figures):7.3f} ms of CPU a request  {ratio}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in-flight", type=int, default=2000)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 256, 1024], help="of each response")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-of", choices=METHODS, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if options.memory_of:
            print(asyncio.run(grown_by(options.memory_of, options.in_flight, folder)))
            return
        results = []
        for tokens in options.tokens:
            results.append(asyncio.run(measure(options.in_flight, tokens, options.rounds, folder)))
            show(results[-1])
    memory = {method: in_a_process(method, options.in_flight) for method in METHODS}
    for method, kib in memory.items():
        print(f"  {method:<8}{kib:7.1f} KiB of memory a request in flight  {kib / memory['bare']:.2f}x of bare")
    worst = max(statistics.median(result["milliseconds"]["router"]) for result in results)
    print(f"at most {worst:.3f} ms of controller time a request, and {LIMIT_MS:.0f} ms are allowed")
    if options.json:
        numbers = {"results": results, "memory_kib": memory, "limit_milliseconds": LIMIT_MS}
        options.json.write_text(json.dumps(numbers, indent=2) + "\n")
    if worst > LIMIT_MS:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
