"""The index: which tasks a training run is to draw, as a Parquet file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from reroll.api import RerollError
from reroll.config.atomic import replacing
from reroll.generation.bands import Band
from reroll.generation.protocol import GenerationProtocol, ResultsError
from reroll.generation.tally import TaskResult


def require_parquet(what: str) -> None:
    """RerollError, before anything is run, where Parquet files cannot be written.

    Args:
        what: the option or key that asks for one, and its value.
    """
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise RerollError(f"{what} needs pyarrow: pip install 'reroll[parquet]'") from None


def write_index(path: Path, tasks: Iterable[TaskResult], band: Band, protocol: GenerationProtocol) -> int:
    """Writes the tasks whose pass rate is in the band; gives their number. Equal outcomes give equal bytes.

    Columns: the three pointer fields, `pass_rate`, `n_pass`, `n_fail`, `n_error`, `tokens` (mean of a judged attempt's
    sampled ones), and `task_set`, the selection of the set that the task is of, as JSON.

    Args:
        tasks: in the order that the rows are to have.
    """
    import pyarrow
    from pyarrow import parquet

    columns: dict[str, tuple[Any, list[Any]]] = {
        "source_dataset": (pyarrow.string(), []),
        "source_row": (pyarrow.int64(), []),
        "prepared_sample_id": (pyarrow.string(), []),
        "pass_rate": (pyarrow.float64(), []),
        "n_pass": (pyarrow.int64(), []),
        "n_fail": (pyarrow.int64(), []),
        "n_error": (pyarrow.int64(), []),
        "tokens": (pyarrow.float64(), []),
        "task_set": (pyarrow.string(), []),
        "task_digest": (pyarrow.string(), []),
    }
    selections: dict[str, str] = {}
    count = 0
    for task in tasks:
        if not band.takes(task.n_pass, task.n_judged):
            continue
        if task.source not in selections:
            selections[task.source] = _selection(protocol, task)
        given = {
            "tokens": task.tokens / task.n_judged,
            "task_set": selections[task.source],
            "task_digest": task.digest,
        }
        for name, (_, values) in columns.items():
            values.append(given[name] if name in given else getattr(task, name))
        count += 1
    try:
        table = pyarrow.table({name: pyarrow.array(values, kind) for name, (kind, values) in columns.items()})
    except (pyarrow.ArrowInvalid, OverflowError, UnicodeError) as error:
        raise ResultsError(f"{path}: the results hold what no index can: {error}") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        parquet.write_table(table, file)
    return count


def _selection(protocol: GenerationProtocol, task: TaskResult) -> str:
    try:
        return protocol.task_set_of(task.source)
    except StopIteration:
        names = ", ".join(source.name for source in protocol.sources)
        raise ResultsError(
            f"task {task.position} ({task.prepared_sample_id}) is of source {task.source!r}, and what the results were "
            f"measured with names only {names}: the folder's files are not of one generation"
        ) from None
