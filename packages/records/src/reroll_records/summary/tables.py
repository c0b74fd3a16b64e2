"""A summary in the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reroll_records.store.identity import domain as domain_of
from reroll_records.store.rows import OUTCOMES
from reroll_records.summary.summarize import FILES, TOKENS
from reroll_records.terminal import printable

HARDEST = 10
"""Domains that are shown."""


def show(summary: Mapping[str, Any], output: Path, console: Console | None = None) -> None:
    """What was read, tokens by disposition, outcomes of the hardest domains, warnings, and the files."""
    console = console or Console()
    counts = summary["counts"]
    console.print(
        f"{_many(counts['groups'], 'group')} with {_many(counts['responses'], 'response')} and "
        f"{_many(counts['tokens'], 'token')}, of {_many(counts['runs'], 'run')} "
        f"({_many(counts['attempts'], 'attempt')}), {_many(len(summary['lineages']), 'lineage')} and "
        f"{_many(len(summary['protocols']), 'protocol')}; {_many(counts['prompt_rows'], 'row')} by prompt and policy",
        highlight=False,
    )
    console.print(_dispositions(json.loads((output / TOKENS).read_bytes())["rows"]), markup=False)
    console.print(_domains(summary["domains"]), markup=False)
    for warning in summary["warnings"]:
        console.print(f"warning: {printable(warning)}", markup=False, highlight=False, soft_wrap=True, style="yellow")
    written = ", ".join(name for name in FILES if (output / name).exists())
    console.print(f"{printable(str(output))}: {written}", markup=False, highlight=False, soft_wrap=True)


def _dispositions(rows: list[dict[str, Any]]) -> Table:
    fields = ("groups", "responses", "tokens", "truncated_responses", "truncated_tokens")
    sums: dict[str, list[int]] = {}
    for row in rows:
        known = sums.setdefault(row["disposition"], [0] * len(fields))
        for position, name in enumerate(fields):
            known[position] += row[name]
    table = Table(title="tokens by what became of them", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("disposition", overflow="fold")
    for title in ("groups", "responses", "tokens", "share", "truncated"):
        table.add_column(title, justify="right", no_wrap=True)
    total = sum(values[2] for values in sums.values())
    for disposition, (groups, responses, tokens, _, truncated_tokens) in sorted(
        sums.items(), key=lambda item: (-item[1][2], item[0])
    ):
        table.add_row(
            _plain(disposition),
            f"{groups:,}",
            f"{responses:,}",
            f"{tokens:,}",
            _share(tokens, total),
            _share(truncated_tokens, tokens),
        )
    return table


def _domains(domains: list[dict[str, Any]]) -> Table:
    """By the share of groups that earned nothing, the highest first."""
    table = Table(title="hardest domains, by groups that earned nothing", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("domain", overflow="fold")
    for title in ("groups", *(name.replace("_", " ") for name in OUTCOMES), "share"):
        table.add_column(title, justify="right", no_wrap=True)

    def hardness(domain: Mapping[str, Any]) -> float:
        groups = sum(domain["groups"].values())
        return float(domain["groups"]["all_zero"] / groups) if groups else 0.0

    for domain in sorted(domains, key=lambda each: (-hardness(each), each["verifiers"]))[:HARDEST]:
        groups = domain["groups"]
        total = sum(groups.values())
        table.add_row(
            _plain(domain_of(domain["verifiers"])),
            f"{total:,}",
            *(f"{groups[name]:,}" for name in OUTCOMES),
            _share(groups["all_zero"], total),
        )
    if len(domains) > HARDEST:
        table.caption = f"{len(domains) - HARDEST} more are in summary.json"
    return table


def _plain(text: str) -> Text:
    """As it stands, though it looks like markup, and printable on any terminal."""
    return Text(printable(text))


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
