"""Identity of a run, made once and given to every plugin that needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Seeds:
    """`run`: model side. `data`: order of tasks. `rollout`: sampling."""

    run: int
    data: int
    rollout: int


@dataclass(frozen=True)
class Protocol:
    """How responses are drawn and judged; two runs with equal protocols sample alike.

    Attributes:
        sampling: temperature, truncations, lengths and stop tokens.
        max_context: most tokens of prompt and response together.
        harness, group_filters: as the run file selects them.
        template_sha256, tokenizer_sha256, generation_config_sha256: digests of chat template, `tokenizer.json` and
            `generation_config.json`; empty where there is none.
        verifiers: verifier name → distribution, version, weight and options.
        failure_policy: what becomes of a response whose verifier failed.
        deterministic_inference: whether a response follows from weights, prompt and its sampling seed, so that two
            with one seed are one observation; None where it is not known.
    """

    sampling: Mapping[str, Any]
    max_context: int
    harness: Any
    group_filters: list[Any]
    template_sha256: str
    tokenizer_sha256: str
    generation_config_sha256: str
    verifiers: Mapping[str, Any]
    failure_policy: str | float
    deterministic_inference: bool | None


@dataclass(frozen=True)
class RunContext:
    """Who this run is.

    Attributes:
        run_id: of the run across its attempts; attempt: of this process start.
        fresh: whether the run begins from its starting checkpoint rather than resumes.
        start_rollout_id: first collection of this attempt; start_version: completed optimizer steps before it.
        source: what the run is for: `train`, or `generate` where weights are frozen.
        data: the training task set, as the run file selects it.
        model: the starting checkpoint, as the run file names it.
        checkpoint: its files: name → size, modification time and, for JSON files, SHA-256.
        loaded: the folder of the checkpoint that this start goes on from; None where it begins with `model`.
        filters: prompt-filter name → fingerprint.
    """

    run_id: str
    name: str
    attempt: str
    fresh: bool
    start_rollout_id: int
    model: str
    checkpoint: Mapping[str, Mapping[str, Any]]
    protocol: Protocol
    seeds: Seeds
    output: Path
    data: Any
    source: str = "train"
    start_version: int = 0
    loaded: Path | None = None
    filters: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        loaded = None if self.loaded is None else str(self.loaded)
        return {**asdict(self), "output": str(self.output), "loaded": loaded}
