"""How long `reroll plan` takes, beside an interpreter that only imports what every command needs.

    python benchmarks/startup.py [--rounds 11] [--json FILE]

The two take turns; seconds and the ratio are medians over rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

CONFIG = Path(__file__).parents[1] / "configs" / "quickstart.toml"
COMMANDS = {
    "plan": [sys.executable, "-m", "reroll", "plan", str(CONFIG)],
    "imports": [sys.executable, "-c", "import typer; from pydantic import BaseModel"],
}


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(-1, options.rounds):  # the first one warms up
        for name, command in COMMANDS.items():
            taken = seconds(command)
            if number >= 0:
                times[name].append(taken)
    ratio = statistics.median(a / b for a, b in zip(times["plan"], times["imports"], strict=True))
    plan, imports = (statistics.median(times[name]) for name in COMMANDS)
    print(f"reroll plan {plan:.3f} s, typer and pydantic alone {imports:.3f} s: {ratio:.2f}x")
    if options.json:
        options.json.write_text(json.dumps({"seconds": times, "ratio": ratio}, indent=2) + "\n")


if __name__ == "__main__":
    main()
