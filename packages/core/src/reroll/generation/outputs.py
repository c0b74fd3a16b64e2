"""The files that a generation, or a merge, leaves: index, table, summary and picture."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from reroll.config.atomic import write_whole
from reroll.generation.bands import Band
from reroll.generation.index_file import write_index
from reroll.generation.protocol import GenerationProtocol
from reroll.generation.summary import Summary, summarise
from reroll.generation.summary_view import picture
from reroll.generation.tally import Tally, TaskResult

COLUMNS = (
    "source_dataset",
    "source_row",
    "prepared_sample_id",
    "n_pass",
    "n_fail",
    "n_error",
    "pass_rate",
    "reward",
    "tokens",
    "truncated",
    "skipped",
)
"""Of the table: one row a task."""


@dataclass(frozen=True)
class Outputs:
    """Where each of them is."""

    index: Path
    table: Path
    summary: Path
    picture: Path

    @classmethod
    def of_folder(cls, folder: Path, index: Path) -> Outputs:
        """Of a results folder."""
        return cls(index, folder / "summary.csv", folder / "summary.json", folder / "pass_rates.svg")

    @classmethod
    def beside(cls, index: Path) -> Outputs:
        """Of a merge."""
        return cls(index, *(index.with_name(index.stem + end) for end in (".summary.csv", ".summary.json", ".svg")))


def conclude(
    tally: Tally, protocol: GenerationProtocol, band: Band, outputs: Outputs, results: Iterable[Path]
) -> Summary:
    """Writes index, table, summary and picture, each of them whole. Equal outcomes give an equal index and table.

    Args:
        results: the folders that were counted, to be named in the summary.
    """
    selected = write_index(outputs.index, tally.tasks(), band, protocol)
    write_table(outputs.table, tally.tasks())
    summary = summarise(tally, protocol, band, selected, outputs.index, results)
    write_whole(outputs.summary, json.dumps(summary.to_json(), indent=2) + "\n")
    write_whole(outputs.picture, picture(summary))
    return summary


def write_table(path: Path, tasks: Iterable[TaskResult]) -> None:
    """The table: numbers as the shortest decimals that say them exactly, empty where there is none."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for task in tasks:
        writer.writerow([getattr(task, name) for name in COLUMNS])  # the module writes floats by repr, None empty
    path.parent.mkdir(parents=True, exist_ok=True)
    # An id may hold what no file of text can.
    write_whole(path, text.getvalue().encode("utf-8", "backslashreplace").decode())
