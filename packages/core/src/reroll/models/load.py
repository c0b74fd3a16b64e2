"""Loading a causal language model. Imported by workers only: brings torch and transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM


def load_model(directory: Path) -> Any:
    """The model in `directory`, a Hugging Face model directory: float32, in evaluation mode, on the CPU."""
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
    )
    model.eval()
    return model
