import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

from reroll.plugins import load_plugins
from reroll_replay_recheck.derivation import Recheck


def test_the_package_gives_its_derivation_to_reroll():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == ["reroll>=0.1,<0.2"]
    named = project["entry-points"]["reroll"].items()
    plugins = load_plugins([EntryPoint(name, value, "reroll") for name, value in named])
    assert plugins.get("derivations", "recheck").cls is Recheck
