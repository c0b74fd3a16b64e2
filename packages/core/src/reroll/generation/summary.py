"""What a generation came to: the numbers of all tasks together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from reroll.generation.bands import Band
from reroll.generation.pass_at_k import Judged, PassAtK, histogram, pass_at_powers
from reroll.generation.protocol import GenerationProtocol
from reroll.generation.tally import Tally

SCHEMA = 1


@dataclass(frozen=True)
class Summary:
    """All tasks together.

    Attributes:
        tasks: that were asked for; trials: attempts of those.
        skipped: tasks; missing: attempts without an entry.
        judged: see `Judged`.
        tokens: sampled in judged attempts; truncated: how many of them were cut off at a length limit.
        selected: tasks in the index, whose pass rates are in the band.
        results: the folders.
    """

    run: str
    n_trials: int
    tasks: int
    trials: int
    passed: int
    failed: int
    errors: int
    skipped: int
    missing: int
    judged: Judged
    tokens: int
    truncated: int
    band: Band
    selected: int
    index: Path
    results: list[Path]

    @property
    def judged_tasks(self) -> int:
        return sum(tasks for (n, _), tasks in self.judged.items() if n)

    @property
    def mean_pass_rate(self) -> Fraction | None:
        """Over tasks, each counting once."""
        total = sum((Fraction(c, n) * tasks for (n, c), tasks in self.judged.items() if n), Fraction(0))
        return total / self.judged_tasks if self.judged_tasks else None

    @property
    def tokens_per_attempt(self) -> float | None:
        attempts = self.passed + self.failed
        return self.tokens / attempts if attempts else None

    def pass_at_k(self) -> list[PassAtK]:
        return pass_at_powers(self.judged, self.n_trials)

    def histogram(self) -> dict[Fraction, int]:
        return histogram(self.judged, self.n_trials)

    def to_json(self) -> dict[str, Any]:
        counts = ("run", "n_trials", "tasks", "trials", "passed", "failed", "errors", "skipped", "missing")
        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in counts},
            "mean_pass_rate": _float(self.mean_pass_rate),
            "judged_tasks": self.judged_tasks,
            "pass_at_k": [{"k": k, "mean": _float(mean), "tasks": tasks} for k, mean, tasks in self.pass_at_k()],
            "pass_rates": [
                {"pass_rate": float(rate), "exact": str(rate), "tasks": tasks}
                for rate, tasks in self.histogram().items()
            ],
            "tokens": self.tokens,
            "tokens_per_attempt": self.tokens_per_attempt,
            "truncated": self.truncated,
            "band": str(self.band),
            "selected": self.selected,
            "index": str(self.index),
            "results": [str(folder) for folder in self.results],
        }


def summarise(
    tally: Tally, protocol: GenerationProtocol, band: Band, selected: int, index: Path, results: Iterable[Path]
) -> Summary:
    """Counts the tasks of a tally.

    Args:
        selected: tasks that were written to the index; results: the folders that were counted.
    """
    judged: Counter[tuple[int, int]] = Counter()
    errors = skipped = tokens = truncated = 0
    for task in tally.tasks():
        if task.skipped is None:
            judged[task.n_judged, task.n_pass] += 1
        else:
            skipped += 1
        errors += task.n_error
        tokens += task.tokens
        truncated += task.truncated
    passed = sum(c * tasks for (_, c), tasks in judged.items())
    return Summary(
        run=protocol.name,
        n_trials=tally.n_trials,
        tasks=len(tally),
        trials=len(tally) * tally.n_trials,
        passed=passed,
        failed=sum(n * tasks for (n, _), tasks in judged.items()) - passed,
        errors=errors,
        skipped=skipped,
        missing=tally.missing,
        judged=judged,
        tokens=tokens,
        truncated=truncated,
        band=band,
        selected=selected,
        index=index,
        results=list(results),
    )


def _float(value: Fraction | None) -> float | None:
    return None if value is None else float(value)
