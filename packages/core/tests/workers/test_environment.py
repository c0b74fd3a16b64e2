"""Variables that a run file sets: what is refused, and that workers have them."""

import asyncio
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "planning"))

from plan_cases import SGLANG, run_of

from reroll.api import Placement, RunFileError
from reroll.config.environment import environment_problems
from reroll.models.files import resolve_model
from reroll.parts import engine_class, engine_context
from reroll.placement.with_environment import WithEnvironment
from reroll.planning.report import make_plan
from reroll.serving.environment import engine_environment
from reroll.training.config import TrainerSection
from reroll.training.environment import trainer_environment
from reroll.training.trainer import trainer_specs


class Noting(Placement):
    """Keeps what it is to start."""

    name = "noting"

    def __init__(self):
        super().__init__()
        self.specs = []

    async def start(self, spec):
        self.specs.append(spec)

    async def close(self): ...


def started(placement, specs):
    async def work():
        for spec in specs:
            await placement.start(spec)

    asyncio.run(work())


def test_trainer_ranks_have_the_variables(tmp_path):
    run = run_of(
        tmp_path, 'trainer.env_vars={ NCCL_DEBUG = "WARN", PYTORCH_ALLOC_CONF = "x:1" }', "trainer.num_ranks=2"
    )
    placement = Noting()
    specs = trainer_specs(run.get(TrainerSection), None, 0, tmp_path)
    started(WithEnvironment(placement, trainer_environment(run)), specs)
    for spec in placement.specs:
        assert (spec.environment["NCCL_DEBUG"], spec.environment["PYTORCH_ALLOC_CONF"]) == ("WARN", "x:1")
        assert "PYTORCH_CUDA_ALLOC_CONF" not in spec.environment and spec.environment["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("overrides", [[], SGLANG])
def test_engines_have_the_variables(tmp_path, overrides):
    run = run_of(tmp_path, *overrides, 'serving.env_vars={ NCCL_DEBUG = "INFO" }')
    placement, files = Noting(), resolve_model("builtin:tiny-math")
    context = engine_context(run, placement, files, tmp_path, 0, lambda text: None, False)
    cls, config = engine_class(run)
    started(context.placement, cls.worker_specs(config, context))
    assert [spec.environment["NCCL_DEBUG"] for spec in placement.specs] == ["INFO"]
    assert make_plan(run)["servers"]["environment"]["NCCL_DEBUG"] == "INFO"
    assert "NCCL_DEBUG" not in trainer_environment(run) and engine_environment(run)["NCCL_DEBUG"] == "INFO"


@pytest.mark.parametrize(
    ("key", "name", "value", "why"),
    [
        ("trainer", "OMP_NUM_THREADS", "4", "trainer.threads"),
        ("trainer", "CUDA_VISIBLE_DEVICES", "0", "gives every worker its devices"),
        ("trainer", "REROLL_HOST", "x", "are its own"),
        ("serving", "OMP_NUM_THREADS", "4", "engine's threads"),
        ("serving", "SGLANG_USE_CPU_ENGINE", "1", "sglang.device"),
        ("serving", "WANDB_API_KEY", "0123456789abcdef", "holds a secret"),
        ("trainer", "HF_TOKEN", "x", "holds a secret"),
        ("trainer", "my_password", "correct horse", "holds a secret"),
        ("trainer", "SETTING", "sk-0123456789abcdef", "looks like an API key"),
        ("trainer", "PROXY", "http://me:hidden-word@one:1", "looks like a URL with a password"),
        ("trainer", "a b", "x", "no name of a variable"),
    ],
)
def test_names_and_values_that_may_not_be_set_are_refused(key, name, value, why):
    from reroll.serving.config import SET_FOR_ENGINES

    others = SET_FOR_ENGINES if key == "serving" else {"OMP_NUM_THREADS": "it follows from trainer.threads"}
    (problem,) = environment_problems(f"{key}.env_vars", {name: value}, others)
    assert problem.key == f"{key}.env_vars.{name}" and why in str(problem)
    assert len(value) < 5 or value not in str(problem)


def test_the_sections_check_their_tables(tmp_path):
    with pytest.raises(RunFileError) as caught:
        run_of(tmp_path, 'trainer.env_vars={ OMP_NUM_THREADS = "2" }', 'serving.env_vars={ HF_TOKEN = "abcdef" }')
    assert "trainer.env_vars.OMP_NUM_THREADS" in str(caught.value)
    assert "serving.env_vars.HF_TOKEN" in str(caught.value) and "abcdef" not in str(caught.value)
    with pytest.raises(RunFileError, match=r"serving.env_vars: does nothing: with serving.urls"):
        run_of(tmp_path, *SGLANG, 'serving.urls=["http://one:1"]', 'serving.env_vars={ NCCL_DEBUG = "WARN" }')


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "KEYBOARD", "TOKENS_SEEN", "TORCH_LOGS", "MONKEY", "TRITON_CACHE_DIR"])
def test_ordinary_names_are_taken(name):
    assert list(environment_problems("trainer.env_vars", {name: "1"}, {})) == []


@given(st.text(max_size=8), st.text(max_size=40))
def test_any_name_and_value_is_taken_or_refused_without_repeating_the_value(name, value):
    problems = list(environment_problems("trainer.env_vars", {name: f"sk-{value}"}, {}))
    assert all(f"sk-{value}" not in str(problem) for problem in problems)
