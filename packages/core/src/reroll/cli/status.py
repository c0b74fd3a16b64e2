"""`reroll status`: how a run stands."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from reroll.cli.options import JsonOption
from reroll.cli.target import RunArgument, output_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reroll.launch.standing import Standing

ASKING_SECONDS = 1.0
LAST_ATTEMPTS = 10
SHOWN_METRICS = (
    "rollout/reward",
    "train/loss",
    "train/grad_norm",
    "train/lr",
    "staleness/max",
    "throughput/generated_tokens_per_second",
    "throughput/trained_tokens_per_second",
)


def status(
    target: RunArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    json_: JsonOption = False,
) -> None:
    """Show how a run stands: whether it is alive and where, its starts, step, last metrics and waits.

    With --follow a line for every change; then the exit code is 0 where the run completed, and 1 where it ended
    otherwise."""
    from reroll.launch.standing import standing_of
    from reroll.plugins import installed_plugins

    output, plugins = output_of(target), installed_plugins()
    standing = standing_of(output, plugins)
    last = ""
    while follow and (standing.alive or not standing.ended):
        line = json.dumps(standing.to_json()) if json_ else one_line(standing)
        if line != last and not standing.ended:  # an end is told once, below
            typer.echo(line)
            last = line
        time.sleep(ASKING_SECONDS)
        standing = standing_of(output, plugins)
    if json_:
        typer.echo(json.dumps(standing.to_json(), indent=None if follow else 2))
    else:
        for line in table(standing):
            typer.echo(line)
    if follow and standing.state != "completed":
        raise typer.Exit(1)


def one_line(standing: Standing) -> str:
    from reroll.launch.standing import is_number

    parts = [standing.state, f"start {standing.starts}" if standing.starts else "", _collections(standing)]
    if standing.step is not None:
        parts.append(f"step {standing.step}")
    if is_number(reward := standing.metrics.get("rollout/reward")):
        parts.append(f"reward {reward:.3f}")
    return "  ".join(part for part in parts if part)


def table(standing: Standing) -> Iterator[str]:
    """Lines for a person."""
    from reroll.launch.standing import is_number

    bound = f" of at most {standing.max_retries}" if standing.max_retries >= 0 else ""
    rows = [
        ("run", f"{standing.run}  {standing.output}"),
        ("state", standing.state),
        *([("because", standing.message)] if standing.message else []),
        ("alive", {True: "yes", False: "no", None: "not known"}[standing.alive] + _in_brackets(standing.where)),
        ("started by", f"{standing.backend}, {standing.submitted}" if standing.backend else "reroll train"),
        ("starts", f"{standing.starts}{bound}"),
        ("progress", "  ".join(filter(None, (_collections(standing), _step(standing))))),
        ("checkpoint", standing.checkpoint or "none"),
    ]
    for name, value in rows:
        yield f"{name:<11} {value}"
    for item in standing.attempts[-LAST_ATTEMPTS:]:
        begun = "from the beginning" if item.from_step is None else f"from step {item.from_step}"
        yield f"  start {item.number:<3} {item.started}  {item.host}  process {item.pid}  {begun}"
    if standing.waits:
        waits = "  ".join(f"{name} {seconds:.2f} s" for name, seconds in standing.waits.items())
        yield f"{'waits':<11} {waits}  (last collection)"
    for name, item in standing.evaluations.items():
        yield f"{'evaluation':<11} {name}: accuracy {item['accuracy']:.1%} at step {item['step']}"
    shown = [(name, standing.metrics[name]) for name in SHOWN_METRICS if is_number(standing.metrics.get(name))]
    for number, (name, value) in enumerate(shown):
        yield f"{'metrics' if not number else '':<11} {name} {value:.6g}"
    for fault in standing.faults:
        yield f"{'fault':<11} {fault}"


def _in_brackets(text: str) -> str:
    return f"  ({text})" if text else ""


def _collections(standing: Standing) -> str:
    if standing.collections is None:
        return ""
    total = f"/{standing.num_rollout}" if standing.num_rollout else ""
    return f"collection {standing.collections}{total}"


def _step(standing: Standing) -> str:
    return "no step yet" if standing.step is None else f"step {standing.step}"
