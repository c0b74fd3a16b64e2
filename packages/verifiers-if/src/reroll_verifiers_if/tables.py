"""Instructions to write tables (IFBench, `custom:csv_`)."""

from __future__ import annotations

import re

from reroll_verifiers_if.registry import instruction
from reroll_verifiers_if.texts import has_content

_SPECIAL = re.compile(r"[^\w\s]")
_SHARED = "A field with a line break in it, which the reference reads, is none here, and a row with a field "
_SHARED += "left empty, which it passes, is no row."


def read_row(line: str, delimiter: str) -> list[str] | None:
    """The fields of one line, those in quotes with their quotes; None where a quoted one is not closed or goes on."""
    fields, position = [], 0
    while True:
        if line.startswith('"', position):
            end = _closing(line, position + 1)
            if end is None:
                return None
            end += 1
        else:
            end = line.find(delimiter, position)
            end = len(line) if end < 0 else end
        fields.append(line[position:end])
        # Space between a closing quote and the delimiter belongs to neither.
        after = end + len(line[end:]) - len(line[end:].lstrip(" ")) if line[end : end + 1] == " " else end
        if after == len(line):
            return fields
        if not line.startswith(delimiter, after):
            return None
        position = after + 1
        while line.startswith(" ", position):
            position += 1


def _closing(line: str, position: int) -> int | None:
    """Where the quote that opened before `position` closes; two in a row stand for one within."""
    while True:
        position = line.find('"', position)
        if position < 0:
            return None
        if not line.startswith('"', position + 1):
            return position
        position += 2


def read_table(text: str, columns: tuple[str, ...], rows: int, delimiter: str) -> list[list[str]] | None:
    """The rows under the header; None if the header is another, or a row is missing, too many, of another
    width or has a field without a letter or digit."""
    written = text.strip().split("\n")
    if len(written) != rows + 1:
        return None
    table = []
    for line in written:
        fields = read_row(line.strip(" \r"), delimiter)
        if fields is None or len(fields) != len(columns):
            return None
        table.append([field.strip() for field in fields])
        if not all(map(has_content, table[-1])):
            return None
    return table if tuple(field.strip('"') for field in table[0]) == columns else None


def is_quoted(field: str) -> bool:
    """Whether a field of a row stands in double quotes."""
    return len(field) > 1 and field[0] == field[-1] == '"'


@instruction(
    "custom:csv_city",
    "Is CSV with the columns ID, Country, City, Year, Count and 7 rows.",
    differs=_SHARED + " Spaces after a comma are let pass in the header.",
)
def csv_city(text: str) -> bool:
    return read_table(text, ("ID", "Country", "City", "Year", "Count"), 7, ",") is not None


@instruction(
    "custom:csv_special_character",
    "Is CSV with the columns ProductID, Category, Brand, Price, Stock and 14 rows, with a special character in at "
    "least one field in double quotes.",
    differs=_SHARED + " The reference does not look at the rows behind the first one with a special character.",
)
def csv_special_character(text: str) -> bool:
    table = read_table(text, ("ProductID", "Category", "Brand", "Price", "Stock"), 14, ",")
    fields = [field for row in (table or [])[1:] for field in row if is_quoted(field)]
    return any(_SPECIAL.search(field[1:-1]) for field in fields)


@instruction(
    "custom:csv_quotes",
    "Is CSV separated by tabs with the columns StudentID, Subject, Grade, Semester, Score and 3 rows, every field in "
    "double quotes, the header's too.",
    differs=_SHARED,
)
def csv_quotes(text: str) -> bool:
    table = read_table(text, ("StudentID", "Subject", "Grade", "Semester", "Score"), 3, "\t")
    return table is not None and all(is_quoted(field) for row in table for field in row)
