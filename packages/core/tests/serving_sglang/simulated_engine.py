"""Clients and engines on a simulated server, for tests of what they do when it misbehaves."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from zlib import crc32

import aiohttp
import real_sglang

from reroll.api import GenerationRequest, SamplingParams, TensorSpec, WeightBucket, WeightGroup
from reroll.placement.local import LocalPlacement
from reroll.serving.sglang.client import SGLangClient
from reroll.serving.sglang.engine import SGLangEngine, SGLangEngineConfig
from reroll.serving.sglang.server import AttachedServer

PROGRAM = Path(__file__).with_name("simulated_server.py")
SECONDS = 60
"""Until a test that hangs is ended."""


class Simulation:
    """A simulated server from outside."""

    def __init__(self, process, session, url):
        self.process, self.session, self.url = process, session, url

    async def state(self):
        async with self.session.get("/simulate") as reply:
            return await reply.json()

    async def order(self, path, kind, **more):
        """A fault."""
        async with self.session.post("/simulate", json={"path": path, "kind": kind, **more}) as reply:
            assert reply.status == 200

    async def until(self, holds):
        while not holds(await self.state()):
            await asyncio.sleep(0.005)

    async def in_flight(self, count):
        await self.until(lambda state: state["in_flight"] == count)

    async def calls(self, *without):
        return [path for path, _ in (await self.state())["calls"] if path not in without]

    def kill(self):
        self.process.kill()
        self.process.wait()


@asynccontextmanager
async def simulated(*options, port=0, **environment):
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), "--port", str(port), *map(str, options)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(url, connector=connector) as session:
            yield Simulation(process, session, url)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@asynccontextmanager
async def client_of(url, key="", connections=64, **more):
    client = SGLangClient(url, key, connections=connections, **more)
    try:
        yield client
    finally:
        await client.close()


def settings(url, directory, **changes):
    given = {"model_directory": directory, "url": url, "key": "", "startup_timeout": 20.0, "health_timeout": 20.0}
    given["health_interval"] = 600.0
    return real_sglang.settings(LocalPlacement(), directory / "engine.log", **{**given, **changes})


def model_directory(folder):
    config = {
        "vocab_size": 64,
        "max_position_embeddings": 4096,
        "architectures": ["SimulatedForCausalLM"],
        "num_hidden_layers": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@asynccontextmanager
async def engine_of(url, tmp_path, loaded=True, **changes):
    """An engine on a running server; `loaded` with version 1."""
    engine = SGLangEngine(SGLangEngineConfig(), AttachedServer(settings(url, model_directory(tmp_path), **changes)))
    try:
        await engine._begin()
        if loaded:
            await load(engine, tmp_path, 1)
        yield engine
    finally:
        await engine.close()


async def load(engine, folder, version):
    await engine.stage_weights([bucket(folder / f"weights-{version}")])
    return await engine.commit_weights(version)


def bucket(folder, name="x"):
    folder.mkdir(exist_ok=True)
    return WeightBucket(str(folder / f"{name}.safetensors"), (name,), 1)


class Stream:
    """A `WeightStream` of two buckets, of which nothing is sent but notes."""

    group = WeightGroup("group-1", "127.0.0.1", 1, 2, "gloo")
    flattened = True
    buckets = ((TensorSpec("a", "float32", (2, 3)), TensorSpec("b", "bfloat16", (4,))), (TensorSpec("c", "int8", ()),))

    def __init__(self, version):
        self.version, self.sent = version, []

    async def send(self, number):
        self.sent.append(number)


def request(name, tokens=8, seed=None, **sampling):
    seed = crc32(name.encode()) % 2**31 if seed is None else seed
    return GenerationRequest(name, [5, 6], SamplingParams(max_new_tokens=tokens, seed=seed, **sampling))


def start(asked, *requests):
    """Requests to a client or an engine, of which the loop has made the connections' tasks."""
    return [asyncio.ensure_future(asked.generate(one)) for one in requests]


def run(body, seconds=SECONDS):
    async def bounded():
        await asyncio.wait_for(body, seconds)

    asyncio.run(bounded())
