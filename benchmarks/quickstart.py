"""What the quickstart learns, over seeds: held-out accuracy before and after, and what the gain is made of.

    python benchmarks/quickstart.py [--seeds 0 1 2] [--json FILE]

Every seed is a whole `reroll train configs/quickstart.toml`. The ratio is accuracy after training over before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CONFIG = Path(__file__).parents[1] / "configs" / "quickstart.toml"


def run(seed: int, folder: Path) -> dict[str, Any]:
    """One training run; its summary's numbers."""
    output = folder / str(seed)
    overrides = ["--set", f"run.seed={seed}", "--set", f'output.dir="{output}"']
    subprocess.run([sys.executable, "-m", "reroll", "train", str(CONFIG), *overrides], check=True, capture_output=True)
    summary = json.loads((output / "summary.json").read_text())
    (name,) = summary["gain"]
    before, after = (summary["eval"][when]["sets"][name] for when in ("before", "after"))
    return {
        "seed": seed,
        "accuracy_before": before["accuracy"],
        "accuracy_after": after["accuracy"],
        "ratio": after["accuracy"] / before["accuracy"],
        "gain_points": summary["gain"][name],
        "steps": summary["steps"],
        "training_seconds": summary["training_wall_seconds"],
        "wall_seconds": summary["wall_seconds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in options.seeds:
            results.append(run(seed, Path(folder)))
            found, gain = results[-1], results[-1]["gain_points"]
            print(
                f"seed {seed}: accuracy {found['accuracy_before']:.1%} → {found['accuracy_after']:.1%} "
                f"({found['ratio']:.2f}x, {gain['accuracy']:+.1f} points: parse rate {gain['parse_rate']:+.1f}, "
                f"correctness {gain['correctness']:+.1f}) in {found['steps']} steps, "
                f"{found['training_seconds']:.1f} s of training, {found['wall_seconds']:.1f} s in all",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
