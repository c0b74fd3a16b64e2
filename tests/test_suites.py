"""Suites that look into a few files only find all of their tests."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def looked_into(environment, script):
    """The paths that a suite's pytest is given."""
    scripts = tomllib.loads((ROOT / "hatch.toml").read_text("utf-8"))["envs"][environment]["scripts"]
    (paths,) = re.findall(r"\{args:([^}]+)\}", str(scripts[script]))
    return [ROOT / path for path in paths.split()]


@pytest.mark.parametrize(
    ("environment", "script"), [("sglang", "test"), ("sglang", "test-all"), ("ray", "test"), ("ray", "test-gpu")]
)
def test_every_test_with_the_mark_lies_where_its_suite_looks(environment, script):
    paths, mark = looked_into(environment, script), re.compile(rf"\bmark\.{environment}\b")
    files = [file for folder in ("packages", "tests") for file in (ROOT / folder).rglob("test_*.py")]
    marked = [file for file in files if mark.search(file.read_text("utf-8"))]
    assert marked and all(path.exists() for path in paths)
    assert [file for file in marked if not any(file.is_relative_to(path) for path in paths)] == []
