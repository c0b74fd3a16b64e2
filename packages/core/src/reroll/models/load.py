"""Loading a causal language model. Imported by workers only: brings torch and transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM


def load_model(directory: Path, dtype: str = "float32", attn_implementation: str = "sdpa") -> Any:
    """The model in `directory`, in evaluation mode, on the CPU.

    Args:
        directory: a Hugging Face model directory.
        dtype: name of a torch floating-point type.
        attn_implementation: as transformers names it.
    """
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=getattr(torch, dtype), attn_implementation=attn_implementation, local_files_only=True
    )
    model.eval()
    return model
