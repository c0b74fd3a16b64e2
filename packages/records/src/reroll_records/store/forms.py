"""The exact form that a writer gives its lines, as regular expressions. The standard library alone.

A line of this form is a row and needs no other check, and what a summary keeps of it can be picked out without decoding
it: several times as fast. Every other line, whatever is odd about it, is for `lines.parse`, which gives the same.

The form is narrower than JSON: fields in the order of `rows`, no spaces, nothing escaped in names and keys, numbers
below 10^18 in size. Python's expressions are possessive, so that a line that does not match is given up at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import itemgetter

from reroll_records.store.rows import SCHEMA

NAME = r'"[^"\\\x00-\x1f]*+"'
TEXT = r'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+"'
INTEGER = r"(?:0|-?[1-9][0-9]{0,17}+)"
SEED = r"(?:0|-?[1-9][0-9]{0,17}+|[1-8][0-9]{18})"
NUMBER = r"-?(?:0|[1-9][0-9]{0,17}+)(?:\.[0-9]++)?+(?:[eE]-[0-9]{1,3}+)?+"
BOOLEAN = "(?:true|false)"
DISPOSITION = '{"kind":"disposition",'
"""How the line of a disposition begins."""


def _object(*fields: tuple[str, str]) -> str:
    return r"\{" + ",".join(f'"{name}":{value}' for name, value in fields) + r"\}"


def _array(item: str) -> str:
    return rf"\[(?:{item}(?:,{item})*+)?+\]"


def _optional(value: str) -> str:
    return f"(?:null|{value})"


def _captured(value: str) -> str:
    """Without the quotation marks of a name."""
    return f'"({value[1:-1]})"' if value[:1] == '"' else f"({value})"


def _response(captured: bool) -> str:
    """What is captured: all of it, reward, validity, tokens, whether it was truncated, and scope."""
    mark = _captured if captured else str
    component = _object(("name", NAME), ("score", _optional(NUMBER)), ("weight", NUMBER))
    states = rf"\{{(?:{NAME}:{NAME}(?:,{NAME}:{NAME})*+)?+\}}"
    fields = _object(
        ("index", INTEGER),
        ("reward", mark(_optional(NUMBER))),
        ("reward_components", _array(component)),
        ("validity", _object(("valid", mark(_optional(BOOLEAN))), ("components", states))),
        ("response_tokens", mark(INTEGER)),
        ("status", NAME),
        ("truncated", mark(BOOLEAN)),
        ("policy_versions", _array(INTEGER)),
        ("policy_scope", mark(_optional('"start_checkpoint"|"run_version"|"mixed"'))),
        ("seed", _optional(SEED)),
    )
    return mark(rf'{fields[:-2]}(?:,"response":{TEXT})?+\}}')


def _group(captured: bool) -> str:
    """What is captured: observation, task key, input key, query, prompt tokens, sample, data set, row, verifiers,
    decision, reason, and whatever stands where the responses are."""
    mark = _captured if captured else str
    fields = _object(
        ("kind", '"group"'),
        ("schema", str(SCHEMA)),
        ("observation_id", mark(NAME)),
        ("task_key", mark(NAME)),
        ("task_key_basis", NAME),
        ("input_key", mark(NAME)),
        ("query_sha256", mark(NAME)),
        ("prompt_token_sha256", mark(NAME)),
        ("prepared_sample_id", mark(NAME)),
        ("source_dataset", mark(NAME)),
        ("source_row", mark(INTEGER)),
        ("verifiers", mark(_array(NAME))),
        ("group_index", INTEGER),
        ("rollout_id", INTEGER),
        ("group_size", INTEGER),
        ("group_attempt", INTEGER),
        ("filter_decision", mark('"(?:passed|filtered|aborted)"')),
        ("filter_reason", mark(NAME)),
        ("responses_included", BOOLEAN),
        ("responses", r"\[(.*)\]" if captured else _array(_response(captured=False))),
        ("time", NUMBER),
    )
    return rf'{fields[:-2]}(?:,"prompt":{TEXT})?+\}}'


def _disposition(captured: bool) -> str:
    """What is captured: observation and disposition."""
    mark = _captured if captured else str
    return _object(
        ("kind", '"disposition"'),
        ("schema", str(SCHEMA)),
        ("observation_id", mark(NAME)),
        ("disposition", mark('"(?:consumed|expired)"')),
        ("staleness", INTEGER),
        ("time", NUMBER),
    )


_match_group = re.compile(_group(captured=True)).fullmatch
_match_disposition = re.compile(_disposition(captured=True)).fullmatch
_find_responses = re.compile(_response(captured=True)).findall
_find_names = re.compile(_captured(NAME)).findall
_whole = itemgetter(0)


def match_group(text: str) -> tuple[Sequence[str], Sequence[Sequence[str]]] | None:
    """What is captured of a group's line, and of each of its responses; None if the line has another form."""
    found = _match_group(text)
    if found is None:
        return None
    captured = found.groups()
    responses = _find_responses(captured[-1])
    return (captured, responses) if ",".join(map(_whole, responses)) == captured[-1] else None


def match_disposition(text: str) -> Sequence[str] | None:
    """What is captured of a disposition's line; None if the line has another form."""
    found = _match_disposition(text)
    return None if found is None else found.groups()


def names(captured: str) -> list[str]:
    """Of captured verifiers."""
    return _find_names(captured)


WITHOUT_POSSESSION = re.sub(r"([*+?}])\+", r"\1", f"{_group(captured=False)}|{_disposition(captured=False)}")
"""Either kind of line, for engines of regular expressions that never go back."""
