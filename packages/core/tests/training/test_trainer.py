"""What the run file's recipe becomes in the trainer's process."""

import asyncio
import inspect
from pathlib import Path

import pytest
import tomli_w

from reroll.config import load_run_file
from reroll.plan import constant_length, correction, scoring_reasons, size_problems, total_steps
from reroll.plugins import load_plugins
from reroll.training.config import TrainerSection
from reroll.training.objective import Recipe
from reroll.training.step import StepSettings
from reroll.training.trainer import start_trainer, trainer_specs
from reroll.training.worker import TrainerWorker


class Noting:
    """A placement that keeps what its worker was asked to load."""

    async def devices(self):
        return None

    async def start(self, spec):
        return self

    async def call(self, method, *arguments):
        assert method == "load"
        self.given = dict(zip(LOADED, arguments, strict=True))
        return {"packed": False, "device": "cpu"}


LOADED = [name for name in inspect.signature(TrainerWorker.load).parameters if name != "self"]


def started(tmp_path, **sections):
    """Recipe, settings and the other arguments of the worker."""
    path, placement = tmp_path / "run.toml", Noting()
    base = {"model": {"path": "builtin:tiny-math"}, "data": {"verifiers": [{"name": "regex", "pattern": "([0-9]+)"}]}}
    path.write_text(tomli_w.dumps({**base, **sections}))
    run = load_run_file(path, [], load_plugins(), [size_problems])
    asyncio.run(
        start_trainer(
            run,
            placement,
            model_directory=Path(),
            temperature=1.0,
            global_batch_size=8,
            total_steps=total_steps(run),
            constant_length=constant_length(run),
            correction=correction(run),
            scoring_pass=bool(scoring_reasons(run)),
            seed=0,
            logs=Path("logs"),
        )
    )
    given = placement.given
    return Recipe(**given["recipe"]), StepSettings(**given["settings"]), given


def test_the_defaults_are_those_of_the_recipe(tmp_path):
    recipe, settings, given = started(tmp_path)
    assert recipe == Recipe()
    assert (settings.warmup_init, settings.wsd_decay_steps, settings.wsd_decay_style) == (0.0, 0, "linear")
    assert not given["use_reference"]


def test_every_option_reaches_the_worker(tmp_path):
    recipe, settings, given = started(
        tmp_path,
        objective={"policy_loss": "gspo", "advantage_estimator": "dr_grpo", "eps_clip_c": 2.5, "kl_coef": 0.1},
        rollout={"rollout_max_response_len": 96},
        trainer={
            "lr": 1.0,
            "lr_decay_style": "wsd",
            "lr_wsd_decay_iters": 3,
            "lr_wsd_decay_style": "cosine",
            "lr_warmup_iters": 2,
            "lr_warmup_init": 0.25,
        },
    )
    assert recipe == Recipe(policy_loss="gspo", constant_length=96, eps_clip_c=2.5)
    assert (settings.lr_decay_style, settings.warmup_steps, settings.decay_steps) == ("wsd", 2, 10)
    assert (settings.warmup_init, settings.wsd_decay_steps, settings.wsd_decay_style) == (0.25, 3, "cosine")
    assert given["use_reference"]


@pytest.mark.parametrize(
    ("device", "handed_out", "gpus", "visible"),
    [
        ("auto", None, 0, ["3", "5"]),
        ("cuda", None, 1, ["3", "5"]),
        ("cpu", None, 0, ["", ""]),
        ("auto", 8, 1, [None, None]),
        ("auto", 0, 0, ["", ""]),
        ("cpu", 8, 0, ["", ""]),
    ],
)
def test_ranks_leave_the_choice_of_devices_to_a_placement_that_hands_them_out(
    monkeypatch, device, handed_out, gpus, visible
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    specs = trainer_specs(TrainerSection(num_ranks=2, device=device), handed_out, 0, Path("logs"))
    assert [spec.gpus for spec in specs] == [gpus, gpus]
    assert [spec.environment.get("CUDA_VISIBLE_DEVICES") for spec in specs] == visible
