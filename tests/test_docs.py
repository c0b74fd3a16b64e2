"""What the documents show works as shown."""

import asyncio
import importlib.util
import json
import re
import socket
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from reroll.api import Anchor, Config, Hook, Node, Selection, Since, Task, Trace, services
from reroll.plugins.manager import HOOKS, PREFIX, load_plugins

ROOT = Path(__file__).parents[1]


def maker(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_hook_page_is_complete_and_current():
    page = (ROOT / "docs" / "hooks.md").read_text()
    assert all(f"## `{PREFIX}{hook}()`" in page for hook in HOOKS)
    assert page == maker("make_hooks").page(), "run: hatch run docs:pages"


def test_the_controls_page_is_current_and_complete():
    controls = maker("make_controls")
    page = (ROOT / "docs" / "controls.md").read_text()
    assert page == controls.page(), "run: hatch run docs:pages"
    described = list(controls.documented())
    packages = {distribution for _, _, _, distribution in described}
    assert packages >= {"reroll", "reroll-records", "reroll-replay-continue", "reroll-verifiers-math", "reroll-harbor"}
    for heading, _, model, _ in described:
        texts = controls.fields_of(model)
        for name, field in model.model_fields.items():
            assert texts[name].endswith((".", ")")), f"{heading} {name}: what changes when it changes?"
            assert controls.shown_type(field, texts[name]), f"{heading} {name}"
            assert re.fullmatch(r"\d+\.\d+(\.\d+)?", controls.shown_since(model, field)), f"{heading} {name}"
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) == sum(len(model.model_fields) for _, _, model, _ in described) > 250


def test_every_configurable_class_of_the_packages_is_described():
    controls = maker("make_controls")
    manager, own = load_plugins(), controls.own_distributions()
    described = {model.__qualname__ for _, _, model, _ in controls.documented()}
    given = [item for hook in HOOKS if hook != "commands" for item in manager.all(hook).values()]
    ours = [item.cls for item in given if item.distribution in own]
    classes = [cls if hasattr(cls, "model_fields") else getattr(cls, "Config", Config) for cls in ours]
    assert {cls.__qualname__ for cls in classes if cls.model_fields} <= described


class Strange(Config):
    """Fields of every shape that the page must put into words."""

    choice: Literal["ppo", "gspo"] | None = None
    """Either."""
    paths: list[Path] = []
    """Files."""
    wait: Annotated[float, Since("0.3")] = Field(1.0, gt=0)
    """Seconds until it ends."""
    pair: tuple[float, float] | None = None
    """Two."""
    parts: Annotated[list[Selection], Hook("trackers")] = []
    """Components."""
    untold: int = Field(0, ge=0, le=9)


def test_types_defaults_and_releases_are_put_into_words():
    controls = maker("make_controls")
    fields = Strange.model_fields
    texts = {"wait": "Seconds until it ends."}
    assert {name: controls.shown_type(field, texts.get(name, "")) for name, field in fields.items()} == {
        "choice": '`"ppo"` | `"gspo"`',
        "paths": "list of paths",
        "wait": "seconds > 0",
        "pair": "list of 2: number, number",
        "parts": "list of components (trackers)",
        "untold": "whole number ≥ 0 and ≤ 9",
    }
    assert [controls.shown_since(Strange, fields[name]) for name in ("choice", "wait")] == ["0.1", "0.3"]


def test_the_page_for_users_of_miles_is_current():
    page = (ROOT / "docs" / "from-miles.md").read_text()
    assert page == maker("make_from_miles").page(), "run: hatch run docs:pages"
    assert "| `lr` | `trainer.lr` |" in page


def test_the_page_of_metrics_is_current():
    assert (ROOT / "docs" / "metrics.md").read_text() == maker("make_metrics").page(), "run: hatch run docs:pages"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_readme_verifier_works_as_a_package(tmp_path, monkeypatch):
    (code,) = blocks("python")
    assert len(code.splitlines()) <= 30
    (tmp_path / "my_keywords.py").write_text(code)
    (entry,) = re.findall(r"\[project.entry-points.reroll\]\n(.*)\n", blocks("toml")[0])
    info = tmp_path / "my_keywords-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-keywords\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[reroll]\n{entry.replace(chr(34), '')}\n")
    lines = [{"gold": ["sea", "Sun"], "answer": "the sea"}, {"gold": ["x"], "answer": "xyz"}]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = [sys.executable, "-m", "reroll", "score", "keywords", "answers.jsonl", "--output", "out.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    scores = [json.loads(line)["score"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert scores == [0.5, 1.0]


def test_the_readme_verifier_is_built_beside_other_modules(tmp_path):
    (tmp_path / "my_keywords.py").write_text(blocks("python")[0])
    (tmp_path / "other.py").write_text("")
    (tmp_path / "pyproject.toml").write_text(blocks("toml")[0])
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path / "dist"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
    assert "my_keywords.py" in names and "other.py" not in names


def page_code(page, word):
    """The one Python block of a page that holds the word, run."""
    found = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    (code,) = (block for block in found if word in block)
    names = {"__name__": "from_the_page"}
    exec(compile(code, page, "exec"), names)
    return names


def test_the_derivation_of_the_replay_page_makes_tasks():
    names = page_code("replay.md", "Shorter")
    (task_set,) = names["reroll_task_sets"]()
    (derivation,) = names["reroll_derivations"]()
    assert task_set.name == derivation.name == "shorter"
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    nodes = [
        {"parent": None, "message": messages[0], "sampled": False},
        {"parent": 0, "message": messages[1], "sampled": True},
    ]
    assert derivation().prompt({"nodes": nodes}, Anchor())[:2] == messages


def test_the_tool_of_the_guide_can_be_called():
    (tool,) = page_code("guide.md", "function_tool")["reroll_tools"]()
    assert tool().schema()["function"]["parameters"]["required"] == ["country"]
    assert asyncio.run(tool().call({"country": "France"})) == "68000000"


def test_the_service_verifier_of_the_guide_asks_again(monkeypatch):
    names = page_code("guide.md", "Sandbox")
    monkeypatch.setattr(services, "FIRST_WAIT", 0.001)
    answers = [(503, b"later"), (200, b"0.5"), (400, b"no program")]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            status, body = answers.pop(0)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            return

    task = Task("", {"sandbox": None}, "test", 0, "0")
    trace = Trace("t", task, [Node(None, {"role": "assistant", "content": "print(1)"}, True, [1], [True])])
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        sandbox = names["Sandbox"](names["SandboxConfig"](url=f"http://127.0.0.1:{server.server_port}", retries=2))
        first, second = (asyncio.run(sandbox.score(task, trace)) for _ in range(2))
        server.shutdown()
        thread.join()
    gone = asyncio.run(sandbox.score(task, trace))
    assert first.score == 0.5
    assert second.detail == "the sandbox answers 400: no program; check the options of the verifier"
    assert gone.state == "service_error" and "no connection: URLError" in gone.detail and "(3 attempts)" in gone.detail


def test_the_service_verifier_of_the_guide_leaves_no_thread_to_a_silent_service():
    names = page_code("guide.md", "Sandbox")
    task = Task("", {"sandbox": None}, "test", 0, "0")
    found = []
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections, and never answers
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        sandbox = names["Sandbox"](names["SandboxConfig"](url=url, retries=0, timeout_seconds=0.1))
        # `run` ends once the thread of the call has.
        asking = threading.Thread(
            target=lambda: found.append(asyncio.run(sandbox.score(task, Trace.of(task, "x")))), daemon=True
        )
        asking.start()
        asking.join(timeout=30)
    assert [verdict.detail for verdict in found] == ["no answer within 0.1 s (1 attempt)"]


def test_the_scoring_program_of_the_guide_runs(capsys):
    page_code("guide.md", "BlockingScorer")
    assert capsys.readouterr().out == "1.0\n"


def test_documented_commands_exist():
    hatch = (ROOT / "hatch.toml").read_text()
    named = re.findall(r"hatch run ([a-z-]+:)?([a-z-]+)", (ROOT / "README.md").read_text())
    programs = {"reroll", "pip", "python"}
    for environment, script in [(environment, script) for environment, script in named if script not in programs]:
        table = f"[envs.{environment.rstrip(':') or 'default'}.scripts]"
        assert re.search(rf"^{script} = ", hatch.split(table)[1].split("\n[")[0], re.MULTILINE), (environment, script)
