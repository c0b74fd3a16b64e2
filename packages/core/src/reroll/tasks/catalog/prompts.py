"""Prompts of the catalog: a template's places filled with a row's texts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from reroll.api import Dataset, DatasetConfig, DatasetRow, Message, PluginError, TaskError


def template_of(dataset: Dataset) -> str:
    """The template that the options give, or the data set's own; TaskError where a place is missing in it."""
    template: str = dataset.template if dataset.config.template is None else dataset.config.template
    missing = [place for place in dataset.places if f"{{{place}}}" not in template]
    if missing:
        raise TaskError(
            f"template = {template!r:.80} has no {{{missing[0]}}}, so that no prompt would say what is asked; put it in"
        )
    return template


def filled(template: str, places: Sequence[str], values: Mapping[str, str]) -> str:
    """The template with its places filled, in one pass: braces of a text that is filled in are no places."""
    if absent := [place for place in places if not isinstance(values.get(place), str)]:
        raise PluginError(f"a data set gave no text for the place {absent[0]!r} of its template")
    if not places:
        return template
    return re.sub(r"\{(" + "|".join(map(re.escape, places)) + r")\}", lambda found: values[found[1]], template)


def prompt_of(dataset: Dataset, template: str, row: DatasetRow) -> list[Message]:
    """The chat that a row becomes."""
    if row.messages is not None:
        return row.messages
    config: DatasetConfig = dataset.config
    system = [] if config.system is None else [{"role": "system", "content": config.system}]
    return [*system, {"role": "user", "content": filled(template, dataset.places, row.values)}]


def canonical(value: Any) -> bytes:
    """JSON that is the same for equal values; TaskError for what JSON does not hold."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise TaskError(f"holds what JSON does not: {error}") from None


def asked(row: DatasetRow) -> bytes:
    """What a row asks, whatever the template is: equal for equal questions."""
    return canonical(row.messages if row.messages is not None else dict(row.values))
