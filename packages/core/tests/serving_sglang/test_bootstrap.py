"""What the file that starts SGLang answers for, with a stand-in for SGLang."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import psutil

from reroll.serving.sglang.command import BOOTSTRAP

STAND_IN = {
    "uvicorn.py": "class Server:\n    def run(self): ...\n",
    "sglang/launch_server.py": """
import subprocess, sys, time

def run_server(arguments):
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    print(subprocess.Popen(command, stdout=subprocess.DEVNULL).pid, flush=True)
    time.sleep(600)
""",
    "sglang/srt/plugins.py": "def load_plugins(): ...\n",
    "sglang/srt/server_args.py": "import types\n\ndef prepare_server_args(given): return types.SimpleNamespace()\n",
    "sglang/srt/utils.py": "def kill_process_tree(*given, **more): ...\n",
}


def test_nothing_outlives_a_server_that_was_killed_while_its_launcher_is_gone(tmp_path):
    for name, text in STAND_IN.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    read, write = os.pipe()
    server = subprocess.Popen(
        [sys.executable, str(BOOTSTRAP), str(write)],
        pass_fds=[write],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        start_new_session=True,
        text=True,
    )
    os.close(write)
    with server:
        assert server.stdin and server.stdout
        with server.stdin as pipe:
            json.dump({"host": "127.0.0.1", "port": 0, "arguments": [], "key": "a-key-of-this-test"}, pipe)
        started = int(server.stdout.readline())
        family = psutil.Process(server.pid).children(recursive=True)
        assert started in {process.pid for process in family}
        server.kill()
    os.close(read)
    assert not psutil.wait_procs(family, timeout=10)[1]
