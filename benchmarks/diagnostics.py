"""What diagnostics cost: diagnostic steps and compared publications beside the plain ones of the same run.

    python benchmarks/diagnostics.py [--hidden 512] [--layers 8] [--steps 24] [--json FILE]

One synchronous run of a random model of the tiny model's family, with `debug.diagnostic_interval = 2`: plain and
diagnostic steps take turns, and so do publications without and with a comparison of digests. The ratio is the median
of the ones over the median of the others; the first two steps, which warm up, are left out. The agreement gate
(`trainer.max_train_rollout_logprob_abs_diff`) is on in all steps: it compares a number that every step computes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from reroll.models.files import resolve_model

RUN = """
[model]
path = {model}
[data]
task_set = {{ name = "addition", high = 40, verifier = "regex" }}
verifiers = [{{ name = "regex", pattern = '(-?\\d+)' }}]
[rollout]
num_rollout = {steps}
rollout_batch_size = 8
n_samples_per_prompt = 8
rollout_max_prompt_len = 32
rollout_max_response_len = 32
group_filters = []
[trainer]
lr = 1e-5
max_train_rollout_logprob_abs_diff = 1.0
[debug]
diagnostic_interval = 2
"""
WARM_UP = 2


def make_model(folder: Path, hidden: int, layers: int) -> int:
    """A random model with the tiny one's tokenizer; gives its number of parameters."""
    from transformers import AutoConfig, AutoModelForCausalLM

    source = resolve_model("builtin:tiny-math").directory
    shutil.copytree(source, folder)
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    config = AutoConfig.from_pretrained(source)
    heads = max(1, hidden // 64)
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = hidden, 4 * hidden, layers
    config.num_attention_heads = config.num_key_value_heads = heads
    config.head_dim = hidden // heads
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:1] * layers
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def measure(folder: Path, hidden: int, layers: int, steps: int) -> dict[str, Any]:
    """Medians in seconds, and their ratios."""
    parameters = make_model(folder / "model", hidden, layers)
    path, output = folder / "run.toml", folder / "out"
    path.write_text(RUN.format(model=json.dumps(str(folder / "model")), steps=steps))
    command = [sys.executable, "-m", "reroll", "train", str(path), "--set", f"output.dir={json.dumps(str(output))}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text("utf-8").splitlines()]
    lines = [line for line in lines if line["step"] > WARM_UP]
    asked = [any(name.startswith("diagnostics/") for name in line) for line in lines]
    assert asked == [line["step"] % 2 == 0 for line in lines], "every second step is a diagnostic one"
    found: dict[str, Any] = {"parameters": parameters, "steps": len(lines)}
    for name, metric in (("step", "train/seconds"), ("publication", "publication/seconds")):
        plain, diagnostic = (
            median(line[metric] for line, is_asked in zip(lines, asked, strict=True) if is_asked is wanted)
            for wanted in (False, True)
        )
        found[name] = {"plain_seconds": plain, "diagnostic_seconds": diagnostic, "ratio": diagnostic / plain}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=512, help="width of the model")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.hidden, options.layers, options.steps)
    print(f"{found['parameters']:,} parameters, {found['steps']} steps")
    for name in ("step", "publication"):
        item = found[name]
        print(
            f"diagnostic {name}: {item['ratio']:.2f}x of a plain one "
            f"({1000 * item['diagnostic_seconds']:.1f} ms / {1000 * item['plain_seconds']:.1f} ms)"
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
