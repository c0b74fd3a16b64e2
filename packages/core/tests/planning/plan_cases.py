"""Run files for plans."""

from reroll.config import load_run_file
from reroll.plan import size_problems
from reroll.plugins import load_plugins

RUN = """
[model]
path = "builtin:tiny-math"
[data]
task_set = { name = "addition", high = 40, verifier = "regex" }
verifiers = [{ name = "regex", pattern = '(-?\\d+)' }]
"""
SGLANG = ('serving.engine="sglang"', 'trainer.device="cpu"')


def run_of(folder, *overrides, text=RUN):
    path = folder / "run.toml"
    path.write_text(text, "utf-8")
    return load_run_file(path, list(overrides), load_plugins(), [size_problems])
