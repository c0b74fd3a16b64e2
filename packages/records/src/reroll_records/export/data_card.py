"""What a data set of records holds: its columns, as DuckDB's types, as features of a data card, and in words. The
standard library alone.

Form of the folder: https://huggingface.co/docs/datasets/repository_structure (`configs` and `data_files`); form of the
features: `dataset_info` of https://github.com/huggingface/hub-docs/blob/main/datasetcard.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reroll_records.store.layout import Attempt

Feature = Any
"""`string`, `int64`, `float64` or `bool`; a list of one feature; or name → feature."""

_TYPES = {"string": "VARCHAR", "int64": "BIGINT", "float64": "DOUBLE", "bool": "BOOLEAN"}


@dataclass(frozen=True)
class Column:
    feature: Feature
    meaning: str


COLUMNS: dict[str, Column] = {
    "lineage": Column("string", "starting checkpoint: 16 hexadecimal digits of the SHA-256 of its file inventory"),
    "protocol": Column("string", "digest of sampling settings, templates, tokenizer and verifiers' settings"),
    "run_id": Column("string", "run that recorded it"),
    "run_name": Column("string", "the run's name"),
    "source": Column("string", "`train`, or `generate` by weights that stayed the starting checkpoint's"),
    "attempt": Column("string", "start of the run that recorded it"),
    "observation_id": Column("string", "unique per scored group"),
    "task_key": Column("string", "SHA-256 of the full rendered prompt and the verifier targets"),
    "input_key": Column("string", "task, prompt tokens and protocol; pool observations within one key only"),
    "query_sha256": Column("string", "of the last user message; a grouping hint, never an identity"),
    "prompt_token_sha256": Column("string", "of the prompt's token ids"),
    "prepared_sample_id": Column("string", "the sample that the prompt came from"),
    "source_dataset": Column("string", "the data set that the prompt came from"),
    "source_row": Column("int64", "its row there"),
    "verifiers": Column(["string"], "names of the verifiers, which are the prompt's domain"),
    "group_index": Column("int64", "number of the dispatch within the run"),
    "rollout_id": Column("int64", "the collection that was being gathered when the task was dispatched"),
    "group_size": Column("int64", "responses that the group had"),
    "group_attempt": Column("int64", "earlier dispatches of the task in the run"),
    "filter_decision": Column("string", "`passed`, `filtered` or `aborted`"),
    "filter_reason": Column("string", "why it did not pass"),
    "disposition": Column(
        "string",
        "`consumed` (given to training), `expired` (past the policy-lag limit), `unused` (passed, but still queued at "
        "the end), `filtered:<reason>` or `aborted`",
    ),
    "staleness": Column(
        "int64", "optimizer steps from the group's oldest token to the step that used it or could have; null otherwise"
    ),
    "time": Column("float64", "when it was scored, in seconds since the epoch"),
    "prompt": Column("string", "the rendered prompt; null where texts were not kept"),
}
RESPONSE_COLUMNS: dict[str, Column] = {
    "index": Column("int64", "position among the siblings, from 0"),
    "reward": Column("float64", "what training would use; null where it was not scored"),
    "reward_components": Column(
        [{"name": "string", "score": "float64", "weight": "float64"}], "what the reward is made of"
    ),
    "valid": Column(
        "bool", "true only when every verifier vouches for its score, false when one failed, null when one is unknown"
    ),
    "validity": Column(
        [{"name": "string", "state": "string"}],
        "verifier and its state: `ok`, `completed`, `timeout`, `rejected`, `service_error`, `judge_error` or `unknown`",
    ),
    "response_tokens": Column("int64", "tokens that the model sampled"),
    "status": Column("string", "`completed`, `truncated`, `aborted` or `failed`"),
    "truncated": Column("bool", "whether a message was cut off at a length limit"),
    "policy_versions": Column(["int64"], "weight versions that sampled its tokens, ascending"),
    "policy_scope": Column(
        "string",
        "`start_checkpoint` (pools over runs of one lineage and protocol), `run_version` (one later version of one "
        "run), `mixed` (across versions), or null where nothing was sampled",
    ),
    "seed": Column("int64", "sampling seed"),
    "response": Column("string", "the sampled text; null where texts were not kept"),
}


@dataclass(frozen=True)
class CardFacts:
    """What a data card says of the rows of its data set.

    Attributes:
        rows: of the data set.
        shards: Parquet files.
    """

    rows: int
    shards: int
    lineages: list[str]
    protocols: list[str]
    runs: int
    attempts: int

    @classmethod
    def of(cls, attempts: list[Attempt], rows: int, shards: int) -> CardFacts:
        return cls(
            rows,
            shards,
            sorted({attempt.lineage for attempt in attempts}),
            sorted({attempt.protocol_digest for attempt in attempts}),
            len({attempt.run_id for attempt in attempts}),
            len(attempts),
        )


def database_type(feature: Feature) -> str:
    """As DuckDB writes it."""
    if isinstance(feature, str):
        return _TYPES[feature]
    if isinstance(feature, list):
        return f"{database_type(feature[0])}[]"
    fields = (f'"{name}" {database_type(inner)}' for name, inner in feature.items())
    return f"STRUCT({', '.join(fields)})"


def data_card(kind: str, facts: CardFacts, chosen: str) -> str:
    """README.md of a data set.

    Args:
        kind: `responses` or `groups`: what one row is.
        chosen: which responses, in words.
    """
    columns = dict(COLUMNS)
    if kind == "responses":
        columns |= RESPONSE_COLUMNS
    else:
        nested = {name: column.feature for name, column in RESPONSE_COLUMNS.items()}
        columns["responses"] = Column([nested], "the siblings, in order")
    features = {name: column.feature for name, column in columns.items()}
    lines = [
        "---",
        "pretty_name: Inference records",
        "tags:",
        "- reroll",
        "configs:",
        "- config_name: default",
        "  data_files:",
        "  - split: train",
        "    path: data/train-*",
        "dataset_info:",
        "  features:",
        *_features(features, "  "),
        "---",
        "",
        "# Inference records",
        "",
        f"Outcomes of scored rollouts, one row per {kind.removesuffix('s')}: {facts.rows:,} rows.",
        f"Responses are {chosen}.",
        "",
        f"Recorded by {facts.runs} runs in {facts.attempts} starts.",
        "",
        *(f"- lineage `{_plain(name)}`" for name in facts.lineages),
        *(f"- protocol `{_plain(name)}`" for name in facts.protocols),
        "",
        "Rewards are evidence about a response only where `valid` is true. Pool them within one `lineage`, `input_key`",
        "and policy only.",
        "",
        *_table(columns),
    ]
    if kind == "groups":
        lines += ["", "Fields of `responses`:", "", *_table(RESPONSE_COLUMNS)]
    return "\n".join(lines) + "\n"


def _table(columns: Mapping[str, Column]) -> list[str]:
    rows = (f"| `{name}` | {column.meaning} |" for name, column in columns.items())
    return ["| column | meaning |", "|---|---|", *rows]


def _features(features: Mapping[str, Feature], indent: str) -> list[str]:
    """YAML of named features: `dtype` of a value, `list` of a dtype or of named features."""
    lines = []
    for name, feature in features.items():
        lines.append(f"{indent}- name: {name}")
        if isinstance(feature, str):
            lines.append(f"{indent}  dtype: {feature}")
        elif isinstance(feature[0], str):
            lines.append(f"{indent}  list: {feature[0]}")
        else:
            lines += [f"{indent}  list:", *_features(feature[0], indent + "  ")]
    return lines


def _plain(text: str) -> str:
    """A manifest may say anything; a card is Markdown that a browser shows."""
    return "".join(character for character in text if character.isalnum() or character in "-_.")
