"""A stand-in for an SGLang server, with SGLang's routes, replies and rules, and faults on demand.

    python simulated_server.py [--delay SECONDS] [--port PORT] …      prints the port that it listens on

For tests of what a client does when a server misbehaves, and for thousands of requests in flight on one core. There is
no model: tokens follow from a request's seed, or its id where it has none. A request takes `--delay` seconds while the
server is not paused, and its tokens appear evenly over them. Weights are what was said about them: no process group is
joined, and of a folder it matters whether it exists.

The rules are those of SGLang 0.5.23, as its own server was seen to follow them. `GET /simulate` gives counts and what
was loaded; `POST /simulate` orders faults, see `Fault`. Keys come from SIMULATED_API_KEY and SIMULATED_ADMIN_API_KEY.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
from collections import Counter, deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aiohttp import web
from simulated_scheduler import END_OF_SEQUENCE, Refused, Scheduler

OPEN_ROUTES = ("/health", "/ready", "/simulate")
NORMAL_ROUTES = ("/generate", "/model_info", "/server_info")
"""Under the API key; all other routes are under the admin key where there is one."""


@dataclass
class Fault:
    """Something that goes wrong with the next `times` requests of `path`.

    Attributes:
        kind: `drop` closes the connection without a reply; `status` replies with `status` and `message`; `delay` waits
            for `seconds` before anything is done; `hang` never replies; `die` ends the process.
        after: the request is carried out first, and its reply is what is lost, delayed or replaced.
        skip: requests that are let through before the first fault.
    """

    path: str
    kind: str
    times: int = 1
    after: bool = False
    skip: int = 0
    status: int = 500
    message: str = "simulated"
    seconds: float = 0.0

    def strikes(self) -> bool:
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


def outcome(success: bool, message: str, **more: Any) -> web.Response:
    return web.json_response({"success": success, "message": message, **more}, status=200 if success else 400)


routes = web.RouteTableDef()
SCHEDULER = web.AppKey("scheduler", Scheduler)
FAULTS = web.AppKey("faults", list[Fault])
COUNTS = web.AppKey("counts", Counter[str])
CALLS = web.AppKey("calls", deque[tuple[str, Any]])
"""Control routes that were posted to, the last ones, with what they were told."""


def server(request: web.Request) -> Scheduler:
    return request.app[SCHEDULER]


async def body_of(request: web.Request) -> dict[str, Any]:
    given = await request.json() if request.body_exists else {}
    if not isinstance(given, dict):
        raise Refused("the body is no JSON object")
    return given


@routes.post("/generate")
async def generate(request: web.Request) -> web.Response:
    return web.json_response(await server(request).generate(await body_of(request)))


@routes.get("/model_info")
async def model_info(request: web.Request) -> web.Response:
    one = server(request)
    return web.json_response(
        {
            "model_path": one.options.model_path,
            "is_generation": True,
            "weight_version": one.version,
            "load_format": one.options.load_format,
            "architectures": [one.options.architecture],
        }
    )


@routes.get("/server_info")
async def server_info(request: web.Request) -> web.Response:
    return web.json_response({"version": "0.5.23", "tp_size": 1, "dp_size": 1})


@routes.get("/ready")
async def ready(request: web.Request) -> web.Response:
    return web.Response(status=200 if server(request).paused is None else 503)


@routes.get("/health")
@routes.get("/health_generate")
async def health(request: web.Request) -> web.Response:
    one = server(request)
    if one.paused is not None:
        # It generates a token, which does not come.
        await asyncio.sleep(one.options.health_timeout)
    return web.Response(status=200 if one.paused is None else 503)


@routes.post("/abort_request")
async def abort_request(request: web.Request) -> web.Response:
    body = await body_of(request)
    server(request).abort(body.get("rid") or "", bool(body.get("abort_all")))
    return web.Response()


@routes.post("/pause_generation")
async def pause_generation(request: web.Request) -> web.Response:
    mode = (await body_of(request)).get("mode", "abort")
    if mode not in ("abort", "retract", "in_place"):
        raise Refused(f"mode is {mode!r}")
    server(request).pause(mode)
    return web.json_response({"message": "Generation paused successfully.", "status": "ok"})


@routes.post("/continue_generation")
async def continue_generation(request: web.Request) -> web.Response:
    server(request).resume()
    return web.json_response({"message": "Generation continued successfully.", "status": "ok"})


@routes.route("*", "/flush_cache")
async def flush_cache(request: web.Request) -> web.Response:
    if server(request).flush():
        return web.Response(text="Cache flushed.\n")
    return web.Response(text="Flush cache failed.\n", status=400)


@routes.post("/begin_weight_update")
async def begin_weight_update(request: web.Request) -> web.Response:
    one = server(request)
    async with one.exclusive():
        if one.session:
            return outcome(False, "a weight-update session is already open; call end_weight_update() first")
        one.session = True
        return outcome(True, "Success")


@routes.post("/end_weight_update")
async def end_weight_update(request: web.Request) -> web.Response:
    one = server(request)
    async with one.exclusive():
        if not one.session:
            return outcome(False, "no weight-update session is open; call begin_weight_update() first")
        one.session = False
        return outcome(True, "Success")


@routes.post("/init_weights_update_group")
async def init_weights_update_group(request: web.Request) -> web.Response:
    server(request).groups.add((await body_of(request)).get("group_name", "weight_update_group"))
    return outcome(True, "Succeeded to initialize custom process group.")


@routes.post("/destroy_weights_update_group")
async def destroy_weights_update_group(request: web.Request) -> web.Response:
    name, groups = (await body_of(request)).get("group_name", "weight_update_group"), server(request).groups
    if name not in groups:
        return outcome(False, "The group to be destroyed does not exist.")
    groups.remove(name)
    return outcome(True, "Succeeded to destroy custom process group.")


@routes.post("/update_weights_from_distributed")
@routes.post("/update_weights_from_tensor")
async def update_weights_in_session(request: web.Request) -> web.Response:
    one, body, route = server(request), await body_of(request), request.path.strip("/")
    if body.get("abort_all_requests"):
        one.abort(everything=True)
    async with one.exclusive():
        if not one.session:
            return outcome(False, f"{route} must run between begin_weight_update() and end_weight_update()")
        if route.endswith("distributed"):
            if (name := body.get("group_name", "weight_update_group")) not in one.groups:
                return outcome(False, f"Failed to receive weights: Group {name} not in {sorted(one.groups)}")
            if not len(body["names"]) == len(body["dtypes"]) == len(body["shapes"]):
                return outcome(False, "Failed to receive weights: names, dtypes and shapes differ in length")
        return outcome(*one.loaded_weights(body.get("names", "tensors"), body))


@routes.post("/update_weights_from_disk")
async def update_weights_from_disk(request: web.Request) -> web.Response:
    one, body = server(request), await body_of(request)
    if body.get("abort_all_requests"):
        one.abort(everything=True)
    async with one.exclusive():
        if not Path(body["model_path"]).is_dir():
            return outcome(False, f"Failed to get weights iterator: {body['model_path']}", num_paused_requests=0)
        # Without a format the server's own is taken: one that was started with random weights makes them again.
        dummy = (body.get("load_format") or one.options.load_format) == "dummy"
        done, message = one.loaded_weights("random" if dummy else body["model_path"], body)
        return outcome(done, message, num_paused_requests=0)


@routes.post("/update_weight_version")
async def update_weight_version(request: web.Request) -> web.Response:
    one, body = server(request), await body_of(request)
    if body.get("abort_all_requests", True):
        one.abort(everything=True)
    one.stamp(body["new_version"])
    return outcome(True, f"Weight version updated to {body['new_version']}", new_version=body["new_version"])


@routes.post("/weights_checker")
async def weights_checker(request: web.Request) -> web.Response:
    checksum = hashlib.sha256(json.dumps(server(request).loaded).encode()).hexdigest()[:16]
    names = [f"model.layers.{number}.mlp.weight" for number in range(server(request).options.layers)]
    ranks = [{"checksums": dict.fromkeys(names, checksum), "per_gpu_checksum": checksum}]
    return outcome(True, "Success.", ranks=ranks, per_engine_checksum=checksum)


@routes.post("/release_memory_occupation")
@routes.post("/resume_memory_occupation")
async def memory_occupation(request: web.Request) -> web.Response:
    one, tags = server(request), (await body_of(request)).get("tags") or ["weights", "kv_cache", "cuda_graph"]
    if request.path.startswith("/resume"):
        one.released -= set(tags)
    elif one.flush():
        one.released |= set(tags)
    else:
        os._exit(1)  # SGLang's scheduler asserts that it is idle
    return web.json_response(None)


@routes.get("/simulate")
async def simulation(request: web.Request) -> web.Response:
    one = server(request)
    return web.json_response(
        {
            "counts": request.app[COUNTS],
            "calls": list(request.app[CALLS]),
            "generated": one.generated,
            "in_flight": len(one.requests),
            "produced": {rid: running.produced() for rid, running in one.requests.items()},
            "waiting_to_write": one.writing,
            "most_in_flight": one.most_in_flight,
            "paused": one.paused,
            "session": one.session,
            "groups": sorted(one.groups),
            "version": one.version,
            "loaded": one.loaded,
            "released": sorted(one.released),
            "faults": [asdict(fault) for fault in request.app[FAULTS] if fault.times],
        }
    )


@routes.post("/simulate")
async def simulate(request: web.Request) -> web.Response:
    """One fault, or a list of them."""
    given = await request.json()
    faults = [Fault(**item) for item in (given if isinstance(given, list) else [given])]
    wrong = [fault.kind for fault in faults if fault.kind not in ("drop", "status", "delay", "hang", "die")]
    if wrong:
        raise Refused(f"no such faults: {wrong}")
    request.app[FAULTS].extend(faults)
    return web.json_response({"faults": len(faults)})


@web.middleware
async def keys(request: web.Request, handler: Any) -> web.StreamResponse:
    """SGLang's rule: probes are open, and where there is an admin key, control takes no other."""
    normal, admin = os.environ.get("SIMULATED_API_KEY"), os.environ.get("SIMULATED_ADMIN_API_KEY")
    wanted = normal if request.path in NORMAL_ROUTES else admin or normal
    if wanted and not request.path.startswith(OPEN_ROUTES):
        kind, _, key = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer" or key != wanted:
            return web.json_response({"error": "Unauthorized"}, status=401)
    return await handler(request)


@web.middleware
async def faults(request: web.Request, handler: Any) -> web.StreamResponse:
    if request.path == "/simulate":
        return await handler(request)
    request.app[COUNTS][request.path] += 1
    if request.method == "POST" and request.path != "/generate":
        request.app[CALLS].append((request.path_qs, await request.json() if request.body_exists else None))
    ordered = request.app[FAULTS]
    fault = next((item for item in ordered if item.path == request.path and item.times), None)
    if fault is None or not fault.strikes():
        return await handler(request)
    reply = await handler(request) if fault.after else None
    if fault.kind == "die":
        os._exit(9)
    if fault.kind == "hang":
        await asyncio.Event().wait()
    if fault.kind == "drop":
        assert request.transport is not None
        request.transport.abort()
        return web.Response()
    if fault.kind == "status":
        said = {"success": False, "message": fault.message, "error": {"message": fault.message}}
        return web.json_response(said, status=fault.status)
    await asyncio.sleep(fault.seconds)
    return reply if reply is not None else await handler(request)


@web.middleware
async def refusals(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refused as error:
        return web.json_response({"error": {"message": str(error)}}, status=400)


async def serve(options: argparse.Namespace) -> None:
    application = web.Application(middlewares=[keys, faults, refusals], client_max_size=2**30)
    application[SCHEDULER], application[FAULTS], application[COUNTS] = Scheduler(options), [], Counter()
    application[CALLS] = deque(maxlen=1000)
    application.add_routes(routes)
    runner = web.AppRunner(application, handler_cancellation=True, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", options.port, backlog=4096)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds that each request takes")
    parser.add_argument("--vocabulary", type=int, default=100_000, help=f"token ids; {END_OF_SEQUENCE} ends a response")
    parser.add_argument("--context-length", type=int, default=1024)
    parser.add_argument("--model-path", default="simulated")
    parser.add_argument("--architecture", default="SimulatedForCausalLM")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--weight-version", default="default")
    parser.add_argument("--health-timeout", type=float, default=20.0, help="seconds until a health check gives up")
    parser.add_argument("--notice-disconnect", type=float, default=4.0, help="seconds until a lost client is noticed")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
