"""The data set `if`: prompts with instructions that are judged by rule, in the forms in which they are published."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from reroll import Dataset, DatasetRow, TaskError, given_messages, text_field

IDS = ("instruction_id_list", "instruction_id")


class InstructionsDataset(Dataset):
    """Prompts of IFEval, IFBench and of training sets in their forms."""

    name = "if"
    verifier = "instructions"
    template = "{prompt}"
    places = ("prompt",)
    shapes = (
        "prompt (or messages), instruction_id_list and kwargs, with or without key; or messages and ground_truth, "
        "which holds instruction_id and kwargs, as JSON or as Python writes it"
    )

    def row(self, raw: Mapping[str, Any]) -> DatasetRow:
        target = instructions(raw)
        metadata = {"key": raw["key"]} if isinstance(raw.get("key"), str | int) else {}
        messages = given_messages(raw)
        if messages is not None:
            return DatasetRow(target, messages=messages, metadata=metadata)
        prompt = text_field(raw, "prompt")
        if self.config.template is not None:
            target["prompt"] = prompt  # what an instruction takes from the prompt is in this text, not in the template
        return DatasetRow(target, {"prompt": prompt}, metadata=metadata)


def instructions(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The target: ids, and for each its parameters without those that are null."""
    given: Any = raw
    if all(raw.get(name) is None for name in IDS):
        if raw.get("ground_truth") is None:
            raise TaskError(
                f"has no instruction_id_list and no ground_truth; its fields: {', '.join(map(str, raw)) or 'none'}"
            )
        given = _decoded(raw["ground_truth"], "ground_truth")
        if isinstance(given, list) and len(given) == 1:
            given = _decoded(given[0], "ground_truth[0]")
    if not isinstance(given, Mapping):
        raise TaskError(f"ground_truth = {given!r:.60} is no table with instruction_id and kwargs")
    if given.get("func_name") is not None:
        raise TaskError(
            f"ground_truth names the function {given['func_name']!r:.60}: rows of that older form have no "
            "instruction ids; give a set with instruction_id and kwargs"
        )
    ids = next((given[name] for name in IDS if given.get(name) is not None), None)
    if not isinstance(ids, list) or not ids or not all(isinstance(item, str) for item in ids):
        raise TaskError(f"instruction_id_list = {ids!r:.60} is no list of ids")
    kwargs = _decoded(given.get("kwargs"), "kwargs")
    if kwargs is None:
        kwargs = [None] * len(ids)
    if not isinstance(kwargs, list) or len(kwargs) != len(ids):
        raise TaskError(f"kwargs = {kwargs!r:.60} is no list with one table for each of {len(ids)} ids")
    return {"instruction_id_list": ids, "kwargs": [_parameters(item, at) for at, item in enumerate(kwargs)]}


def _parameters(given: Any, at: int) -> dict[str, Any]:
    given = _decoded(given, f"kwargs[{at}]")
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TaskError(f"kwargs[{at}] = {given!r:.60} is no table of parameters")
    return {str(name): value for name, value in given.items() if value is not None}


def _decoded(given: Any, name: str) -> Any:
    """What a text holds in JSON, or as Python writes tables; anything else as it is."""
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(given)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise TaskError(f"{name} = {given!r:.60} is neither JSON nor what Python writes") from None
