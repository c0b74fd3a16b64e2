"""What the controller costs: its CPU time per group, from the first groups of a run to its hundred-thousandth.

    python benchmarks/controller.py [--groups 100000] [--in-flight 10000] [--slow-trainer] [--profile] [--json FILE]

A whole run on a virtual clock (`tests/simulation.py`): the real loop, session, producer, buffer, router, publisher and
ledger; engines, trainer and verifiers only wait. Every group has two responses. `--in-flight` groups are generated at
once; with `--slow-trainer` so many are finished instead, and wait in the buffer.

Windows end at a thousand groups, three thousand, ten thousand and so on. A window's work is the mean of the groups that
were dispatched and that left in it, so that the first ones do not pay for filling the engines. The ratio is the last
window's time per group to the first's: 1 where nothing grows with the run.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from simulation import Run, Scenario, drive

BATCH = 100
MARKS = [1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000]


class MeasuredRun(Run):
    """Notes the CPU time and the number of dispatched groups whenever as many groups as a mark says have left."""

    def __init__(self, scenario: Scenario, groups: int) -> None:
        super().__init__(scenario)
        self.windows: list[dict[str, float]] = []
        self.in_flight: list[int] = []
        self.buffered: list[int] = []
        self._marks = [mark for mark in MARKS if mark < groups] + [groups]
        self._ended = 0
        self._dispatched = 0
        self._last = (0.0, 0, 0)

    def begins(self) -> None:
        self._last = (time.process_time(), 0, 0)

    def dispatched(self, group_index: int) -> None:
        self._dispatched += 1

    def collected(self, collection: Any) -> None:
        self.in_flight.append(self.session.producer.in_flight)
        self.buffered.append(len(self.session.producer.buffer))

    def left(self, group_index: int, disposition: str, staleness: int) -> None:
        self._ended += 1
        if self._marks and self._ended == self._marks[0]:
            now = (time.process_time(), self._dispatched, self._ended)
            seconds, dispatched, ended = (after - before for after, before in zip(now, self._last, strict=True))
            per_group = seconds / ((dispatched + ended) / 2)
            window = {"groups": self._marks.pop(0), "seconds": seconds, "microseconds_per_group": 1e6 * per_group}
            self.windows.append(window)
            self._last = now
            print(
                f"up to {window['groups']:>9,} groups: {window['microseconds_per_group']:7.1f} us per group", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=100_000, help="of the whole run")
    parser.add_argument("--in-flight", type=int, default=10_000, help="groups in flight at once")
    parser.add_argument("--slow-trainer", action="store_true", help="generation waits for the trainer")
    parser.add_argument("--profile", action="store_true", help="shows where the time goes, which then takes longer")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    filling = max(options.in_flight // BATCH, 1)
    scenario = Scenario(
        collections=options.groups // BATCH,
        batch=BATCH,
        bound=10 * filling,
        capacity_factor=float(filling),
        concurrent_samples=2 * options.in_flight,
        engines=4,
        mode="refresh",
        tasks=options.groups,
        right=0.5,
        tokens=1,
        delays=(0.0, 0.001, 0.002, 0.01),
        pace=1.0 if options.slow_trainer else 1e6,
    )
    run = MeasuredRun(scenario, options.groups)
    profile = cProfile.Profile()
    if options.profile:
        profile.enable()
    drive(run)
    profile.disable()
    if run.error is not None:
        raise run.error
    ratio = run.windows[-1]["microseconds_per_group"] / run.windows[0]["microseconds_per_group"]
    in_flight, buffered = statistics.median_high(run.in_flight), statistics.median_high(run.buffered)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"the last groups take {ratio:.2f}x of the first ones' time; at the median {in_flight:,} groups were in "
        f"flight and {buffered:,} in the buffer; {memory:,.0f} MB at most"
    )
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    if options.json:
        numbers = {
            "windows": run.windows,
            "ratio": ratio,
            "in_flight": in_flight,
            "buffered": buffered,
            "peak_memory_mb": memory,
            "ledger": run.session.events.ledger.summary(),
        }
        options.json.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
