"""What the documents show works as shown."""

import asyncio
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

from reroll.api import Anchor
from reroll.plugins.manager import HOOKS, PREFIX

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


def test_the_configuration_page_is_current_and_every_key_has_a_text():
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert page == maker("make_configuration").page(), "run: hatch run docs:pages"
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 80
    assert [row[0] for row in rows if row[2].strip(" |") == ""] == []


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


def test_documented_commands_exist():
    hatch = (ROOT / "hatch.toml").read_text()
    named = re.findall(r"hatch run ([a-z-]+:)?([a-z-]+)", (ROOT / "README.md").read_text())
    programs = {"reroll", "pip", "python"}
    for environment, script in [(environment, script) for environment, script in named if script not in programs]:
        table = f"[envs.{environment.rstrip(':') or 'default'}.scripts]"
        assert re.search(rf"^{script} = ", hatch.split(table)[1].split("\n[")[0], re.MULTILINE), (environment, script)
