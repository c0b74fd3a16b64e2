"""Conversations for people: which groups are shown, and what of them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from reroll.api import Group
from reroll.traces.saved import record_line

COLUMNS = ("collection", "task", "source", "outcome", "prompt", "response", "reward", "verdicts", "weight_versions")


def chosen(group: Group, collection: int, *, seed: int, rate: float) -> bool:
    """Whether the group is among the share `rate`: by a hash, so that equal runs and resumed ones choose the same."""
    digest = hashlib.sha256(f"{seed}:{collection}:{group.task.key}".encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8]) < rate * 2**64


def shown(group: Group, outcome: str, collection: int) -> dict[str, Any]:
    """The group as `Tracker.log_groups` describes it."""
    found = {
        "collection": collection,
        "task": group.task.key,
        "source": group.env_name,
        "outcome": outcome,
        "prompt": group.rendered.text,
        "responses": [
            {
                "text": _text(trace.branch()),
                "reward": reward,
                "verdicts": {
                    name: {"state": verdict.state, "score": verdict.score, "detail": verdict.detail}
                    for name, verdict in trace.verdicts.items()
                },
                "stop_condition": trace.stop_condition,
                "weight_versions": trace.weight_versions,
            }
            for trace, reward in zip(group.traces, group.rewards, strict=True)
        ],
    }
    plain: dict[str, Any] = json.loads(record_line(found))
    return plain


def _text(nodes: list[Any]) -> str:
    """What came after the prompt: an answer as it is, several messages with the role of each."""
    first = next((number for number, node in enumerate(nodes) if node.sampled), len(nodes))
    rest = [node.message for node in nodes[first:]]
    if len(rest) == 1 and not rest[0].get("tool_calls"):
        return str(rest[0].get("content") or "")
    return "\n".join(f"[{message['role']}] {_said(message)}" for message in rest)


def _said(message: Any) -> str:
    calls = message.get("tool_calls") or []
    return " ".join([str(message.get("content") or ""), *(json.dumps(call, default=str) for call in calls)]).strip()


def rows(groups: Any) -> list[list[Any]]:
    """One row a response, with the values of `COLUMNS`."""
    return [
        [
            group["collection"],
            group["task"],
            group["source"],
            group["outcome"],
            group["prompt"],
            response["text"],
            response["reward"],
            json.dumps(response["verdicts"], ensure_ascii=False),
            ", ".join(map(str, response["weight_versions"])),
        ]
        for group in groups
        for response in group["responses"]
    ]
