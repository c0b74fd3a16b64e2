"""Whole runs on real SGLang servers."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import digit_verifier
import psutil
import pytest
import tomli_w
from driving import run_and_watch, session_of
from real_sglang import KEY, MODEL, python, routed, servers_of
from safetensors.torch import load_file, save_file
from test_async import check_bounds, saved, versions

from reroll.api import WeightBucket
from reroll.publication.distributed import DistributedTransport, DistributedTransportConfig
from reroll.publication.transports import DiskTransport, FileTransportConfig

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(580)]

CONFIG = Path(__file__).parents[1] / "configs" / "sglang-cpu.toml"
MODES = {"barrier": True, "engine_drain": True, "refresh": False}
"""Mode → whether its groups are of one version."""


def attached_run(run_file, servers, monkeypatch, **changes):
    """The run file of `configs`, on servers that run already."""
    monkeypatch.setenv("REROLL_TEST_KEY", KEY)
    table = tomllib.loads(CONFIG.read_text())
    del table["sglang"], table["serving"]["python"], table["serving"]["num_engines"]
    table["serving"] |= {"urls": [server.url for server in servers], "api_key_env": "REROLL_TEST_KEY"}
    for section, values in changes.items():
        if values is None:
            del table[section]
        else:
            table[section] |= values
    return run_file(tomli_w.dumps(table))


def gaps(output):
    """By step, how far the log-probabilities of trainer and engine were apart, on average over tokens."""
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [line["train/train_rollout_logprob_abs_diff"] for line in lines if "train/loss" in line]


@pytest.mark.parametrize("transport", ["distributed", "disk"])
@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[] if mode == "refresh" else pytest.mark.slow) for mode in MODES]
)
def test_an_asynchronous_run_loses_nothing_and_mixes_versions_under_refresh_alone(
    run_file, tmp_path, monkeypatch, sglang_servers, mode, transport
):
    serving = {"publication_mode": mode, "transport": transport, "check_weight_update_equal": True}
    # One group after another, of responses that go on to their limit, since at such a temperature the token that ends
    # one is as rare as any: a collection takes several times as long as a step on it, on a busy machine too, so that
    # some responses are under way whenever weights come.
    rollout = {"num_rollout": 5, "rollout_batch_size": 16, "n_samples_per_prompt": 4, "group_filters": []}
    rollout |= {"temperature": 50.0, "rollout_max_response_len": 48}
    one_by_one = {"max_concurrent_samples": 4}
    data = {"task_set": {"name": "addition", "verifier": "digits"}, "verifiers": ["digits"]}
    sections = {"serving": serving, "rollout": rollout, "data": data, "async": one_by_one}
    run = attached_run(run_file, sglang_servers, monkeypatch, **sections)
    output = tmp_path / "out"
    seen = run_and_watch(run, output, plugin=digit_verifier)
    assert seen.summary.steps == 5
    check_bounds(output, seen, bound=1, homogeneous=MODES[mode], siblings=4)
    mixed = sum(len(versions(record)) > 1 for records in saved(output) for record in records)
    assert bool(mixed) is not MODES[mode]
    assert seen.summary.ledger["failed"] == 0
    assert seen.summary.engine_restarts == 0
    digests = list(zip(seen.engine_weights[::2], seen.engine_weights[1::2], strict=True))
    assert all(one == other for one, other in digests)
    assert len(set(digests)) == len(digests)
    print(f"{mode}, {transport}: mixed responses {mixed}, gaps {gaps(output)}")


@pytest.mark.parametrize("mode", ["refresh", pytest.param("barrier", marks=pytest.mark.slow)])
def test_a_run_through_sglangs_own_router_loses_nothing(run_file, tmp_path, monkeypatch, sglang_servers, mode):
    with routed(sglang_servers, tmp_path) as url:
        serving = {"publication_mode": mode, "router": url, "check_weight_update_equal": True}
        rollout = {"num_rollout": 6, "group_filters": []}
        run = attached_run(run_file, sglang_servers, monkeypatch, serving=serving, rollout=rollout)
        output = tmp_path / "out"
        seen = run_and_watch(run, output)
    assert seen.summary.steps == 6
    check_bounds(output, seen, bound=1, homogeneous=MODES[mode], siblings=8)
    assert seen.summary.ledger["failed"] == seen.summary.engine_restarts == 0


def test_every_transport_brings_the_same_weights(run_file, tmp_path, monkeypatch, sglang_servers):
    """To the bit: what a server holds after a broadcast is what it holds after it has read files. In between it gets
    other weights, so that nothing is left of the time before."""
    transports = [
        DistributedTransport(
            DistributedTransportConfig(weight_sync_mode="flattened", update_weight_buffer_size=200_000)
        ),
        DistributedTransport(DistributedTransportConfig(weight_sync_mode="per_tensor")),
        DiskTransport(FileTransportConfig(update_weight_buffer_size=200_000)),
    ]
    other = tmp_path / "other"
    other.mkdir()
    tensors = load_file(MODEL / "model.safetensors")
    save_file({name: tensor * 1.5 for name, tensor in tensors.items()}, other / "model.safetensors")
    buckets = [WeightBucket(str(other / "model.safetensors"), tuple(tensors), 1)]

    async def body():
        digests = []
        async with session_of(attached_run(run_file, sglang_servers, monkeypatch), tmp_path / "out") as session:
            publisher = session.publisher
            for version, transport in enumerate(transports, 1):
                for engine in session.engines:
                    await engine.stage_weights(buckets)
                    await engine.commit_weights(99)
                    digests.append(await engine.weights_digest())
                kept, publisher.transport = publisher.transport, transport
                await publisher.publish(version)
                await transport.close()
                publisher.transport = kept
                digests += [await engine.weights_digest() for engine in session.engines]
                assert [await engine.weight_version() for engine in session.engines] == [version] * 2
        return digests

    found = asyncio.run(body())
    assert len(set(found[0:2] + found[4:6] + found[8:10])) == 1
    assert len(set(found[2:4] + found[6:8] + found[10:12])) == 1
    assert found[0] != found[2]


def test_in_float32_trainer_and_server_agree(run_file, tmp_path, monkeypatch, sglang_servers):
    """What remains is the order of additions; a wrong cache, or weights of another version, would show."""
    rollout = {"num_rollout": 4, "group_filters": []}
    run = attached_run(run_file, sglang_servers, monkeypatch, rollout=rollout, **{"async": None})
    run_and_watch(run, tmp_path / "out")
    assert max(gaps(tmp_path / "out")) < 1e-4


@pytest.mark.slow
def test_a_server_that_is_killed_comes_back_or_ends_the_run_and_no_prompt_is_lost(run_file, tmp_path):
    """Launched by the run, so that it starts another one."""
    table = tomllib.loads(CONFIG.read_text())
    table["serving"]["python"] = python()
    table["rollout"] |= {"num_rollout": 1000, "group_filters": []}
    output = tmp_path / "out"
    run = run_file(tomli_w.dumps(table))
    command = [sys.executable, "-m", "reroll", "train", str(run), "--set", f"output.dir={str(output)!r}"]
    with (tmp_path / "printed").open("wb") as printed:
        training = subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT, env=os.environ)
    try:
        metrics = output / "metrics.jsonl"
        _until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) >= 3, training, 300)
        servers = servers_of(training.pid)
        victim = servers[0]
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        _until(lambda: _restarts(metrics) == 1, training, 120)
        back = time.monotonic() - killed
        steps = len(metrics.read_text().splitlines())
        _until(lambda: len(metrics.read_text().splitlines()) >= steps + 3, training, 120)
        servers += servers_of(training.pid)
    finally:
        training.send_signal(signal.SIGINT)
        training.wait(120)
    print(f"back after {back:.0f} s")
    summary = json.loads((output / "summary.json").read_text())
    ledger = summary["ledger"]
    assert ledger["dispatched"] == sum(count for name, count in ledger.items() if name != "dispatched")
    assert ledger["failed"] == 0
    for step, records in enumerate(saved(output)):
        for record in records:
            if record["info"]["reroll"]["disposition"] == "consumed":
                assert step - min(versions(record)) <= 1
    assert len(set(servers)) == 3
    assert not any(map(psutil.pid_exists, servers))


def _until(holds, process, seconds):
    deadline = time.monotonic() + seconds
    while not holds():
        assert process.poll() is None, "the run has ended"
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.5)


def _restarts(metrics):
    """Restarts that are over: none counts while the last publication missed an engine."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    whole = [line["publication/engines"] for line in lines if "publication/engines" in line][-1] == 2
    return sum(line.get("engines/restarts", 0) for line in lines) if whole else 0


def test_a_model_on_a_server_calls_its_tool_and_its_turns_extend_each_other(run_file, tmp_path):
    """The server is the run's own; what it samples is kept as it is over all turns."""
    table = tomllib.loads(CONFIG.read_text())
    table["model"]["path"] = "builtin:tiny-tools"
    table["data"] = {"task_set": {"name": "calculations", "verifier": "digits"}, "verifiers": ["digits"]}
    table["serving"] |= {"num_engines": 1, "python": python()}
    table["rollout"] |= {
        "num_rollout": 2,
        "rollout_batch_size": 4,
        "rollout_max_prompt_len": 96,
        "rollout_max_response_len": 64,
        "rollout_max_context_len": 320,
        "harness": {"name": "tool_loop", "compact_at": 72},
        "group_filters": [],
    }
    output = tmp_path / "out"
    run_and_watch(run_file(tomli_w.dumps(table)), output, plugin=digit_verifier)
    records = [record for step in saved(output) for record in step]
    assert sum(record["metrics"]["tools/calls"] for record in records) > len(records)
    assert sum(record["metrics"]["tools/malformed"] for record in records) < len(records) / 4
    origins = {node["origin"] for record in records for node in record["nodes"]}
    assert origins <= {None, "compaction", "rendering"}
    whole = [record for record in records if not record["errors"]]
    assert len(whole) > len(records) * 0.9
    assert max(gaps(output)) < 0.1
