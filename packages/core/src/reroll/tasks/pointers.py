"""The rows of an index: what points at a task, and which task set it is of."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from reroll.api import Selection, Task, TaskError

POINTER = ("source_dataset", "source_row", "prepared_sample_id")
"""The columns that point at a task."""
SETS = "task_set"
"""The column with the selection of the set that a row's task is of, as JSON. A column, since metadata of a file is lost
where data frames are joined."""

DIGEST = "task_digest"
"""The column with `task_digest` of each row's task, where it is known what was measured."""

Pointer = tuple[str, int, str]


def pointer_of(task: Task) -> Pointer:
    return task.source_dataset, task.source_row, task.prepared_sample_id


def task_digest(task: Task) -> str:
    """What a task asks and is judged by, in 16 hexadecimal digits: a file may hold another one in its place one day."""
    said = json.dumps([task.prompt, dict(task.targets)], sort_keys=True, default=repr)
    return hashlib.sha256(said.encode()).hexdigest()[:16]


class IndexRows:
    """The pointers of a file, read whole; TaskError for a file that is no index, or that counts a task twice.

    Args:
        of: the set that all rows' tasks are of; None for what each row says.

    Attributes:
        sets: the sets that rows say, each once.
    """

    def __init__(self, path: Path, of: Selection | None) -> None:
        self._path = path
        columns = read_columns(path, POINTER if of is not None else (*POINTER, SETS))
        self._columns = [columns[name] for name in POINTER]
        self._digests = _digests(path)
        self._refuse_repeats(columns)
        self.sets: list[Selection] = []
        if of is not None:
            self.sets, self._set_of = [of], array("L", [0]) * len(self)
            return
        encoded = columns[SETS].combine_chunks().dictionary_encode()
        numbers = [self._number(text, row) for text, row in _first_rows(encoded)]
        self._set_of = array("L", (numbers[code] for code in encoded.indices.to_pylist()))

    def __len__(self) -> int:
        return len(self._columns[0])

    def pointer(self, row: int) -> Pointer:
        dataset, number, sample = (column[row].as_py() for column in self._columns)
        return dataset, number, sample

    def digest(self, row: int) -> str | None:
        """Of the task as it was when the index was made; None where the file does not say it."""
        return None if self._digests is None else self._digests[row].as_py() or None

    def set_of(self, row: int) -> int:
        """Which of `sets` the row's task is of."""
        return self._set_of[row]

    def of_set(self, number: int) -> PointersOf:
        """All pointers into one of `sets`."""
        return PointersOf(self, number)

    def _number(self, text: str, row: int) -> int:
        """Of the selection in `sets`, to which it is added; two texts may say the same."""
        where = f"{self._path}:{row + 1}: {SETS} = {text!r:.80}"
        try:
            selection = Selection.model_validate(json.loads(text))
        except (ValueError, ValidationError, RecursionError):
            remedy = 'write {"name": …} with its options, or set `of`, which stands for the whole column'
            raise TaskError(f"{where} is no selection of a task set in JSON; {remedy}") from None
        if selection not in self.sets:
            self.sets.append(selection)
        return self.sets.index(selection)

    def _refuse_repeats(self, columns: Any) -> None:
        names = list(POINTER)
        counts = columns.select(names).group_by(names, use_threads=False).aggregate([([], "count_all")])
        if counts.num_rows == len(self):
            return
        first: dict[Pointer, int] = {}
        for row in range(len(self)):
            before = first.setdefault(self.pointer(row), row)
            if before != row:
                raise TaskError(
                    f"{self._path}:{row + 1}: points at the task that row {before + 1} points at "
                    f"({', '.join(map(repr, self.pointer(row)))}), which would count twice; "
                    f"drop_duplicates({names}) leaves one of them"
                )


class PointersOf:
    """The pointers of the rows whose tasks are of one set, read when they are asked for."""

    def __init__(self, rows: IndexRows, number: int) -> None:
        self._rows = rows
        self._number = number

    def __iter__(self) -> Iterator[Pointer]:
        for row in range(len(self._rows)):
            if self._rows.set_of(row) == self._number:
                yield self._rows.pointer(row)


def read_columns(path: Path, names: Sequence[str]) -> Any:
    """A table of these columns of an index, of text and of whole numbers and without nulls; TaskError where there is
    no such file."""
    if not path.is_file():
        raise TaskError(f"{path.absolute()} does not exist (paths count from the working directory)")
    try:
        from pyarrow import parquet
    except ImportError:
        raise TaskError(f"{path} needs pyarrow: pip install 'reroll[parquet]'") from None
    try:
        with parquet.ParquetFile(path) as file:
            there = file.schema_arrow.names
            table = file.read(columns=[name for name in names if name in there])
    except Exception as error:
        raise TaskError(f"{path} is no readable Parquet file: {error}") from None
    for name in names:
        if name not in there:
            remedy = "set `of` to that task set" if name == SETS else f"an index has {', '.join(POINTER)}"
            what = "that says which task set its rows' tasks are of" if name == SETS else "and is no index"
            raise TaskError(f"{path} has no column {name!r} {what}; {remedy}; its columns: {', '.join(there)}")
    if not table.num_rows:
        raise TaskError(f"{path} holds no rows: no task's pass rate was in the band; widen it")
    for name in names:
        table = table.set_column(table.schema.get_field_index(name), name, _checked(path, name, table[name]))
    return table


def _digests(path: Path) -> Any:
    from pyarrow import parquet, types

    with parquet.ParquetFile(path) as file:
        if DIGEST not in file.schema_arrow.names:
            return None
        column = file.read(columns=[DIGEST])[DIGEST]
    return column if _is_text(types, column.type) else None


def _checked(path: Path, name: str, column: Any) -> Any:
    """The column as text or whole numbers."""
    from pyarrow import string, types

    if types.is_dictionary(column.type):  # a data frame's categories
        column = column.cast(column.type.value_type)
    whole = name == "source_row"
    fits = types.is_integer(column.type) if whole else _is_text(types, column.type)
    if not fits:
        kind, cast = ("whole numbers", "int64") if whole else ("text", "str")
        raise TaskError(
            f"{path}: the column {name!r} holds {column.type}, not {kind}; write it with "
            f"frame[{name!r}].astype({cast!r}), or drop the rows without one"
        )
    if column.null_count:
        row = column.is_null().index(True).as_py()
        remedy = "drop the row, or set `of`" if name == SETS else "drop the row"
        raise TaskError(f"{path}:{row + 1}: {name} is missing; {remedy}")
    return column if whole else column.cast(string())


def _is_text(types: Any, kind: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _first_rows(encoded: Any) -> Iterator[tuple[str, int]]:
    """Each text of a column with the first row that has it."""
    for code, text in enumerate(encoded.dictionary.to_pylist()):
        yield text, encoded.indices.index(code).as_py()
