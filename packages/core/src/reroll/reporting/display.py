"""The display: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from reroll.reporting.lines import Lines


class Display(Lines):
    """What a person sees while the run goes. `total` counts collections."""

    def __init__(self, total: int, console: Console | None = None) -> None:
        super().__init__(console)
        self._start: float | None = None
        self._accuracy: float | None = None
        self._total = total
        self._progress: Progress | None = None
        if self.console.is_terminal:
            self._progress = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[facts]}"),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
            )
            self._task = self._progress.add_task("starting", total=total, facts="")
            self._progress.start()

    def evaluated(self, name: str, result: Mapping[str, Any]) -> None:
        self._accuracy = result["accuracy"]
        parsed = "" if result["parse_rate"] is None else f", parse rate {result['parse_rate']:.1%}"
        self.line(f"step {result['step']:>4}  {name}: accuracy {result['accuracy']:.1%}{parsed}")

    def begin(self) -> None:
        """Training begins: the time left is counted from here."""
        self._start = time.monotonic()
        if self._progress is not None:
            self._progress.reset(self._task)

    def phase(self, name: str) -> None:
        """What the run is doing, where the display can show it: `starting`, `training`, `evaluating`."""
        if self._progress is not None:
            self._progress.update(self._task, description=name)

    def collected(self, done: int, step: int, metrics: Mapping[str, float]) -> None:
        """One collection was generated, and trained on if it held anything to train on."""
        passed, groups = metrics["rollout/groups_passed"], metrics["rollout/groups"]
        facts = [f"step {step}", f"reward {metrics['rollout/reward']:.3f}", f"groups {passed:.0f}/{groups:.0f}"]
        if metrics["rollout/failed_responses"]:
            facts.append(f"failed {metrics['rollout/failed_responses']:.0f}")
        if self._accuracy is not None:
            facts.append(f"held-out {self._accuracy:.1%}")
        if (rate := metrics.get("throughput/generated_tokens_per_second")) is not None:
            facts.append(f"{rate:,.0f} tok/s")
        trainer, producer = metrics["wait/trainer_seconds"], metrics["wait/producer_seconds"]
        facts.append(f"waits: trainer {trainer:.2f} s, generation {producer:.2f} s")
        if self._progress is not None:
            self._progress.update(self._task, completed=done, facts="  ".join(facts))
            return
        assert self._start is not None, "begin() comes first"
        left = (time.monotonic() - self._start) / done * (self._total - done)
        self.line(f"collection {done}/{self._total}  " + "  ".join(facts) + f"  {left:.0f} s left")

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
