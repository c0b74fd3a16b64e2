"""The summary as it is shown: in the terminal, and the same as a picture."""

from __future__ import annotations

import io
from collections.abc import Iterator
from fractions import Fraction

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from reroll.api import counted, one_line
from reroll.generation.summary import Summary

WIDTH = 88
BAR = 40
MOST_ROWS = 20
"""Pass rates that have a row each; where more occur, those between 0 and 1 are put together by tenths."""

# rich's own frame loads a font from elsewhere, which a saved picture must not.
_FRAME = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px;
  white-space: pre; }}
.{unique_id}-title {{ font-family: sans-serif; font-size: 18px; font-weight: bold; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


def show(summary: Summary, console: Console) -> None:
    console.print(view(summary), markup=False, highlight=False)


def picture(summary: Summary) -> str:
    """An SVG that loads nothing; the same text for the same summary."""
    console = Console(
        file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, color_system="truecolor", no_color=False
    )
    show(summary, console)
    name = "".join(character for character in one_line(summary.run, 60) if character.isprintable())
    return console.export_svg(title=name, code_format=_FRAME, unique_id="reroll")


def view(summary: Summary) -> RenderableType:
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(summary):
        facts.add_row(Text(name, style="bold"), Text(value))
    bars = Table(title="tasks by pass rate", title_justify="left", box=None, padding=(0, 1))
    bars.add_column("pass rate", justify="right", no_wrap=True)
    bars.add_column("", no_wrap=True)
    bars.add_column("tasks", justify="right")
    rows = list(_rows(summary.histogram()))
    most = max(tasks for _, tasks, _ in rows) or 1
    for label, tasks, rate in rows:
        color = "green" if summary.band.takes(rate.numerator, rate.denominator) else "bright_black"
        bars.add_row(label, Text(_bar(tasks, most), style=color), str(tasks))
    return Group(facts, Text(""), bars)


def _facts(summary: Summary) -> Iterator[tuple[str, str]]:
    yield "tasks", f"{summary.tasks:,}" + (f", {summary.skipped:,} of them skipped" if summary.skipped else "")
    attempts = f"{summary.trials:,}: {summary.passed:,} passed, {summary.failed:,} failed, {summary.errors:,} errors"
    yield "attempts", attempts + (f", {summary.missing:,} missing" if summary.missing else "")
    mean = summary.mean_pass_rate
    yield "mean pass rate", "none was judged" if mean is None else f"{float(mean):.4f}"
    for k, value, tasks in summary.pass_at_k():
        over = "" if tasks == summary.judged_tasks else f", over {counted(tasks, 'task')} with {k} judged attempts"
        yield f"pass@{k}", "no task has as many judged attempts" if value is None else f"{float(value):.4f}{over}"
    yield (
        "sampled tokens",
        f"{summary.tokens:,}"
        + ("" if summary.tokens_per_attempt is None else f", {summary.tokens_per_attempt:,.1f} an attempt"),
    )
    if summary.truncated:
        yield "truncated", f"{summary.truncated:,} attempts"
    yield "selected", f"{counted(summary.selected, 'task')} with a pass rate in {summary.band}"


def _rows(histogram: dict[Fraction, int]) -> Iterator[tuple[str, int, Fraction]]:
    """Label, tasks, and a pass rate that stands for the row."""
    if len(histogram) <= MOST_ROWS:
        for rate, tasks in histogram.items():
            yield f"{float(rate):.4g}", tasks, rate
        return
    yield "0", histogram[Fraction(0)], Fraction(0)
    for tenth in range(10):
        low, high = Fraction(tenth, 10), Fraction(tenth + 1, 10)
        inside = [tasks for rate, tasks in histogram.items() if low < rate <= high and rate < 1]
        yield f"to {float(high):.1f}" if tenth < 9 else "below 1", sum(inside), (low + high) / 2
    yield "1", histogram[Fraction(1)], Fraction(1)


def _bar(tasks: int, most: int) -> str:
    """A bar in eighths of a character; what is not nothing is seen."""
    eighths = max(round(8 * BAR * tasks / most), 1 if tasks else 0)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
