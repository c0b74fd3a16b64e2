"""What prompts, protocols and starting checkpoints are known by. Writer and filter share it, so that they cannot
disagree. The standard library alone."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from reroll import Protocol, RenderedPrompt, RunContext, Task

TASK_KEY_BASIS = "rendered_prompt_and_targets"
"""What a task key is the digest of."""


_encoder = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def canonical(value: Any) -> bytes:
    """JSON that is equal for equal values.

    Raises:
        ValueError: the value holds what JSON has no form for, so that no other process would find the same.
    """
    try:
        text = _encoder.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{value!r:.200} has no form in JSON: {error}") from None
    return text.encode("utf-8", "surrogatepass")


def digest(value: Any) -> str:
    return sha256(canonical(value)).hexdigest()


class PromptIdentity(NamedTuple):
    """SHA-256 digests, see `GroupRow`."""

    task_key: str
    input_key: str
    prompt_token_sha256: str
    query_sha256: str


def identify(task: Task, rendered: RenderedPrompt, protocol_digest: str) -> PromptIdentity:
    """Of a prompt as the model reads it, with what its answers are judged by.

    Raises:
        ValueError: the task's targets have no form in JSON.
    """
    try:
        task_key = digest([rendered.text, dict(task.targets)])
    except ValueError as error:
        raise ValueError(f"task {task.key}: {error}; targets of recorded tasks are numbers, texts, lists") from None
    tokens = sha256(_token_bytes(rendered.token_ids)).hexdigest()
    input_key = sha256(f"{task_key}\n{tokens}\n{protocol_digest}".encode()).hexdigest()
    return PromptIdentity(task_key, input_key, tokens, _query_digest(task))


def _token_bytes(token_ids: Sequence[int]) -> bytes:
    """Eight bytes a token, the lowest first."""
    tokens = array("q", token_ids)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tobytes()


def _query_digest(task: Task) -> str:
    """Of the last user message's text; of one that has parts, of their JSON."""
    queries = [message.get("content") for message in task.messages if message.get("role") == "user"]
    query = queries[-1] if queries else ""
    return sha256(query.encode("utf-8", "surrogatepass") if isinstance(query, str) else canonical(query)).hexdigest()


def domain(verifiers: Sequence[str]) -> str:
    """Verifier names together: the domain of a prompt."""
    return "+".join(sorted(verifiers)) or "none"


def lineage(context: RunContext) -> dict[str, Any]:
    """Which starting checkpoint a run has: digest of its file inventory, that is of names, sizes, modification times
    and, for JSON files, contents. It is no digest of the weights."""
    files = {name: dict(entry) for name, entry in context.checkpoint.items()}
    if not files:
        raise ValueError("the starting checkpoint has no files that the run's lineage could be told by")
    found = digest(files)
    return {
        "id": found[:16],
        "sha256": found,
        "basis": "model_directory",
        "weights_hashed": False,
        "model": context.model,
        "files": files,
    }


def protocol_record(protocol: Protocol) -> dict[str, Any]:
    """How responses are drawn and judged, as manifests and selection tables keep it; its digest is `digest` of it."""
    record = json.loads(canonical(asdict(protocol)))
    filters = [item["name"] if isinstance(item, dict) else item for item in record["group_filters"]]
    return {
        **record,
        "verifier_registry_sha256": digest(record["verifiers"]),
        "zero_variance_filter": "zero_variance" in filters,
    }


def differences(before: Any, now: Any, name: str = "", form: str = "{!r} there, {!r} in this run") -> Iterator[str]:
    """Where two records differ, each as its dotted name and the two values in this form."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}):
            yield from differences(before.get(key), now.get(key), f"{name}.{key}" if name else key, form)
    elif before != now:
        yield f"{name}: {form.format(before, now)}"
