"""Writes docs/metrics.md from the catalog of metrics: `python docs/make_metrics.py [--check]`."""

from __future__ import annotations

import sys
import textwrap
from itertools import groupby
from pathlib import Path

from reroll.plugins import load_plugins
from reroll.reporting.catalog import OF_STEPS, Metric, catalog

PAGE = Path(__file__).with_name("metrics.md")

INTRODUCTION = """# Metrics

<!-- Written by docs/make_metrics.py; change reroll.reporting.catalog, or `metrics_logged` of a component, instead. -->

{text}
"""
TEXT = (
    "What a run gives to its trackers. The step is the number of completed optimizer steps: {when}, "
    "everything else with the last step of a collection. Names and units are stable; `<word>` stands for a name of the "
    "run's own. A component of a plugin that logs metrics of its own describes them in its `metrics_logged`."
)


def page() -> str:
    """The whole page."""
    when = ", ".join(f"`{room}/…` {when}" for room, when in OF_STEPS.items())
    parts = [INTRODUCTION.format(text=textwrap.fill(TEXT.format(when=when), 120))]
    own = catalog(load_plugins())
    for room, metrics in groupby(sorted(own, key=room_of), key=room_of):
        parts.append(f"## `{room}/`\n\n| name | unit | meaning |\n|---|---|---|")
        parts[-1] += "".join(f"\n| `{m.pattern}` | {m.unit} | {m.meaning}{origin(m)} |" for m in metrics)
        parts[-1] += "\n"
    return "\n".join(parts)


def room_of(metric: Metric) -> str:
    return metric.pattern.split("/")[0]


def origin(metric: Metric) -> str:
    return "" if metric.given_by == "reroll" else f" (`{metric.given_by}`)"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text("utf-8") == page() else f"{PAGE.name} is out of date: hatch run docs:pages")
    PAGE.write_text(page(), "utf-8")
