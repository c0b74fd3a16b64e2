"""Stores of every kind that a reader may meet, and a plain reading of them to compare with: no cleverness, no bound on
memory, one file after the other."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from fractions import Fraction
from pathlib import Path
from statistics import mean, variance
from typing import Any

from hypothesis import strategies as st
from written_store import manifest, write

from reroll_records.store.checks import is_row
from reroll_records.store.identity import domain as domain_of

SCOPES = ["start_checkpoint", "start_checkpoint", "run_version", "mixed", None]
rewards = st.sampled_from([0.0, 1.0, 1, 0, -0.0, 0.5, 0.1, 1 / 3, None, 1e-300, 123456.789, -2.5, 3])
names = st.sampled_from(["o1", "o2", "o3", "o4", "o5", "ö6", 'o"7'])


@st.composite
def responses(draw: st.DrawFn, index: int, scope: str | None) -> dict[str, Any]:
    valid = draw(st.sampled_from([True, True, True, False, None]))
    found = {
        "index": index,
        "reward": draw(rewards),
        "reward_components": [{"name": "math", "score": draw(rewards), "weight": 1.0}],
        "validity": {"valid": valid, "components": {"math": "ok", "code": "timeout"}},
        "response_tokens": draw(st.integers(0, 2000)),
        "status": "completed",
        "truncated": draw(st.booleans()),
        "policy_versions": [] if scope is None else [1],
        "policy_scope": scope,
        "seed": draw(st.sampled_from([None, 1, 2**62, 2**63 - 1])),
    }
    if draw(st.booleans()):
        found["response"] = draw(st.sampled_from(["", 'a "quoted" ],"time":1} text\n', "emoji 🎲é", "\ud83d"]))
    return found


@st.composite
def groups(draw: st.DrawFn) -> dict[str, Any]:
    number = draw(st.integers(0, 3))
    scope = draw(st.sampled_from(SCOPES))
    mixed = draw(st.booleans())
    decision = draw(st.sampled_from(["passed", "passed", "filtered", "aborted"]))
    prompt = draw(st.sampled_from(["a", "b", "c", "d"]))
    found = {
        "kind": "group",
        "schema": 1,
        "observation_id": draw(names),
        "task_key": draw(st.sampled_from(["t", "t", "u"])) + prompt,
        "task_key_basis": "text",
        "input_key": f"i{prompt}",
        "query_sha256": "q",
        "prompt_token_sha256": "p",
        "prepared_sample_id": draw(st.sampled_from(["s1", "s\\2", "é"])),
        "source_dataset": "data",
        "source_row": draw(st.sampled_from([0, 7, -1])),
        "verifiers": draw(st.sampled_from([["math"], ["math", "code"], ["code", "math"], []])),
        "group_index": 0,
        "rollout_id": 0,
        "group_size": number,
        "group_attempt": 0,
        "filter_decision": decision,
        "filter_reason": "" if decision == "passed" else draw(st.sampled_from(["zero_std_0.0", "too, long"])),
        "responses_included": False,
        "responses": [
            draw(responses(index, draw(st.sampled_from(SCOPES)) if mixed else scope)) for index in range(number)
        ],
        "time": draw(st.sampled_from([1.0, 1700000000, 1.5e-7])),
    }
    if draw(st.booleans()):
        found["prompt"] = "what?"
    return found


@st.composite
def dispositions(draw: st.DrawFn) -> dict[str, Any]:
    disposition = draw(st.sampled_from(["consumed", "expired"]))
    found = {"kind": "disposition", "schema": 1, "observation_id": draw(names), "disposition": disposition}
    return found | {"staleness": draw(st.integers(0, 3)), "time": 2.0}


rows = st.one_of(groups(), groups(), dispositions())


def encoded(row: Any, spaced: bool = False, escaped: bool = False) -> bytes:
    separators = (", ", ": ") if spaced else (",", ":")
    return json.dumps(row, separators=separators, ensure_ascii=escaped).encode("utf-8", "replace")


ODD_VALUES = st.sampled_from(
    [None, True, False, 1, 1.0, 1.5, -1, "1.0", "true", "", [], {}, [1], {"a": 1}, 2**63, 2**64, 10**30, "group", "NaN"]
)
REPLACEMENTS = st.sampled_from(
    [
        (b'"reward":', b'"reward":0.25,"reward":'),
        (b'"reward":', b'"Reward":0.25,"reward":'),
        (b'"reward":0.0', b'"reward":NaN'),
        (b'"reward":1.0', b'"reward":Infinity'),
        (b'"reward":1.0', b'"reward":1e400'),
        (b'"reward":1.0', b'"reward":1e18'),
        (b'"reward":1.0', b'"reward":1E-2'),
        (b'"reward":1.0', b'"reward":01.0'),
        (b'"reward":0.0', b'"reward":0.30000000000000004440892098500626'),
        (b'"reward":0.0', b'"reward":123456789012345678901234567890'),
        (b'"reward":0.0', b'"reward":9007199254740993'),
        (b'"kind"', b'"kind":"group","kind"'),
        (b'"schema":1', b'"schema":1.0'),
        (b'"schema":1', b'"schema":2'),
        (b'"schema":1', b'"schema":1,"schema":1'),
        (b'"time":1.0', b'"time":1.0,"more":{"deep":[[1]]}'),
        (b'"time":1.0', b'"time":1.0,'),
        (b'"input_key":"i', b'"input_key":"\\u0000i'),
        (b'"input_key":"i', b'"input_key":"\\u0069'),
        (b'"input_key":"i', b'"input_key":"\\ud800i'),
        (b'"input_key":"i', b'"input_key":"\xff'),
        (b'"input_key":"i', b'"input_key":"\x01'),
        (b'"verifiers":["math"]', b'"verifiers":["math","math"]'),
        (b'"verifiers":["math"]', b'"verifiers":[null]'),
        (b'"truncated":true', b'"truncated":1'),
        (b'"seed":1', b'"seed":1.0'),
        (b'"valid":true', b'"valid":"true"'),
        (b'"components":{', b'"components":{"math":"x",'),
        (b"{", b"\xef\xbb\xbf{"),
        (b"}", b"}}"),
        (b"}", b"} "),
        (b"}", b"}\r"),
        (b"{", b" {"),
    ]
)
GARBAGE = st.sampled_from(
    [
        b"",
        b" ",
        b"{}",
        b"[]",
        b"null",
        b"3",
        b"{",
        b'"',
        b"\x00",
        b"\xff\xfe",
        b"{}{}",
        b'{"kind":"group"}',
        b"\r",
        b"NaN",
    ]
)


@st.composite
def odd_lines(draw: st.DrawFn) -> bytes:
    """A row as no writer would give it, or no row."""
    row = draw(rows)
    kind = draw(st.integers(0, 7))
    if kind == 0:
        return draw(GARBAGE)
    if kind == 1:
        row[draw(st.sampled_from(sorted(row)))] = draw(ODD_VALUES)
    elif kind == 2:
        row.pop(draw(st.sampled_from(sorted(row))))
    elif kind == 3 and row.get("responses"):
        item = draw(st.sampled_from(row["responses"]))
        item[draw(st.sampled_from(sorted(item)))] = draw(ODD_VALUES)
    elif kind == 4:
        row = dict(draw(st.permutations(list(row.items()))))
    line = encoded(row, draw(st.booleans()), draw(st.booleans()))
    if kind == 5:
        return line[: draw(st.integers(0, len(line)))]
    if kind == 6:
        old, new = draw(REPLACEMENTS)
        return line.replace(old, new, draw(st.sampled_from([1, -1])))
    if kind == 7:
        return line + draw(st.sampled_from([line, b" x", b",", b"\t"]))
    return line


@st.composite
def record_files(draw: st.DrawFn) -> bytes:
    clean = draw(st.booleans())
    lines = draw(st.lists(rows.map(encoded) if clean else st.one_of(rows.map(encoded), odd_lines()), max_size=12))
    content = b"".join(line + b"\n" for line in lines)
    if draw(st.integers(0, 3)) == 0:
        last = encoded(draw(rows))
        content += last[: draw(st.integers(1, len(last)))]
    return content


@st.composite
def stores(draw: st.DrawFn) -> list[tuple[dict[str, Any] | None, str, bytes | None]]:
    """Manifests, attempts and contents; without a manifest, a content is an orphan."""
    found = []
    for number in range(draw(st.integers(1, 4))):
        attempt = f"a{number}"
        lineage = draw(st.sampled_from(["1" * 16, "2" * 16]))
        run = draw(st.sampled_from(["first", "second"]))
        made = manifest(attempt, run, lineage, protocol_digest=draw(st.sampled_from(["p", "q"])))
        keep = draw(st.integers(0, 6))
        content = None if keep == 1 else draw(record_files())
        found.append((None if keep == 0 and content is not None else made, attempt, content))
    return found


def build(root: Path, store: list[tuple[dict[str, Any] | None, str, bytes | None]]) -> Path:
    root.mkdir()
    for made, attempt, content in store:
        if made is None:
            (root / "left").mkdir(exist_ok=True)
            (root / "left" / f"records-{attempt}.jsonl").write_bytes(content or b"")
        else:
            path = write(root, made, [content or b""])
            if content is None:
                path.unlink()
    return root


def plain(root: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, int]]:
    """Rows of `prompts.jsonl`, rows of `tokens.json`, and some counts."""
    pooled: dict[Any, list[Any]] = defaultdict(list)
    spent: dict[Any, list[int]] = defaultdict(lambda: [0] * 5)
    counts: Counter[str] = Counter()
    for path in sorted(root.glob("*/*/manifest-*.json")):
        made = json.loads(path.read_text())
        lines = path.with_name(path.name.replace("manifest", "records").replace(".json", ".jsonl"))
        content = lines.read_bytes() if lines.exists() else b""
        found = []
        for line in content.split(b"\n")[:-1]:
            row = decoded(line)
            counts["unreadable_lines"] += row is None
            found += [] if row is None else [row]
        left: dict[str, str] = {}
        for row in found:
            if row["kind"] == "disposition":
                counts["dispositions"] += 1
                left[row["observation_id"]] = min(row["disposition"], left.get(row["observation_id"], "z"))
        passed = {row["observation_id"] for row in found if row.get("filter_decision") == "passed"}
        counts["orphans"] += len(set(left) - passed)
        for row in found:
            if row["kind"] == "group":
                counts["groups"] += 1
                decision = row["filter_decision"]
                disposition = {"aborted": "aborted", "filtered": f"filtered:{row['filter_reason']}"}.get(decision)
                known = spent[tuple(sorted(row["verifiers"])), disposition or left.get(row["observation_id"], "unused")]
                cut = [item["response_tokens"] for item in row["responses"] if item["truncated"]]
                tokens = sum(item["response_tokens"] for item in row["responses"])
                for place, number in enumerate([1, len(row["responses"]), tokens, len(cut), sum(cut)]):
                    known[place] += number
                for scope in {item["policy_scope"] for item in row["responses"]} or {None}:
                    mine = [item for item in row["responses"] if item["policy_scope"] == scope]
                    pooled[made["lineage"]["id"], row["input_key"], scope].append((made, row, mine))
    prompts = [prompt(*key, pooled[key]) for key in sorted(pooled, key=lambda key: (key[0], key[1], key[2] or ""))]
    names = ("groups", "responses", "tokens", "truncated_responses", "truncated_tokens")
    tokens = [
        {"domain": domain_of(domain), "verifiers": list(domain), "disposition": disposition}
        | dict(zip(names, numbers, strict=True))
        for (domain, disposition), numbers in sorted(spent.items())
    ]
    return prompts, tokens, dict(counts)


def decoded(line: bytes) -> dict[str, Any] | None:
    def refuse(constant: str) -> Any:
        raise ValueError(constant)

    try:
        row = json.loads(line.decode(), parse_constant=refuse)
    except ValueError:
        return None
    return row if is_row(row) else None


def prompt(lineage: str, input_key: str, scope: str | None, found: list[Any]) -> dict[str, Any]:
    identity = min(
        (
            row["task_key"],
            row["query_sha256"],
            row["prompt_token_sha256"],
            made["protocol_digest"],
            sorted(row["verifiers"]),
            row["source_dataset"],
            row["source_row"],
            row["prepared_sample_id"],
        )
        for made, row, _ in found
    )
    fields = ("task_key", "query_sha256", "prompt_token_sha256", "protocol_digest", "verifiers", "source_dataset")
    items = [item for *_, mine in found for item in mine]
    outcomes = Counter(outcome([item["reward"] for item in mine]) for *_, mine in found)
    decisions = Counter(row["filter_decision"] for _, row, _ in found)
    valid = Counter(str(item["validity"]["valid"]) for item in items)
    holding = [made["run"] for made, _, mine in found if any(item["validity"]["valid"] for item in mine)]
    unit = "attempt" if scope == "start_checkpoint" else "id"
    return {
        "lineage": lineage,
        "input_key": input_key,
        "policy_scope": scope,
        **dict(zip((*fields, "source_row", "prepared_sample_id"), identity, strict=True)),
        "groups": {name: outcomes[name] for name in ("all_zero", "constant", "mixed", "unscored")},
        "filter_decisions": {name: decisions[name] for name in ("passed", "filtered", "aborted")},
        "validity": {"valid": valid["True"], "invalid": valid["False"], "unknown": valid["None"]},
        "responses": len(items),
        "response_tokens": sum(item["response_tokens"] for item in items),
        "truncated_responses": sum(item["truncated"] for item in items),
        "independent_units": len({run[unit] for run in holding}),
        "valid_reward": reward([item["reward"] for item in items if item["validity"]["valid"] is True]),
        "unknown_validity_reward": reward([item["reward"] for item in items if item["validity"]["valid"] is None]),
    }


def outcome(values: list[float | None]) -> str:
    scored = [value for value in values if value is not None]
    if len(set(scored)) > 1:
        return "mixed"
    if len(scored) < len(values) or not values:
        return "unscored"
    return "constant" if scored[0] else "all_zero"


def reward(found: list[Any]) -> dict[str, Any]:
    values = [float(value) for value in found if value is not None]
    exact = [Fraction(value) for value in values]
    return {
        "count": len(values),
        "mean": float(mean(exact)) if exact else None,
        "variance": float(variance(exact)) if len(exact) > 1 else None,
        "min": min(values, default=None),
        "max": max(values, default=None),
        "histogram": [{"value": value, "count": count} for value, count in sorted(Counter(values).items())],
    }
