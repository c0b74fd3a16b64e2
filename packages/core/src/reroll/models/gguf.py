"""Converts a GGUF file to a Hugging Face directory: `python -m reroll.models.gguf FILE DIRECTORY`."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path


def convert(gguf: Path, target: Path) -> None:
    """Writes weights (float32), configuration and tokenizer; `target` appears whole or not at all."""
    try:
        import accelerate  # noqa: F401
        import gguf as _gguf  # noqa: F401
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise SystemExit(f"{error.name} is not installed: pip install 'reroll[gguf]'") from None
    scratch = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=target.parent))
    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        config = loaded.config
        # The weights are plain floats by now, but the loaded model still counts as quantised and will not be saved.
        del config.quantization_config
        if config.eos_token_id is None:
            config.eos_token_id = tokenizer.eos_token_id
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.load_state_dict(loaded.state_dict())
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        try:
            os.rename(scratch, target)
        except OSError:
            if not (target / "config.json").exists():  # otherwise another process was faster
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
