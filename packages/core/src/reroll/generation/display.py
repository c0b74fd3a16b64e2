"""What a person sees of a generation: a bar and the longest-running trials on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from itertools import islice
from threading import Lock

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from reroll.api import one_line
from reroll.generation.entries import Outcome
from reroll.generation.time_left import TimeLeft
from reroll.reporting.lines import Lines

NAMES: dict[Outcome, str] = {"passed": "passed", "failed": "failed", "error": "errors", "skipped": "skipped"}
"""Outcomes as they are counted, in this order; only the first two are named where there are none."""
MOST_ROWS = 8
REFRESHES_PER_SECOND = 4
SECONDS_PER_LINE = 30.0
"""Plain lines come no closer to each other."""


@dataclass
class Running:
    """A trial in flight.

    Attributes:
        began: by the display's clock.
        scoring: its tokens are there.
    """

    task_key: str
    trial: int
    began: float
    scoring: bool = False


class GenerationDisplay(Lines):
    """Follows the trials, and tells `time_left` of them: nobody else does.

    Args:
        total: trials of the whole generation.
        finished: those that earlier starts ended.
        clock: seconds; it never goes back.
    """

    log = "the log"

    def __init__(
        self,
        total: int,
        time_left: TimeLeft,
        finished: Mapping[Outcome, int],
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(console)
        self._total = total
        self._time_left = time_left
        self._clock = clock
        self._running: dict[Hashable, Running] = {}
        self._outcomes: Counter[Outcome] = Counter(finished)
        self._said: float | None = None
        """When the last plain line came, or trials began; None before and after."""
        self._lock = Lock()
        """The bar is drawn by a thread of its own."""
        self._live: Live | None = None
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            self._live = Live(
                get_renderable=self._drawn,
                console=self.console,
                refresh_per_second=REFRESHES_PER_SECOND,
                transient=True,
            )

    def begin(self) -> None:
        """Trials begin."""
        self._said = self._clock()
        if self._live is not None:
            self._live.start()

    def started(self, trial_id: Hashable, task_key: str, trial: int) -> None:
        """A trial is in flight from now on. `trial` is its number within its task."""
        now = self._clock()
        with self._lock:
            self._running[trial_id] = Running(task_key, trial, now)
            self._time_left.started(trial_id, now)
        self._report(now)

    def generated(self, trial_id: Hashable, tokens: int) -> None:
        """All of a trial's tokens are there, so many were sampled, and it is being scored."""
        now = self._clock()
        with self._lock:
            self._time_left.finished(trial_id, tokens, now)
            if trial_id in self._running:
                self._running[trial_id].scoring = True
        self._report(now)

    def finished(self, trial_id: Hashable, outcome: Outcome) -> None:
        """A trial ended, one that was skipped perhaps without having been started."""
        with self._lock:
            self._time_left.dropped(trial_id)
            self._running.pop(trial_id, None)
            self._outcomes[outcome] += 1
        self._report(self._clock())

    def close(self) -> None:
        """The last picture goes, the last line comes; once."""
        if self._live is not None:
            self._live.stop()
        elif self._said is not None:
            self.line("  ".join([self._trials(), *self._facts(self._clock())]))
        self._said = None

    def _report(self, now: float) -> None:
        """A plain line where one is due."""
        if self._live is None and self._said is not None and now - self._said >= SECONDS_PER_LINE:
            self._said = now
            self.line("  ".join([self._trials(), *self._facts(now)]))

    @property
    def _ended(self) -> int:
        return self._outcomes.total()

    def _trials(self) -> str:
        return f"trials {self._ended:,}/{self._total:,}"

    def _facts(self, now: float) -> list[str]:
        shown = [name for name in NAMES if self._outcomes[name] or name in ("passed", "failed")]
        facts = [f"{NAMES[name]} {self._outcomes[name]:,}" for name in shown]
        if self._running:
            facts.append(f"{self._time_left.tokens_per_second:,.0f} tokens/s")
        waiting = self._total - self._ended - len(self._running)
        if waiting > 0 or self._running:
            left = self._time_left.estimate(max(waiting, 0), now)
            facts.append("time left unknown" if left is None else f"{duration(left)} left")
        return facts

    def _drawn(self) -> Group:
        """The picture: two lines, and a table."""
        now = self._clock()
        with self._lock:
            bar = Table.grid(padding=(0, 1), expand=True)
            bar.add_column(ratio=1)
            bar.add_column(no_wrap=True)
            bar.add_row(ProgressBar(total=max(self._total, 1), completed=self._ended), self._trials())
            facts = Text("  ".join(self._facts(now)), no_wrap=True, overflow="ellipsis")
            running = list(islice(self._running.values(), MOST_ROWS))
            more = len(self._running) - len(running)
        if not running:
            return Group(bar, facts)
        table = Table(box=None, expand=True, padding=(0, 1), pad_edge=False)
        table.add_column("task", ratio=1, no_wrap=True, overflow="ellipsis")
        table.add_column("trial", justify="right", no_wrap=True)
        table.add_column("seconds", justify="right", no_wrap=True)
        table.add_column("state", min_width=len("generating"), no_wrap=True)
        for item in running:
            state = "scoring" if item.scoring else "generating"
            table.add_row(harmless(item.task_key), str(item.trial), f"{now - item.began:,.0f}", state)
        return Group(bar, facts, table, *([Text(f"and {more:,} more")] if more else []))


def harmless(key: str) -> Text:
    """A task key, which is anybody's data, as text without markup in one line, and without what steers a terminal."""
    shown = (character if character.isprintable() else ascii(character)[1:-1] for character in one_line(key))
    return Text("".join(shown))


def duration(seconds: float) -> str:
    """As exact as an estimate is: `42 s`, `12 min`, `3 h 20 min`, `2 d 5 h`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours = round(minutes / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 24 * 60 else f"{hours // 24} d {hours % 24} h"
