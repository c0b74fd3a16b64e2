"""`summary.json`: what the run came to, for programs; and its last lines, for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import Any

from reroll.api import SCORED_STATES, Group
from reroll.config.atomic import write_whole

SCHEMA = 1

LISTED_TASKS = 100
SHOWN_TASKS = 3

OF_ONE_START = {"name", "output", "starts", "ended", "message", "wall_seconds", "model"}
OF_ONE_START |= {"checkpoint", "missed_checkpoints"}
"""What a summary says of the last start of a run alone."""

EvalRecord = Mapping[str, Any]
"""The fields of an evaluation's result."""


@dataclass
class Summary:
    """Gathered while the run goes. Seconds are wall-clock, tokens are sampled or trained ones."""

    name: str
    output: Path
    starts: int = 1
    evaluations: list[EvalRecord] = field(default_factory=list)
    steps: int = 0
    collections: int = 0
    trained_samples: int = 0
    generated_tokens: int = 0
    generation_seconds: float = 0.0
    trained_tokens: int = 0
    training_seconds: float = 0.0
    publication_seconds: float = 0.0
    pause_seconds: float = 0.0
    """That engines stood still for publications, summed over engines; recomputation apart."""
    recompute_seconds: float = 0.0
    """That engines computed caches again after publications."""
    trainer_waiting_seconds: float = 0.0
    """That the trainer waited for a collection."""
    producer_blocked_seconds: float = 0.0
    """That generation stood still because the trainer was behind."""
    engine_restarts: int = 0
    """Of engines that were lost."""
    engine_absent_seconds: float = 0.0
    """From their loss until they were in use again, summed over engines."""
    wall_seconds: float = 0.0
    training_wall_seconds: float = 0.0
    """From the first collection to the last step: without start, evaluations and end."""
    ended: str = "running"
    message: str = ""
    ledger: dict[str, int] = field(default_factory=dict)
    filtered: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    verdicts: dict[str, int] = field(default_factory=dict)
    """State → verdicts, of the groups that collections held; see `VerdictState`."""
    groups_unknown: int = 0
    """Those in which a verifier could not judge."""
    unknown_tasks: list[str] = field(default_factory=list)
    """Their tasks, the first `LISTED_TASKS` of them."""
    model: Path | None = None
    checkpoint: Path | None = None
    """The newest whole one of the run."""
    missed_checkpoints: int = 0
    """Those that could not be written."""

    def judged(self, groups: Iterable[Group]) -> None:
        """Counts what verifiers said of a collection's groups."""
        for group in groups:
            for trace in group.traces:
                for verdict in trace.verdicts.values():
                    self.verdicts[verdict.state] = self.verdicts.get(verdict.state, 0) + 1
            if group.unknown_verifiers:
                self.groups_unknown += 1
                if group.task.key not in self.unknown_tasks and len(self.unknown_tasks) < LISTED_TASKS:
                    self.unknown_tasks.append(group.task.key)

    def at(self, first: bool) -> dict[str, Any] | None:
        """The evaluation of every set before training (`first`), or the last one, and their mean over sets; None
        without one."""
        known = [record for record in self.evaluations if record["step"] == 0] if first else self.evaluations
        chosen = {record["name"]: record for record in known}
        if not chosen:
            return None
        sets = {name: dict(record) for name, record in chosen.items()}
        return {"all": {"accuracy": fmean(record["accuracy"] for record in chosen.values())}, "sets": sets}

    def to_json(self) -> dict[str, Any]:
        paths = {name: getattr(self, name) for name in ("output", "model", "checkpoint")}
        values = asdict(self) | {name: str(path) if path else None for name, path in paths.items()}
        evaluations = values.pop("evaluations")
        return {
            "schema": SCHEMA,
            **values,
            "generated_tokens_per_second": _rate(self.generated_tokens, self.generation_seconds),
            "trained_tokens_per_second": _rate(self.trained_tokens, self.training_seconds),
            "eval": {"before": self.at(first=True), "after": self.at(first=False), "all": evaluations},
            "gain": self.gains(),
        }

    def gains(self) -> dict[str, dict[str, float]]:
        """Set name → the change in accuracy and its two parts, in points; see `split_gain`."""
        before, after = self.at(first=True), self.at(first=False)
        if before is None or after is None:
            return {}
        return {
            name: split_gain(record, after["sets"][name])
            for name, record in before["sets"].items()
            if after["sets"][name]["step"]
        }

    def state(self) -> dict[str, Any]:
        """What a later start of the run goes on counting from."""
        return {name: value for name, value in asdict(self).items() if name not in OF_ONE_START}

    def restore(self, state: Mapping[str, Any]) -> None:
        for item in fields(self):
            if item.name in state and item.name not in OF_ONE_START:
                setattr(self, item.name, state[item.name])

    def write(self) -> Path:
        path = self.output / "summary.json"
        write_whole(path, json.dumps(self.to_json(), indent=2) + "\n")
        return path


def split_gain(before: EvalRecord, after: EvalRecord) -> dict[str, float]:
    """The gain in points of accuracy, split into what more parseable answers and what more correct ones gave.

    Accuracy is parse rate times accuracy among parseable answers; each part is its factor's change times the
    mean of the other factor, so that the two add up to the gain.
    """
    gain = {"accuracy": 100 * (after["accuracy"] - before["accuracy"])}
    rates = [before["parse_rate"], after["parse_rate"], before["accuracy_parsed"], after["accuracy_parsed"]]
    if all(rate is not None for rate in rates):
        parsed_before, parsed_after, right_before, right_after = rates
        gain["parse_rate"] = 100 * (parsed_after - parsed_before) * (right_before + right_after) / 2
        gain["correctness"] = 100 * (right_after - right_before) * (parsed_before + parsed_after) / 2
    return gain


def closing_lines(summary: Summary) -> Sequence[str]:
    """The last lines of a run's output: from what to what, and where everything is."""
    lines: list[str] = []
    before, after, gains = summary.at(first=True), summary.at(first=False), summary.gains()
    for name, gain in gains.items():
        assert before is not None and after is not None
        first, last = before["sets"][name], after["sets"][name]
        lines.append(
            f"{name}: accuracy {first['accuracy']:.1%} → {last['accuracy']:.1%} ({gain['accuracy']:+.1f} points) "
            f"on {last['responses']} held-out responses after {last['step']} steps"
            + (f"; {last['failed']} could not be scored" if last["failed"] else "")
            + (f"; {last['skipped']} prompts are too long" if last["skipped"] else "")
        )
        if "correctness" in gain:
            lines.append(
                f"  parse rate {first['parse_rate']:.1%} → {last['parse_rate']:.1%} "
                f"({gain['parse_rate']:+.1f} points), "
                f"accuracy among parseable answers {first['accuracy_parsed']:.1%} → {last['accuracy_parsed']:.1%} "
                f"({gain['correctness']:+.1f} points)"
            )
    lines.append(
        f"{summary.steps} steps on {summary.trained_samples} samples in {summary.training_wall_seconds:.1f} s "
        + (
            f"(over {summary.starts} starts; the last one {summary.wall_seconds:.1f} s); "
            if summary.starts > 1
            else f"({summary.wall_seconds:.1f} s with start and evaluations); "
        )
        + f"{_rate(summary.generated_tokens, summary.generation_seconds):,.0f} tokens/s generated, "
        f"{_rate(summary.trained_tokens, summary.training_seconds):,.0f} tokens/s trained"
    )
    lines.append(
        f"the trainer waited {summary.trainer_waiting_seconds:.1f} s for rollouts, generation "
        f"{summary.producer_blocked_seconds:.1f} s for the trainer"
    )
    if summary.engine_absent_seconds:
        lines.append(
            f"engines were lost: {summary.engine_restarts} restarts, {summary.engine_absent_seconds:.1f} s without one"
        )
    lines += _judging_lines(summary)
    if summary.skipped:
        lines.append("skipped prompts: " + ", ".join(f"{reason}: {count}" for reason, count in summary.skipped.items()))
    lines.append(f"rollouts: {summary.output / 'rollouts'}")
    metrics = summary.output / "metrics.jsonl"
    lines.append(
        (f"metrics:  {metrics}, " if metrics.is_file() else "") + f"summary: {summary.output / 'summary.json'}"
    )
    if summary.ended == "completed" and summary.message:
        lines.append(summary.message)
    if summary.checkpoint:
        lines.append(f"checkpoint: {summary.checkpoint}")
    if summary.missed_checkpoints:
        log = summary.output / "run.log"
        lines.append(f"{summary.missed_checkpoints} checkpoints could not be written; {log} says why")
    if summary.model:
        lines.append(f"model:    {summary.model}")
    return lines


def _judging_lines(summary: Summary) -> Sequence[str]:
    """What verifiers could not judge, where there was something."""
    lines: list[str] = []
    failed = {state: count for state, count in summary.verdicts.items() if state not in SCORED_STATES}
    if failed:
        listed = ", ".join(f"{count} {state}" for state, count in sorted(failed.items()))
        lines.append(f"verdicts without a score: {listed}, of {sum(summary.verdicts.values())}")
    if summary.groups_unknown:
        shown = ", ".join(summary.unknown_tasks[:SHOWN_TASKS]) + (", …" if summary.unknown_tasks[SHOWN_TASKS:] else "")
        lines.append(
            f"{summary.groups_unknown} groups hold responses that could not be judged, most often for a target that no "
            f"verifier reads: {shown}; summary.json lists the tasks"
        )
    return lines


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds else 0.0
