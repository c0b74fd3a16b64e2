"""Saved rollouts made by hand and by chance, for tests of replay."""

from __future__ import annotations

import copy
import json
from collections import Counter

from hypothesis import strategies as st

FILE, MARKER = "train_rollouts.jsonl", "train_rollouts.done"


def call(identity, name="add", arguments=None):
    """A call as chat templates have it."""
    function = {"name": name, "arguments": arguments or {"a": 1}}
    return {"id": identity, "type": "function", "function": function}


def node(parent, role, content="", *, calls=(), answers=None, sampled=None, origin=None):
    """A node of a saved rollout; what an assistant says was sampled unless told otherwise."""
    message = {"role": role, "content": content}
    if calls:
        message["tool_calls"] = [item if isinstance(item, dict) else call(item) for item in calls]
    if answers is not None:
        message["tool_call_id"] = answers
    sampled = role == "assistant" if sampled is None else sampled
    return {"parent": parent, "message": message, "sampled": sampled, "token_ids": [], "mask": [], "origin": origin}


def hand_made():
    """A forest of 14 nodes with two roots, no node of which is marked."""
    return [
        node(None, "system", "be brief"),  # 0: the main conversation
        node(0, "user", "question"),
        node(1, "assistant", calls=["a", "b"]),
        node(2, "tool", "A", answers="a"),
        node(3, "tool", "B", answers="b"),
        node(3, "tool", "B", answers="b"),  # 5: the same result, given twice
        node(4, "assistant", "let me see", calls=["c"]),
        node(4, "assistant", "too late"),  # 7: a second try of the same turn
        node(None, "system", "you are a sub-agent"),  # 8: works on the call of 6
        node(8, "user", "sub-question"),
        node(8, "user", "another"),  # 10: a fork within it
        node(6, "tool", "C", answers="c"),
        node(0, "user", "summary"),  # 12: begun anew after a compaction
        node(12, "assistant", "answer"),
    ]


def record_of(nodes, identity="r", reward=1.0, env_name="sums", task=None, **more):
    """A saved line with reroll's stamp."""
    return {
        "schema": 1,
        "id": identity,
        "task": task or {"prompt": "q", "targets": {}, "source_dataset": env_name},
        "nodes": nodes,
        "rewards": {"v": reward},
        "errors": [],
        "info": {"reroll": {"kind": "train", "env_name": env_name, "group_id": "g", "reward": reward}},
        **more,
    }


def answered(answer="4", question="2 + 2?"):
    """The nodes of a question and its answer."""
    return [node(None, "user", question), node(0, "assistant", answer)]


def write_step(folder, step, records, marker=True):
    """Writes a step's file, and its marker; gives the file's path. A record may be text, which is written as it is."""
    directory = folder / f"step_{step}"
    directory.mkdir(parents=True, exist_ok=True)
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    partial = directory / "partial"
    partial.write_text("".join(line + "\n" for line in lines))
    partial.rename(directory / FILE)
    if marker:
        (directory / MARKER).write_text("{}")
    return directory / FILE


def fault_in(messages):
    """What is wrong with the calls of a conversation, told by counting: an oracle of its own."""
    position = 0
    while position < len(messages):
        message = messages[position]
        position += 1
        if message["role"] == "tool":
            return f"a result follows no call: {message}"
        calls = Counter(item.get("id") for item in message.get("tool_calls", []))
        results = Counter()
        while calls and position < len(messages) and messages[position]["role"] == "tool":
            results[messages[position].get("tool_call_id")] += 1
            position += 1
        if calls.total() != results.total():
            return f"{calls.total()} calls have {results.total()} results"
        if sum(count for identity, count in (calls - results).items() if identity is not None) > results[None]:
            return f"{calls} are not answered by {results}"
    return None


IDENTITIES = st.sampled_from(["a", "b", "c", None])
CALLS = st.builds(
    lambda identity, flat, text, broken: _written(identity, flat, text, broken),
    IDENTITIES, st.booleans(), st.booleans(), st.sampled_from([False] * 9 + [True]),
)  # fmt: skip


def _written(identity, flat, text, broken):
    """A call in one of the forms that are found in files."""
    if broken:
        return {"id": identity, "type": "function"}
    arguments = '{"a": 1}' if text else {"a": 1}
    told = {"name": "add", "arguments": arguments}
    return {"id": identity, **told} if flat else {"id": identity, "type": "function", "function": told}


@st.composite
def forests(draw, most=14):
    """The nodes of a record: trees with calls, results, tries, restarts and sub-agents in any order."""
    nodes = []
    origins = draw(st.sampled_from([[None], [None] * 8 + ["compaction", "rendering"]]))
    for index in range(draw(st.integers(1, most))):
        linear = index and draw(st.integers(0, 3))
        parent = index - 1 if linear else draw(st.sampled_from([None, *range(index)]))
        role = draw(st.sampled_from(["system", "user", "assistant", "assistant", "tool", "tool"]))
        made = node(
            parent,
            role,
            draw(st.sampled_from(["", "text", None])),
            calls=draw(st.lists(CALLS, max_size=3)) if role == "assistant" else (),
            answers=draw(IDENTITIES) if role == "tool" else None,
            sampled=draw(st.booleans()) if role == "assistant" else False,
            origin=draw(st.sampled_from(origins)),
        )
        if parent is None and draw(st.booleans()):
            del made["parent"]
        nodes.append(made)
    return nodes


def unchanged(record, action):
    """What the action gives; AssertionError if it changed the record."""
    before = copy.deepcopy(record)
    result = action(record)
    assert record == before
    return result
