"""Loading a causal language model. Imported by workers only: brings torch and transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from reroll.models.files import ModelError


def load_model(directory: Path) -> Any:
    """The model in `directory`, a Hugging Face model directory: float32, in evaluation mode, on the CPU. Its attention
    is torch's where the architecture knows that, and its own otherwise.

    ModelError if a tensor is missing or has another shape than the configuration says.
    """
    model, info = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, local_files_only=True, output_loading_info=True
    )
    # transformers would draw what is missing at random, and every process would draw its own.
    wrong = sorted({*map(str, info["missing_keys"]), *map(str, info["mismatched_keys"])})
    if wrong:
        listed = ", ".join(wrong[:5]) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else "")
        raise ModelError(
            f"the weights in {directory} do not fit its config.json: missing or of another shape: {listed}"
        )
    model.eval()
    return model
