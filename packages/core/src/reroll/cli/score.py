"""`reroll score VERIFIER FILE`: judge a file of answers with any verifier, without a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer

if TYPE_CHECKING:
    from reroll.api import Message
    from reroll.rollouts.scoring.scorer import SelectedVerifier, TimedVerdict

IN_FLIGHT = 512
"""Calls that wait for a verdict at once; more would only fill memory."""
SHOWN_PROBLEMS = 20


class Line(NamedTuple):
    """One answer to judge.

    Attributes:
        prompt: what was asked; empty where the line does not say it.
        fields: the whole object of the line.
    """

    number: int
    gold: Any
    answer: str
    prompt: list[Message] | str
    fields: dict[str, Any]


def score(
    verifier: Annotated[str, typer.Argument(help="Name of the verifier, as in a task's targets.")],
    file: Annotated[
        Path,
        typer.Argument(
            help='JSON lines with "gold", what the verifier compares with, and "answer"; and where known "prompt" or '
            '"question", a text or chat messages, which a judge is shown; "id"; "expected", true or false, and "kind", '
            "by which the summary counts how often the verdict is as expected."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File for one verdict a line; without it they go to standard output."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that judge.")] = 2,
    deadline: Annotated[
        float,
        typer.Option(min=0.001, help="Seconds that one answer may take, unless the verifier has an option for it."),
    ] = 10.0,
    memory_limit_mb: Annotated[int, typer.Option(min=0, help="Memory of one process, in MiB; 0: no limit.")] = 2048,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Option of the verifier, with a TOML value.")
    ] = None,
) -> None:
    """Judge a file of answers with a verifier. Ends with exit code 1 where not one of them could be judged."""
    import asyncio

    from reroll.api import RerollError, counted
    from reroll.rollouts.scoring.config import ScoringConfig

    selected = _select(verifier, option or [])
    lines = _read(file)
    if output is not None:
        _check_output(output, file)
    config = ScoringConfig(workers=workers, deadline_seconds=deadline, memory_limit_mb=memory_limit_mb)
    try:
        judged = asyncio.run(_judge(verifier, selected, lines, config))
    except RerollError as error:
        _stop(str(error), 1)
    rows = [_row(line, found) for line, found in zip(lines, judged, strict=True)]
    _write(rows, output)
    _summarise(verifier, lines, rows, to_stderr=output is None)
    if not any(map(_is_judged, rows)):
        first = rows[0]["state"] + (f": {rows[0]['detail']}" if rows[0]["detail"] else "")
        _stop(f"not one of {counted(len(rows), 'answer')} was judged; the first is {first}", 1)


def _select(name: str, options: list[str]) -> SelectedVerifier:
    from pydantic import ValidationError

    from reroll.api import RerollError
    from reroll.config.problems import from_validation
    from reroll.config.toml import parse_option
    from reroll.plugins import installed_plugins
    from reroll.rollouts.scoring.scorer import SelectedVerifier

    try:
        provided = installed_plugins().get("verifiers", name)
        values = dict(map(parse_option, options))
    except RerollError as error:
        _stop(str(error), 2)
    try:
        return SelectedVerifier(provided.cls(provided.cls.Config.model_validate(values)), provided.distribution)
    except ValidationError as error:
        _stop("\n".join(str(problem) for problem in from_validation(error, name, provided.cls.Config)), 2)


def _read(file: Path) -> list[Line]:
    """Every line of the file, or an end with all that is wrong with them."""
    lines: list[Line] = []
    problems: list[str] = []
    try:
        with file.open(encoding="utf-8") as opened:
            for number, text in enumerate(opened, 1):
                if text.strip():
                    found = _parse(number, text)
                    if isinstance(found, Line):
                        lines.append(found)
                    else:
                        problems.append(f"{file}:{number}: {found}")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        _stop(f"cannot read {file}: {reason}", 2)
    if problems:
        more = len(problems) - SHOWN_PROBLEMS
        _stop("\n".join([*problems[:SHOWN_PROBLEMS], *([f"and {more} lines more"] if more > 0 else [])]), 2)
    if not lines:
        _stop(f"{file}: there is nothing to judge in it", 2)
    return lines


def _parse(number: int, text: str) -> Line | str:
    """The line, or what is wrong with it."""
    import json

    from reroll.tasks.file import prompt_fault

    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        return f"is not JSON: {error.msg} at column {error.colno}"
    except RecursionError:
        return "is nested too deeply"
    if not isinstance(fields, dict):
        return 'is not a JSON object; write {"gold": …, "answer": …}'
    missing = [f'"{key}"' for key in ("gold", "answer") if key not in fields]
    if missing:
        return f"has no {' and no '.join(missing)}"
    if fields["gold"] is None:
        return '"gold" is null, and no answer can be compared with that; give what the verifier compares with'
    if not isinstance(fields["answer"], str):
        return f'"answer" must be a text, not {json.dumps(fields["answer"])}'
    if not isinstance(fields.get("expected", False), bool):
        return f'"expected" must be true or false, not {fields["expected"]!r}'
    prompt: list[Message] | str = ""
    for key in ("question", "prompt"):
        if fields.get(key) not in (None, ""):
            if fault := prompt_fault(fields[key], f'"{key}"'):
                return fault
            prompt = fields[key]
    return Line(number, fields["gold"], fields["answer"], prompt, fields)


def _check_output(output: Path, file: Path) -> None:
    """Ends before anything is judged if the verdicts could not, or must not, be written there."""
    if output.resolve() == file.resolve() or (output.exists() and output.samefile(file)):
        _stop(f"--output {output}: is the file of answers itself; name another file", 2)
    if output.exists() and not output.is_file():
        _stop(f"--output {output}: is not a file that could be replaced", 2)
    if not output.resolve().parent.is_dir():
        _stop(f"--output {output}: the folder {output.resolve().parent} does not exist", 2)


async def _judge(name: str, selected: SelectedVerifier, lines: list[Line], config: Any) -> list[TimedVerdict]:
    import asyncio

    from reroll.api import Task, Trace, Verdict
    from reroll.rollouts.scoring.scorer import Scorer, TimedVerdict
    from reroll.tasks.targets import unjudgeable

    judged: dict[int, TimedVerdict] = {}
    left = iter(enumerate(lines))

    async def take(scorer: Scorer, done: Any) -> None:
        for index, line in left:
            if why := unjudgeable(selected.verifier, line.gold):
                judged[index] = TimedVerdict(Verdict(None, state="unknown", detail=why), 0.0)
            else:
                task = Task(line.prompt, {name: line.gold}, "answers", line.number - 1, str(line.number))
                judged[index] = (await scorer.judge(name, task, [Trace.of(task, line.answer)]))[0]
            done()

    with _progress(len(lines)) as done:
        async with Scorer({name: selected}, config) as scorer:
            await asyncio.gather(*(take(scorer, done) for _ in range(min(IN_FLIGHT, len(lines)))))
    return [judged[index] for index in range(len(lines))]


def _row(line: Line, judged: TimedVerdict) -> dict[str, Any]:
    verdict = judged.verdict
    return {
        **({"id": line.fields["id"]} if "id" in line.fields else {}),
        "line": line.number,
        "score": verdict.score,
        "state": verdict.state,
        "components": dict(verdict.components),
        "detail": verdict.detail,
        "seconds": round(judged.seconds, 6),
    }


def _write(rows: list[dict[str, Any]], output: Path | None) -> None:
    """All verdicts at once: a file that is there is complete."""
    import json
    import os

    texts: Iterator[str] = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if output is None:
        for text in texts:
            typer.echo(text, nl=False)
        return
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8") as opened:
            opened.writelines(texts)
        partial.replace(output)
    except OSError as error:
        _stop(f"cannot write {output}: {error.strerror}", 1)
    finally:
        partial.unlink(missing_ok=True)


def _is_judged(row: dict[str, Any]) -> bool:
    from reroll.api import SCORED_STATES

    return row["score"] is not None and row["state"] in SCORED_STATES


def _summarise(name: str, lines: list[Line], rows: list[dict[str, Any]], to_stderr: bool) -> None:
    from collections import Counter

    from rich.console import Console
    from rich.table import Table

    from reroll.api import counted

    table = Table("", "", title=f"{name}: {counted(len(rows), 'answer')}", title_justify="left", show_header=False)
    for state, count in Counter(row["state"] for row in rows).most_common():
        table.add_row(state, str(count))
    scores = [row["score"] for row in rows if _is_judged(row)]
    table.add_row("judged", f"{len(scores)} of {len(rows)}")
    table.add_row("mean score of those", f"{sum(scores) / len(scores):.4f}" if scores else "none")
    seconds = sorted(row["seconds"] for row in rows)
    table.add_row("seconds, median", f"{seconds[len(seconds) // 2]:.6f}")
    table.add_row("seconds, p99", f"{seconds[min(len(seconds) - 1, len(seconds) * 99 // 100)]:.6f}")
    agreed: dict[str, list[bool]] = {}
    for line, row in zip(lines, rows, strict=True):
        if "expected" in line.fields:
            # An answer that was not judged agrees with nothing.
            found = row["score"] >= 0.5 if _is_judged(row) else None
            kinds = ["as expected", *([f"  {line.fields['kind']}"] if "kind" in line.fields else [])]
            for kind in kinds:
                agreed.setdefault(kind, []).append(found is line.fields["expected"])
    for kind in sorted(agreed, key=lambda kind: (kind.startswith("  "), kind)):
        table.add_row(kind, f"{sum(agreed[kind]) / len(agreed[kind]):.1%} of {len(agreed[kind])}")
    Console(stderr=to_stderr).print(table, markup=False)


def _progress(total: int) -> Any:
    """A context that gives a function to call once an answer; it shows nothing away from a terminal."""
    import sys
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    @contextmanager
    def shown() -> Iterator[Any]:
        columns = [*Progress.get_default_columns(), MofNCompleteColumn()]
        with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
            task = bar.add_task("judging", total=total)
            yield lambda: bar.advance(task)

    return shown()


def _stop(message: str, code: int) -> NoReturn:
    typer.echo(f"error: {message}" if "\n" not in message else message, err=True)
    raise typer.Exit(code)
