"""Does a second look help? Rewards of rechecked answers beside those of the answers that were rechecked, over seeds.

    python benchmarks/second_look.py [--seeds 0 1 2] [--json FILE]

Every seed is `reroll train configs/replay/online_recheck.toml` twice: as it is, and with a learning rate of 1e-12, so
that first and second answers are of the same weights. The ratio is the mean reward of second looks over the mean reward
that their sources had got; `fresh` is the reward of first answers in the same collections, since a trained policy is
better at both. The reward is 1 for a right answer and 0 for another.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

CONFIG = Path(__file__).parents[1] / "configs" / "replay" / "online_recheck.toml"
RATES = {"training": None, "frozen": "1e-12"}


def run(seed: int, rate: str | None, folder: Path) -> dict[str, Any]:
    """One run; means over its second looks."""
    output = folder / f"{seed}-{rate}"
    overrides = [f"run.seed={seed}", f'output.dir="{output}"', *([f"trainer.lr={rate}"] if rate else [])]
    command = [sys.executable, "-m", "reroll", "train", str(CONFIG)]
    subprocess.run(
        [*command, *(part for item in overrides for part in ("--set", item))], check=True, capture_output=True
    )
    steps = [records(path) for path in sorted((output / "rollouts").glob("step_*/train_rollouts.jsonl"))]
    looks = [(item, step) for step in steps for item in step if item["task"]["source_id"]]
    rewards = [reward(item) for item, _ in looks]
    sources = [item["metrics"]["replay/source_reward"] for item, _ in looks]
    beside = [reward(item) for step in steps for item in step if not item["task"]["source_id"] and any_look(step)]
    split = {
        name: [given for given, source in zip(rewards, sources, strict=True) if (source >= 1) is right]
        for name, right in (("after_right", True), ("after_wrong", False))
    }
    return {
        "seed": seed,
        "second_looks": len(looks),
        "source_reward": fmean(sources),
        "second_look_reward": fmean(rewards),
        "ratio": fmean(rewards) / fmean(sources),
        "fresh_reward": fmean(beside),
        **{name: fmean(values) if values else None for name, values in split.items()},
    }


def records(path: Path) -> list[dict[str, Any]]:
    """The scored rollouts of one step."""
    found = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [item for item in found if item["info"]["reroll"]["reward"] is not None]


def reward(record: dict[str, Any]) -> float:
    return float(record["info"]["reroll"]["reward"])


def any_look(step: list[dict[str, Any]]) -> bool:
    return any(item["task"]["source_id"] for item in step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in RATES}
    with tempfile.TemporaryDirectory() as folder:
        for seed in options.seeds:
            for name, rate in RATES.items():
                found = run(seed, rate, Path(folder))
                results[name].append(found)
                right, wrong = (
                    "–" if found[key] is None else f"{found[key]:.3f}" for key in ("after_right", "after_wrong")
                )
                print(
                    f"seed {seed}, {name}: source reward {found['source_reward']:.3f} → second look "
                    f"{found['second_look_reward']:.3f} ({found['ratio']:.2f}x of {found['second_looks']}; after a "
                    f"right answer {right}, after a wrong one {wrong}); fresh {found['fresh_reward']:.3f}",
                    flush=True,
                )
    for name, of_seeds in results.items():
        ratios = sorted(item["ratio"] for item in of_seeds)
        print(f"{name}: second look over source {fmean(ratios):.2f}x (from {ratios[0]:.2f} to {ratios[-1]:.2f})")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
