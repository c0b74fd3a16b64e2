"""How `inspect` shows what it found on a terminal. Whatever came out of a store passes through `printable`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from reroll_records.aggregation.statistics import moments
from reroll_records.inspection.history import CONFIDENCE, Cell, History, KeptResponse
from reroll_records.inspection.ranking import FALSE_ALARM, Ranking
from reroll_records.inspection.search import Found
from reroll_records.terminal import chart, printable

Number = TypeVar("Number", int, float)

KEY_DIGITS = 12
"""Of a key: what tells prompts apart, and what `inspect` takes."""
CHART_HEIGHT = 6
MIN_FOLDED = 12
"""Columns of a text that is folded."""
MATCHES = 20
MOST_VALUES = 8
"""Different values that a cell of a table tells."""
PLAIN_WIDTH = 200
"""Columns of output that goes to no terminal."""


def console() -> Console:
    made = Console(highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = PLAIN_WIDTH
    return made


def show_ranking(out: Console, ranking: Ranking, by: str | None, min_responses: int) -> None:
    if by in (None, "hardest"):
        _title(out, f"Hardest: {ranking.enough:,} of {ranking.prompts:,} prompts have {min_responses} valid responses")
        table = _table(
            ["prompt", "source, domain"],
            ["runs", "valid", "mean reward", "best", "cut off", "tokens"],
        )
        for item in ranking.hardest:
            error = "" if item.standard_error is None else f" ± {item.standard_error:.3f}"
            table.add_row(
                *_cells(item.input_key[:KEY_DIGITS], _stacked(item.place, item.domain)),
                *_cells(item.runs, item.valid_responses, f"{item.mean_reward:.3f}{error}", f"{item.best:.4g}"),
                *_cells(f"{item.truncated:.0%}", f"{item.mean_tokens:,.0f}"),
            )
        out.print(table)
    if by in (None, "unstable"):
        _title(out, f"Most unstable: changes of the mean reward, {ranking.comparisons:,} compared")
        table = _table(
            ["prompt", "source, domain", "compared"],
            ["mean reward", "change", "beyond\nnoise"],
        )
        for change in ranking.unstable:
            table.add_row(
                *_cells(change.input_key[:KEY_DIGITS], _stacked(change.place, change.domain)),
                _stacked(change.before, change.after),
                _stacked(
                    f"{change.mean_before:.3f} of {change.responses_before}",
                    f"{change.mean_after:.3f} of {change.responses_after}",
                ),
                *_cells(f"{change.change:+.3f} ± {change.standard_error:.3f}", "yes" if change.beyond_noise else "no"),
            )
        out.print(table)
        out.print(
            f"± is a standard error. A change is beyond noise if one as large has a chance below {FALSE_ALARM:.0%} of "
            "standing anywhere among those compared when no prompt changed."
        )


def show_matches(out: Console, found: Found) -> None:
    _title(out, f"{len(found.matches):,} prompts match; name one by its input key")
    table = _table(["input key", "source"], ["groups"])
    table.add_column("domain")
    table.add_column("lineage")
    table.add_column("protocol")
    for prompt, groups in list(found.matches.items())[:MATCHES]:
        ids = (prompt.lineage[:8], prompt.protocol[:8])
        table.add_row(*_cells(prompt.input_key[:24], prompt.place, groups, prompt.domain, *ids))
    out.print(table)
    if (more := len(found.matches) - MATCHES) > 0:
        out.print(f"and {more:,} more: name one by more of its key")


def show_history(out: Console, history: History) -> None:
    prompt = history.prompt
    facts = {
        "input key": prompt.input_key,
        "task key": prompt.task_key,
        "query": prompt.query_sha256,
        "source": f"{prompt.place}  {prompt.prepared_sample_id}",
        "domain": prompt.domain,
        "lineage": prompt.lineage,
        "protocol": prompt.protocol,
    }
    for name, value in facts.items():
        out.print(f"{name:<10} {printable(value)}", soft_wrap=True)
    for cells in _by_run(history.cells):
        run, began = f"{cells[0].run} ({cells[0].source})", min(cell.first_time for cell in cells)
        _title(out, printable(f"{run}, scored from {_when(began)}"))
        out.print(_run(cells))
    _title(
        out,
        f"Valid rewards by policy scope, with a one-sided {CONFIDENCE:.0%} upper bound on the rate of other rewards",
    )
    out.print(_pools(history))
    _show_charts(out, history.cells)
    if history.responses and history.text is not None:
        out.print(Rule("prompt", align="left"))
        out.print(Text(printable(history.text, lines=True)))
    for response in history.responses:
        out.print(Rule(_heading(response), align="left"))
        out.print(Text(printable(response.text, lines=True)))


def _run(cells: Iterable[Cell]) -> Table:
    table = _table(["version"], ["groups", "rewards", "mean", "tokens", "cut off", "validity"])
    table.add_column("disposition, staleness", overflow="fold", min_width=MIN_FOLDED)
    for cell in cells:
        stale = [(f"staleness {steps}", count) for steps, count in _sorted(cell.staleness)]
        table.add_row(
            *_cells(_versions(cell), cell.groups, _counted((f"{value:.4g}", n) for value, n in _sorted(cell.rewards))),
            *_cells("" if cell.mean_reward is None else f"{cell.mean_reward:.3f}", _tokens(cell)),
            *_cells(f"{cell.truncated} of {cell.responses}", _counted(cell.validity.items())),
            _counted([*cell.dispositions.items(), *stale]),
        )
    return table


def _by_run(cells: Iterable[Cell]) -> list[list[Cell]]:
    runs: dict[str, list[Cell]] = {}
    for cell in cells:
        runs.setdefault(cell.run_id, []).append(cell)
    return list(runs.values())


def _pools(history: History) -> Table:
    table = _table(["scope"], ["draws", "mean", "most common", "others", "bound"])
    for scope, pool in history.pools.items():
        mean = moments(pool.rewards).mean
        table.add_row(
            *_cells(scope, pool.draws, f"{mean:.3f}", f"{pool.commonest:.4g}", pool.others, f"{pool.bound:.3f}")
        )
    return table


def _show_charts(out: Console, cells: Sequence[Cell]) -> None:
    """A column for every weight version of every run, in the order of the table; a gap between runs."""
    runs = _by_run(cells)
    width = max(20, min(out.width - 20, 100))
    charts = {
        "mean reward": [[cell.mean_reward for cell in run] for run in runs],
        "mean tokens": [[cell.mean_tokens for cell in run] for run in runs],
    }
    if len(cells) < 2:
        return
    for title, series in charts.items():
        if lines := chart(series, width, CHART_HEIGHT):
            _title(out, f"{title}, by run and weight version")
            for line in lines:
                out.print(Text(line), no_wrap=True, overflow="crop")


def _table(texts: Sequence[str], numbers: Sequence[str]) -> Table:
    """Texts but the first are folded where the terminal is narrow."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for number, name in enumerate(texts):
        table.add_column(name, overflow="fold", no_wrap=number == 0, min_width=MIN_FOLDED if number else None)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _title(out: Console, text: str) -> None:
    out.print(f"\n{text}", style="bold", soft_wrap=True)


def _cells(*values: object) -> list[Text]:
    return [value if isinstance(value, Text) else Text(printable(str(value))) for value in values]


def _heading(response: KeptResponse) -> Text:
    versions = ", ".join(map(str, response.policy_versions)) or "none"
    validity = {True: "valid", False: "invalid", None: "of unknown validity"}[response.valid]
    text = (
        f"reward {response.reward:.4g}, {validity}: {response.run}, version {versions}, "
        f"{response.response_tokens:,} tokens, {response.status}"
    )
    return Text(printable(text))


def _stacked(*lines: str) -> Text:
    return Text("\n".join(map(printable, lines)))


def _sorted(counts: Mapping[Number, int]) -> list[tuple[Number, int]]:
    return sorted(counts.items())


def _counted(pairs: Iterable[tuple[str, int]]) -> Text:
    """The most common ones, in the order in which they are given, a line each."""
    counts: dict[str, int] = {}
    for name, count in pairs:
        counts[name] = counts.get(name, 0) + count
    told = set(sorted(counts, key=lambda name: -counts[name])[:MOST_VALUES])
    more = [f"and {len(counts) - len(told)} more"] if len(counts) > len(told) else []
    lines = [*(f"{name} × {count}" for name, count in counts.items() if name in told), *more]
    return _stacked(*lines)


def _versions(cell: Cell) -> str:
    if cell.first_version is None or cell.first_version == cell.last_version:
        return "" if cell.first_version is None else str(cell.first_version)
    return f"{cell.first_version}–{cell.last_version}"


def _tokens(cell: Cell) -> str:
    return "" if cell.mean_tokens is None else f"{cell.mean_tokens:,.0f} ({cell.fewest:,}–{cell.most:,})"


def _when(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f}"
