"""`reroll serve` itself: who may ask, where it listens, what it tells, how it ends. And what only it refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path

import psutil
import pytest
from contract_servers import LONG, MODEL, PROMPT, start_reroll
from killing import ended

from reroll.api import WORKER_LOST, RerollError
from reroll.serving.http import app, auth, listening

STOP_SECONDS = 30


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A server of this file alone, whose key stands in a file that it wrote."""
    folder = tmp_path_factory.mktemp("own")
    server = start_reroll(folder, "--key-file", str(folder / "keys" / "mine"), forked=False)
    yield server
    server.stop()


def family(server):
    process = psutil.Process(server.process.pid)
    return [process, *process.children(recursive=True)]


def raw(server, text):
    """The first line of the answer to bytes as they are."""
    where = urllib.parse.urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=30) as connection:
        connection.sendall(text.encode("latin-1"))
        return connection.recv(4096).decode().split("\r\n", 1)[0]


def test_only_loopback_is_listened_on(own):
    listening = [
        connection.laddr
        for process in family(own)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert {address.ip for address in listening} == {"127.0.0.1"}
    assert urllib.parse.urlsplit(own.url).port in {address.port for address in listening}


def test_the_key_stands_in_its_file_alone(own):
    line = re.search(r"the key is in (\S+)", own.log.read_text())
    file = Path(line[1])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert own.call("/generate", {"input_ids": [9999]})[0] == 400
    assert own.call("/nothing")[0] == 404
    # Not even an answer to what is no HTTP may repeat it.
    assert " 400 " in raw(own, f"POST /generate HTTP/1.1\r\nHost: a\r\nAuthorization : Bearer {own.key}\r\n\r\n")
    assert " 400 " in raw(own, f"GET /{own.key} \r\nAuthorization: Bearer {own.key}\r\n\r\n")
    listed = subprocess.run(["ps", "auxww"], capture_output=True, text=True, check=True).stdout
    assert own.key not in listed
    assert own.key not in own.log.read_text()
    for process in family(own):
        assert own.key not in " ".join(process.cmdline())
        assert own.key not in process.environ().values()


def test_only_the_key_itself_opens(own):
    for header in (
        "",
        own.key,
        f"Basic {own.key}",
        f"Bearer {own.key}x",
        f"Bearer {own.key[:-1]}",
        "Bearer ",
        "Bearer \xff",
    ):
        line = raw(own, f"GET /ready HTTP/1.1\r\nHost: a\r\nAuthorization: {header}\r\nConnection: close\r\n\r\n")
        assert " 401 " in line, header
    assert " 200 " in raw(own, f"GET /ready HTTP/1.1\r\nHost: a\r\nAuthorization: bearer {own.key}\r\n\r\n")
    status, answer = own.call("/nothing", key=None)
    assert status == 401
    assert "Authorization: Bearer" in answer["message"]


@pytest.mark.parametrize("field", ["stream", "return_routed_experts", "top_logprobs_num", "priority", "blub"])
def test_what_generate_cannot_do_is_refused_by_name(own, field):
    status, answer = own.call("/generate", {"input_ids": PROMPT, field: 1})
    assert status == 400
    assert field in answer["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/generate", {"input_ids": PROMPT, "stream": True}, "stream = true is not built"),
        ("/generate", {"input_ids": PROMPT, "return_logprob": None, "rid": True}, "(given: true)"),
        ("/v1/chat/completions", {"messages": [{}], "top_logprobs": 2}, "top_logprobs = 2 is not built"),
        ("/v1/chat/completions", {"messages": [{}], "store": True}, "store = true is not built"),
        ("/v1/chat/completions", {"messages": [{}], "ignore_eos": True}, "ignore_eos is not known here"),
        ("/generate", [None], "the body is [null], not a JSON object"),
    ],
)
def test_what_is_refused_is_told_as_it_was_given(own, path, body, message):
    status, answer = own.call(path, body)
    assert status == 400
    assert message in answer["error"]["message"]


def test_a_refused_prompt_ends_the_others_of_its_list(own):
    before = own.get("/server_info")["internal_states"][0]["generated_tokens"]
    sampling = {"max_new_tokens": LONG, "ignore_eos": True}
    status, answer = own.call("/generate", {"input_ids": [PROMPT, [99999]], "sampling_params": sampling})
    assert status == 400
    assert "99999" in answer["error"]["message"]
    own.post("/flush_cache?timeout=30")
    assert own.get("/server_info")["internal_states"][0]["generated_tokens"] - before < LONG
    assert own.call("/generate", {"input_ids": [PROMPT] * 2, "rid": ["a", "a"]})[0] == 400


@pytest.mark.parametrize("field", ["regex", "repetition_penalty", "min_new_tokens", "logit_bias"])
def test_what_sampling_cannot_do_is_refused_by_name(own, field):
    status, answer = own.call("/generate", {"input_ids": PROMPT, "sampling_params": {field: 2}})
    assert status == 400
    assert field in answer["error"]["message"]


@pytest.mark.parametrize(
    ("field", "value"), [("top_k", 2**63), ("top_k", 2**31), ("stop", "\ud800"), ("stop", ["a\udfff"])]
)
def test_values_that_no_engine_can_hold_end_their_request_alone(own, field, value):
    status, answer = own.call("/generate", {"input_ids": PROMPT, "sampling_params": {field: value}})
    assert status == 400
    assert field == "stop" or field in answer["error"]["message"]
    assert own.call("/generate", {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 1}})[0] == 200


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ("", '{"text": "\\ud800"}', 400),
        ("", '{"text": ' + "[" * 5000 + "]" * 5000 + "}", 400),
        ("Content-Encoding: gzip\r\n", "no gzip", 400),
        (
            "Content-Type: application/json; charset=none\r\n",
            '{"text": "3", "sampling_params": {"max_new_tokens": 1}}',
            200,
        ),
    ],
)
def test_bodies_that_cannot_be_read_are_the_clients_fault(own, headers, body, status):
    head = f"POST /generate HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {own.key}\r\nContent-Length: {len(body)}\r\n"
    assert f" {status} " in raw(own, f"{head}{headers}\r\n{body}")
    assert "Traceback" not in own.log.read_text()


@pytest.mark.parametrize("header", [b"5", b'["a"]', b"[" * 5000 + b"]" * 5000])
def test_weights_that_cannot_be_read_change_nothing(own, header, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    for path in (str(tmp_path), f"{tmp_path}/" * 500):
        status, answer = own.call("/update_weights_from_disk", {"model_path": path})
        assert status == 400
        assert not answer["success"]
        assert "cannot be read" in answer["message"]


def test_a_group_that_needs_a_device_is_refused_with_the_backend_to_give(own):
    given = {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2}
    status, answer = own.call("/init_weights_update_group", given)
    assert status == 400
    assert 'give backend "gloo"' in answer["message"]


def test_a_group_that_nobody_else_joins_holds_up_nothing(own):
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        group = {"master_address": "127.0.0.1", "master_port": unheard.getsockname()[1], "backend": "gloo"}
        group |= {"rank_offset": 1, "world_size": 2, "group_name": "alone"}
        joining = own.threads.submit(own.call, "/init_weights_update_group", group)
        own.load(MODEL)
        own.generate(1)
        assert not joining.done()
        own.post("/destroy_weights_update_group", {"group_name": "alone"})
        status, answer = joining.result(10)
    assert status == 400
    assert "could not join: the group was left" in answer["message"]


@pytest.mark.parametrize(("field", "value"), [("tools", [{}]), ("top_logprobs", 3), ("logit_bias", {"3": 1})])
def test_what_a_chat_cannot_do_is_refused_by_name(own, field, value):
    messages = [{"role": "user", "content": "a"}]
    status, answer = own.call("/v1/chat/completions", {"messages": messages, field: value})
    assert status == 400
    assert field in answer["error"]["message"]


def test_values_that_ask_for_nothing_are_taken(own):
    body = {"input_ids": PROMPT, "stream": False, "priority": None, "top_logprobs_num": 0, "logprob_start_len": -1}
    sampling = {"max_new_tokens": 2, "repetition_penalty": 1.0, "regex": None, "top_k": 1 << 30}
    assert own.call("/generate", {**body, "sampling_params": sampling})[0] == 200
    refused = own.call("/generate", {**body, "logprob_start_len": 0})
    assert refused[0] == 400
    assert "logprob_start_len" in refused[1]["error"]["message"]


def test_content_in_parts_is_text(own):
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "3+4?"}]
    answers = [
        own.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], "temperature": 0})
        for content in ("What is 3+4?", parts)
    ]
    assert answers[0]["choices"] == answers[1]["choices"]
    image = [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}]
    status, answer = own.call("/v1/chat/completions", {"messages": [{"role": "user", "content": image}]})
    assert status == 400
    assert "image_url" in answer["error"]["message"]


def streamed(server, body):
    """The events of a chat that streams."""
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    data = json.dumps({**body, "stream": True}).encode()
    request = urllib.request.Request(server.url + "/v1/chat/completions", data, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        lines = answer.read().decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_a_stream_that_is_refused_has_a_status(own):
    body = {"messages": [{"role": "user", "content": "a"}], "stream": True}
    for more, word in (({"max_tokens": 9999}, "max_new_tokens"), ({"n": 2}, "n = 2"), ({"logprobs": True}, "logprobs")):
        status, answer = own.call("/v1/chat/completions", body | more)
        assert status == 400
        assert word in answer["error"]["message"]


def test_a_folder_is_served_under_its_own_template(tiny_model, tmp_path):
    server = start_reroll(tmp_path, "--max-running-requests", "3", model=str(tiny_model))
    try:
        assert server.get("/server_info")["max_running_requests"] == 3
        body = {"messages": [{"role": "user", "content": "1+2"}], "max_tokens": 3, "seed": 1, "n": 2}
        answer = server.post("/v1/chat/completions", body)
        assert answer["model"] == str(tiny_model)
        assert answer["usage"]["prompt_tokens"] == len("u 1+2\na ")
        assert answer["choices"][0] == server.post("/v1/chat/completions", {**body, "n": 1})["choices"][0]
        assert answer["choices"][0]["message"] != answer["choices"][1]["message"]
        body = {"messages": body["messages"], "max_tokens": 200, "seed": 2}
        whole = server.post("/v1/chat/completions", body)["choices"][0]
        most = 0
        for _ in range(20):  # a server that was kept waiting sends all that has come meanwhile in one piece
            events = streamed(server, body)
            pieces = [event["choices"][0]["delta"].get("content", "") for event in events]
            assert "".join(pieces) == whole["message"]["content"]
            assert events[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
            most = max(most, len([piece for piece in pieces if piece]))
            if most > 1:
                break
        assert most > 1
    finally:
        server.stop()


def test_routes_that_are_not_built_say_so(own):
    for path in ("/update_weights_from_tensor", "/release_memory_occupation", "/resume_memory_occupation"):
        assert own.call(path, {})[0] == 501


def test_a_client_that_leaves_ends_its_request(own):
    where = urllib.parse.urlsplit(own.url)
    body = f'{{"input_ids": [1], "rid": "left", "sampling_params": {{"max_new_tokens": {LONG}, "ignore_eos": true}}}}'
    before = own.get("/server_info")["internal_states"][0]["generated_tokens"]
    with socket.create_connection((where.hostname, where.port), timeout=30) as connection:
        head = (
            f"POST /generate HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {own.key}\r\nContent-Length: {len(body)}\r\n"
        )
        connection.sendall(f"{head}\r\n{body}".encode())
        while own.call("/flush_cache?timeout=0", {})[0] == 200:
            pass
    own.post("/flush_cache?timeout=30")
    generated = own.get("/server_info")["internal_states"][0]["generated_tokens"] - before
    assert 0 < generated < LONG
    assert own.generate(1, rid="left")["meta_info"]["completion_tokens"] == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_all_that_it_started(number, tmp_path):
    server = start_reroll(tmp_path)
    started = family(server)
    key = Path(re.search(r"the key is in (\S+)", server.log.read_text())[1])
    running = server.begin("running")
    server.post("/pause_generation", {"mode": "in_place"})
    behind_the_pause = server.threads.submit(server.generate, 4)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # an update that would wait for minutes
        group = {"master_address": "127.0.0.1", "master_port": silent.getsockname()[1], "backend": "gloo"}
        group |= {"rank_offset": 1, "world_size": 2}
        stuck = server.threads.submit(server.call, "/init_weights_update_group", group)
        connection, _ = silent.accept()
        server.process.send_signal(number)
        assert server.process.wait(STOP_SECONDS) == 0
        connection.close()
    assert 0 < len(running.result(5)["output_ids"]) < LONG
    assert behind_the_pause.result(5)["meta_info"]["finish_reason"]["type"] == "abort"
    assert stuck.exception(5) is not None or stuck.result()[0] >= 400
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []
    assert not key.exists()
    assert "Traceback" not in server.log.read_text()
    server.stop()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "TAKEN"], "--port TAKEN: 127.0.0.1:TAKEN is in use; give another port, or 0"),
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid: is no address"),
        (["--host", "192.0.2.1"], "--host 192.0.2.1: is no address of this machine (Cannot assign"),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_told_before_the_model_is_loaded(arguments, words, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        # A model that is not there would be told second.
        given = [word.replace("TAKEN", port) for word in arguments]
        code, told = ended(["serve", "builtin:none", *given], tmp_path / "log")
    assert code == 1
    assert told.startswith(f"error: {words.replace('TAKEN', port)}")
    assert told.count("\n") == 1


def test_clients_are_refused_until_the_server_serves():
    with listening.bound("127.0.0.1", 0) as (socket_,):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(socket_.getsockname())
        socket_.listen()
        socket.create_connection(socket_.getsockname()).close()
    with listening.bound("localhost", 0) as sockets:
        assert sockets


def test_an_engine_that_dies_ends_the_server_with_its_name(tmp_path):
    server = start_reroll(tmp_path)
    (worker,) = (process for process in family(server) if not process.children())
    worker.kill()
    assert server.process.wait(STOP_SECONDS) == WORKER_LOST
    assert "worker 'engine'" in server.log.read_text()
    server.stop()


def test_an_engine_that_stops_ends_the_server_with_the_reason(tensors, tmp_path):
    from safetensors.torch import save_file

    server = start_reroll(tmp_path)
    save_file({name: tensor * float("nan") for name, tensor in tensors["base"].items()}, tmp_path / "model.safetensors")
    server.load(tmp_path)
    status, answer = server.call("/generate", {"input_ids": PROMPT})
    assert status == 500
    assert "logits that are not finite" in answer["error"]["message"]
    assert server.process.wait(STOP_SECONDS) == 1
    assert re.search(r"^error: the engine stopped: .*logits that are not finite", server.log.read_text(), re.MULTILINE)
    assert "Traceback" not in server.log.read_text()
    server.stop()


def test_a_key_from_the_environment_leaves_it(monkeypatch):
    monkeypatch.setenv(auth.KEY_VARIABLE, "a-key-of-mine")
    assert auth.key_from_environment() == "a-key-of-mine"
    assert auth.KEY_VARIABLE not in os.environ
    assert auth.key_from_environment() is None


@pytest.mark.parametrize("key", ["short", "with a space", "line\nbreaks", "ümlaute-sind-keine"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(key, monkeypatch):
    monkeypatch.setenv(auth.KEY_VARIABLE, key)
    with pytest.raises(RerollError, match=auth.KEY_VARIABLE) as caught:
        auth.key_from_environment()
    assert key not in str(caught.value)


def test_a_key_file_that_others_can_read_is_refused(tmp_path):
    file = tmp_path / "key"
    key = auth.write_key(file)
    assert auth.read_key(file) == key
    file.chmod(0o640)
    with pytest.raises(RerollError, match="chmod 600"):
        auth.read_key(file)
    with pytest.raises(FileExistsError):
        auth.write_key(file)


def test_a_missing_extra_is_told_with_its_command(monkeypatch):
    monkeypatch.setattr(app, "find_spec", lambda name: None if name == "aiohttp" else object())
    with pytest.raises(RerollError, match=r"aiohttp: pip install 'reroll\[serve\]'"):
        app.require_serve_extra()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["builtin:nothing"], "builtin:tiny-math"),
        (["builtin:tiny-math", "--max-context-len", "99999"], "1024"),
    ],
)
def test_what_cannot_be_served_is_an_error_without_a_traceback(arguments, words, tmp_path):
    code, told = ended(["serve", *arguments], tmp_path / "log")
    assert code == 1
    assert words in told
    assert "Traceback" not in told
