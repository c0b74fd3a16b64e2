"""How often at least one of k attempts passes, and how pass rates are spread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from math import comb
from typing import NamedTuple

Judged = Mapping[tuple[int, int], int]
"""(judged attempts, passed ones) → number of tasks."""
SHOWN_MULTIPLES = 16


class PassAtK(NamedTuple):
    """An estimate of pass@k.

    Attributes:
        mean: over the tasks with at least k judged attempts; None where there are none.
        tasks: how many those are.
    """

    k: int
    mean: Fraction | None
    tasks: int


def pass_at(n: int, c: int, k: int) -> Fraction:
    """The chance that k different ones of n attempts, drawn blindly, hold at least one of the c that passed. As an
    estimate of pass@k it is unbiased, which 1 - (1 - c/n)^k is not: equation 1 of Chen et al., "Evaluating Large
    Language Models Trained on Code", 2021, arXiv 2107.03374."""
    if not (0 <= c <= n and 0 < k <= n):
        raise ValueError(f"n = {n}, c = {c}, k = {k}: 0 <= c <= n and 0 < k <= n are needed")
    return 1 - Fraction(comb(n - c, k), comb(n, k))


def mean_pass_at(judged: Judged, k: int) -> PassAtK:
    known = {counts: tasks for counts, tasks in judged.items() if counts[0] >= k}
    tasks = sum(known.values())
    total = sum((pass_at(n, c, k) * count for (n, c), count in known.items()), Fraction(0))
    return PassAtK(k, total / tasks if tasks else None, tasks)


def pass_at_powers(judged: Judged, n_trials: int) -> list[PassAtK]:
    """For k = 1, 2, 4, … and `n_trials`."""
    ks = {1 << power for power in range(n_trials.bit_length())} | {n_trials}
    return [mean_pass_at(judged, k) for k in sorted(ks)]


def histogram(judged: Judged, n_trials: int) -> dict[Fraction, int]:
    """Number of tasks at each pass rate, ascending: every value that occurs, 0 and 1, and with few trials all multiples
    of 1/n_trials, so that two runs of one kind have the same rows."""
    shown = range(n_trials + 1) if n_trials <= SHOWN_MULTIPLES else (0, n_trials)
    found = Counter({Fraction(passed, n_trials): 0 for passed in shown})
    for (n, c), tasks in judged.items():
        if n:
            found[Fraction(c, n)] += tasks
    return dict(sorted(found.items()))
