"""What a harness cannot run without is told before anything starts, with the place that selects it."""

from types import SimpleNamespace

from reroll.api import Harness, hookimpl
from reroll.config import load_run_file
from reroll.plugins import load_plugins

RUN = """
[model]
path = "builtin:tiny-math"
[data]
verifiers = [{ name = "regex", pattern = "(\\\\d+)" }]
[[data.sources]]
name = "plain"
task_set = "addition"
[[data.sources]]
name = "boxed"
task_set = "addition"
harness = "boxed"
[[eval.sets]]
name = "held-out"
task_set = { name = "addition", split = "held_out", size = 4 }
harness = "broken"
"""


class Boxed(Harness):
    name = "boxed"

    def lacks(self):
        return "boxes are not installed: pip install boxes"

    async def run(self, task, rendered, context):
        raise NotImplementedError


class Broken(Boxed):
    name = "broken"

    def lacks(self):
        raise OSError("no disk")


def problems(tmp_path, *overrides):
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    plugins = load_plugins()
    given = SimpleNamespace(reroll_harnesses=hookimpl(lambda: [Boxed, Broken]))
    plugins.register(given, "boxes", "reroll-boxes")
    run = load_run_file(path, overrides, plugins)
    found = [problem for section in run.sections.values() for problem in section.validate_files(run, thorough=False)]
    return {problem.key: problem.message for problem in found if problem.key.endswith("harness")}


def test_each_place_that_selects_a_harness_is_named(tmp_path):
    assert problems(tmp_path) == {
        "data.sources[1].harness": "boxes are not installed: pip install boxes",
        "eval.sets[0].harness": "'broken' cannot say what it lacks: OSError: no disk",
    }


def test_the_harness_of_the_run_is_asked_as_well(tmp_path):
    assert problems(tmp_path, 'rollout.harness="boxed"')["rollout.harness"].startswith("boxes are not installed")
