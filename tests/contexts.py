"""Who a run is, for what is tested without a whole one."""

from pathlib import Path

from reroll.api import Protocol, RunContext, Seeds

CONTEXT = RunContext(
    run_id="run",
    name="a run",
    attempt="attempt",
    fresh=True,
    start_rollout_id=0,
    model="a model",
    checkpoint={"config.json": {"size": 2, "mtime": 0.0, "sha256": "0" * 64}},
    protocol=Protocol({}, 100, "single_turn", [], "", "", "", {}, "exclude", True),
    seeds=Seeds(0, 0, 0),
    output=Path("nowhere"),
    data={},
)
