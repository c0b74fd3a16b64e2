"""The page of all instructions."""

import importlib.util
import json
import re
import tomllib
from pathlib import Path

from reroll_verifiers_if.registry import instructions
from reroll_verifiers_if.targets import read_target
from reroll_verifiers_if.verifier import InstructionsConfig, InstructionsVerifier

PACKAGE = Path(__file__).parents[1]


def maker():
    spec = importlib.util.spec_from_file_location("make_instructions", PACKAGE / "tools/make_instructions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date():
    assert (PACKAGE / "INSTRUCTIONS.md").read_text("utf-8") == maker().page(), "run: python tools/make_instructions.py"


def test_the_page_has_every_instruction_and_parameter():
    page = (PACKAGE / "INSTRUCTIONS.md").read_text("utf-8")
    for item in instructions().values():
        assert f"| `{item.id}` |" in page
        assert all(f"`{name}`: " in page for name in item.parameters)


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", (PACKAGE / "README.md").read_text("utf-8"), re.DOTALL)


def test_the_run_of_the_readme_is_one():
    (run,) = map(tomllib.loads, blocks("toml"))
    (selected,) = run["data"]["verifiers"]
    assert selected.pop("name") == InstructionsVerifier.name
    assert InstructionsConfig(**selected).mode == "loose"


def test_the_targets_of_the_readme_can_be_judged():
    task, row = map(json.loads, blocks("json"))
    assert [item.values for item in read_target(task["targets"]["instructions"])] == [
        item.values for item in read_target(row)
    ]
