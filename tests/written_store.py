"""Stores written by hand, row by row, for tests of what reads them. The standard library and the package alone."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from reroll_records.store.layout import Store
from reroll_records.store.rows import DispositionRow, GroupRow, ResponseRow, RewardComponent, validity
from reroll_records.store.snapshot import Input, changed
from reroll_records.store.sources import hashed, snapshot

LINEAGE = "00c0ffee00c0ffee"


def key(name: str) -> str:
    """A key as long as the real ones."""
    return hashlib.sha256(name.encode()).hexdigest()


def manifest(attempt: str, run: str = "first", lineage: str = LINEAGE, **changed: Any) -> dict[str, Any]:
    return {
        "kind": "manifest",
        "schema": 1,
        "source": "train",
        "run": {
            "name": run,
            "id": f"{run}-id",
            "attempt": attempt,
            "start_rollout_id": 0,
            "start_version": 0,
            "loaded_checkpoint": "model",
            "fresh": True,
        },
        "lineage": {
            "id": lineage,
            "sha256": lineage * 4,
            "basis": "checkpoint",
            "weights_hashed": False,
            "model": "builtin:tiny",
            "files": {"config.json": {"size": 2, "mtime": 1.0, "sha256": key("{}")}},
        },
        "protocol": {"sampling": {"temperature": 1.0}, "deterministic_inference": False, "zero_variance_filter": True},
        "protocol_digest": key("protocol"),
        "rollout_seed": 7,
        "data": "train.jsonl",
        "writer": {"responses": "all", "response_sample_rate": None, "queue_rows": 4096},
        "selection_sha256": None,
        "started": 1000.0,
    } | changed


def response(
    index: int,
    reward: float | None,
    state: str = "ok",
    versions: Sequence[int] = (0,),
    text: str | None = None,
    **changed: Any,
) -> ResponseRow:
    scope = "start_checkpoint" if set(versions) == {0} else "run_version" if len(versions) == 1 else "mixed"
    values: dict[str, Any] = {
        "index": index,
        "reward": reward,
        "reward_components": [RewardComponent("math", reward, 1.0)],
        "validity": validity({"math": state}),
        "response_tokens": 10 + index,
        "status": "completed",
        "truncated": False,
        "policy_versions": list(versions),
        "policy_scope": scope if versions else None,
        "seed": index,
        "response": text,
    }
    return ResponseRow(**values | changed)


def group(
    observation: str,
    prompt: str = "prompt",
    rewards: Iterable[float | None] = (0.0, 1.0),
    *,
    responses: list[ResponseRow] | None = None,
    versions: Sequence[int] = (0,),
    texts: Sequence[str] | None = None,
    **changed: Any,
) -> GroupRow:
    """A group of `prompt`; `responses` stand where rewards do not say enough."""
    given = responses
    if given is None:
        given = [
            response(index, reward, versions=versions, text=texts[index] if texts else None)
            for index, reward in enumerate(rewards)
        ]
    values: dict[str, Any] = {
        "observation_id": observation,
        "task_key": key(f"task {prompt}"),
        "task_key_basis": "rendered prompt and targets",
        "input_key": key(prompt),
        "query_sha256": key(f"query {prompt}"),
        "prompt_token_sha256": key(f"tokens {prompt}"),
        "prepared_sample_id": f"sample of {prompt}",
        "source_dataset": "sums",
        "source_row": 3,
        "verifiers": ["math"],
        "group_index": 0,
        "rollout_id": 0,
        "group_size": len(given),
        "group_attempt": 0,
        "filter_decision": "passed",
        "filter_reason": "",
        "responses_included": texts is not None,
        "responses": given,
        "time": 1000.0,
        "prompt": f"What of {prompt}?" if texts else None,
    }
    return GroupRow(**values | changed)


def consumed(observation: str, staleness: int = 0) -> DispositionRow:
    return DispositionRow(observation, "consumed", staleness, 1001.0)


def expired(observation: str, staleness: int = 9) -> DispositionRow:
    return DispositionRow(observation, "expired", staleness, 1002.0)


def line(row: GroupRow | DispositionRow) -> bytes:
    try:
        return json.dumps(row.to_json(), ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # halves of a surrogate pair, which JSON can spell
        return json.dumps(row.to_json()).encode() + b"\n"


def compact(path: Path) -> Path:
    """The record file of a run's only attempt in Parquet, and no JSON lines any more."""
    from reroll_records.compaction.compact import Options
    from reroll_records.compaction.compact import compact as compact_attempts

    closed = {"kind": "closed", "schema": 1, "written": 1, "dropped": 0, "failed": 0, "ended": 1003.0}
    path.with_name(path.name.replace("records-", "closed-")).with_suffix(".json").write_text(json.dumps(closed))
    (outcome,) = compact_attempts(path.parent, Options(delete_originals=True)).outcomes
    assert outcome.lines == "deleted", outcome
    return path.with_suffix(".parquet")


def write(root: Path, found: dict[str, Any], rows: Iterable[GroupRow | DispositionRow | bytes]) -> Path:
    """An attempt of a store, where a writer would put it; bytes go in as they are. The path of its record file."""
    run = found["run"]
    folder = root / found["lineage"]["id"] / f"{run['name']}-{run['id']}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"manifest-{run['attempt']}.json").write_text(json.dumps(found))
    path = folder / f"records-{run['attempt']}.jsonl"
    path.write_bytes(b"".join(row if isinstance(row, bytes) else line(row) for row in rows))
    return path


def odd_store(folder: Path) -> Path:
    """Two attempts with values that formats tend to get wrong."""
    odd = [
        response(0, 0.1 + 0.2, text="a\x00b\x1b[31m\u2028"),
        response(1, 5e-324, text="caf\u00e9 \U0001f600"),
        response(2, 1.0, text="\ud800 half"),
        response(3, 0.0, "timeout", seed=2**63 - 1),
        response(4, None, "unknown", versions=[], seed=None),
    ]
    rows = [
        expired("2", staleness=5),  # before its group
        group("1", "x", [0.0, 1.0], texts=["1", "2"]),
        consumed("1", staleness=2),
        group("2", "y", responses=odd, source_dataset='it\'s "quoted"'),
        group("3", "z", [0.0, 0.0], filter_decision="filtered", filter_reason="zero_std_0.0"),
        group("4", "z", [1.0, None], filter_decision="aborted"),
        b"no row\n",
        group("5", "x", [1.0, 1.0], versions=[3]),
    ]
    write(folder, manifest("a"), rows)
    second = [group("1", "x", [0.5], versions=[3, 4])]  # the same id, of another attempt
    write(folder, manifest("b", lineage="1" * 16), second)
    return folder


def exported_rows(folder: Path) -> list[dict[str, Any]]:
    """Of a data set that was exported there."""
    import duckdb

    files = sorted((folder / "data").iterdir())
    with duckdb.connect() as connection:
        found = connection.execute("FROM read_parquet(?)", [[str(file) for file in files]])
        names = [column[0] for column in found.description]
        return [dict(zip(names, values, strict=True)) for values in found.fetchall()]


def take(store: Store) -> list[Input]:
    """A store's input snapshot, as a table or a summary says it."""
    return [Input.from_json(found) for found in hashed(snapshot(store).inputs, threads=1)]


def changes(store: Store, inputs: Sequence[Input]) -> list[str]:
    """A sentence for each input that is no longer as it was."""
    return [f"{recorded.path} {told}" for recorded, told in changed(store, inputs)]


def snippet_rewards(lineage: Path) -> Any:
    """What the specification's reading snippet finds in a lineage's folder; it runs as it stands, but for the path."""
    source = (Path(__file__).parent / "reading_snippet.py").read_text()
    found: dict[str, Any] = {}
    exec(source.replace("/weka/.../inference-records/<lineage>", str(lineage)), found)
    return found["rewards"]
