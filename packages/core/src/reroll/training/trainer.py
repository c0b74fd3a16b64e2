"""The trainer as the controller sees it: calls to the process that holds the model."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from reroll.api import Placement, RerollError, RunFile, Sample, Selection, WeightBucket, Worker, WorkerSpec
from reroll.training.config import ObjectiveSection, TrainerSection


class Trainer:
    """One trainer rank in a worker. `version` counts completed optimizer steps."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.version = 0

    async def train(self, samples: list[Sample]) -> list[dict[str, float]]:
        """Trains on a collection's samples; metrics of each optimizer step."""
        steps: list[dict[str, float]] = await self.worker.call("train", samples)
        self.version += len(steps)
        return steps

    async def export_weights(self, directory: Path, bucket_bytes: int) -> list[WeightBucket]:
        buckets: list[WeightBucket] = await self.worker.call("export_weights", directory, bucket_bytes)
        return buckets

    async def refresh_version(self) -> int:
        """Asks the worker: a step that was under way when the run was stopped has been completed meanwhile."""
        self.version = int(await self.worker.call("version"))
        return self.version

    async def export_hf(self, directory: Path) -> None:
        """Writes a Hugging Face directory that transformers loads."""
        await self.worker.call("export_hf", directory)

    async def weights_digest(self) -> str:
        """SHA-256 over all tensors, comparable with an engine's."""
        digest: str = await self.worker.call("weights_digest")
        return digest

    async def gradient_digest(self, samples: list[Sample]) -> str:
        """SHA-256 over the gradient that the samples would have as one step."""
        digest: str = await self.worker.call("gradient_digest", samples)
        return digest

    async def logprobs(self, samples: list[Sample]) -> list[list[float]]:
        """The model's log-probabilities of the tokens that carry loss, by sample."""
        found: list[list[float]] = await self.worker.call("logprobs", samples)
        return found

    async def reference_logprobs(self, samples: list[Sample]) -> list[list[float]]:
        """The same of the starting checkpoint, where the recipe keeps it."""
        found: list[list[float]] = await self.worker.call("reference_logprobs", samples)
        return found


def require_training_extra() -> None:
    """RerollError unless what the worker imports is installed."""
    missing = [name for name in ("torch", "transformers", "safetensors") if find_spec(name) is None]
    if missing:
        raise RerollError(f"training needs {', '.join(missing)}: pip install 'reroll[train]'")


async def start_trainer(
    run: RunFile,
    placement: Placement,
    *,
    model_directory: Path,
    temperature: float,
    global_batch_size: int,
    total_steps: int,
    constant_length: int | None,
    correction: Selection | None,
    seed: int,
    log: Path,
) -> Trainer:
    """Starts the worker and loads the model."""
    objective, section = run.get(ObjectiveSection), run.get(TrainerSection)
    names = ("policy_loss", "eps_clip", "eps_clip_high", "eps_clip_c", "calculate_per_token_loss", "entropy_coef")
    recipe = {name: getattr(objective, name) for name in (*names, "kl_loss_coef", "kl_loss_type")}
    recipe["constant_length"] = constant_length
    copied = ("lr", "min_lr", "lr_decay_style", "weight_decay", "adam_beta1", "adam_beta2", "adam_eps", "clip_grad")
    settings = {name: getattr(section, name) for name in copied} | {
        "global_batch_size": global_batch_size,
        "max_tokens": section.micro_batch_tokens,
        "rows": section.micro_batch_size,
        "warmup_steps": section.warmup_steps(total_steps),
        "decay_steps": section.decay_steps(total_steps),
        "use_rollout_logprobs": objective.use_rollout_logprobs,
        "warmup_init": section.lr_warmup_init,
        "wsd_decay_steps": section.lr_wsd_decay_iters or 0,
        "wsd_decay_style": section.lr_wsd_decay_style or "linear",
    }
    spec = WorkerSpec(
        name="trainer",
        target="reroll.training.worker:TrainerWorker",
        arguments={
            "model_directory": model_directory,
            "temperature": temperature,
            "recipe": recipe,
            "settings": settings,
            "correction": _correction(run, correction),
            "use_reference": objective.needs_reference,
            "seed": seed,
            "threads": section.threads,
        },
        environment={"OMP_NUM_THREADS": str(section.threads), "HF_HUB_OFFLINE": "1"},
        log=log,
    )
    return Trainer(await placement.start(spec))


def _correction(run: RunFile, selection: Selection | None) -> tuple[str, dict[str, object]] | None:
    if selection is None:
        return None
    cls = run.component("corrections", selection.name)
    return f"{cls.__module__}:{cls.__qualname__}", dict(selection.options)
