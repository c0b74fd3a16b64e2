"""Every metric that runs log is in the catalog once, and nothing is in it that nobody logs."""

import ast
import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest
import tomli_w
from driving import session_of

from reroll.loop import train
from reroll.plugins import load_plugins
from reroll.reporting.catalog import CORE, Metric, catalog, entries

ROOT = Path(__file__).parents[1]
METRICS = catalog(load_plugins())

TOOLS = {
    "model": {"path": "builtin:tiny-tools"},
    "data": {
        "verifiers": [{"name": "regex", "pattern": r"\\boxed\{(-?\d+)\}"}],
        "sources": [
            {"name": "tools", "ratio": 0.5, "task_set": {"name": "calculations", "terms": 4, "verifier": "regex"}},
            {
                "name": "again",
                "ratio": 0.5,
                "max_prompt_len": 300,
                "task_set": {"name": "recheck", "buffer_dir": "self", "empty_timeout": 0.0},
            },
        ],
    },
    "rollout": {
        "num_rollout": 4,
        "rollout_batch_size": 4,
        "n_samples_per_prompt": 4,
        "rollout_max_prompt_len": 96,
        "rollout_max_response_len": 64,
        "rollout_max_context_len": 320,
        "harness": {"name": "tool_loop", "compact_at": 64},
        "group_filters": [],
    },
    "async": {"fully_async": True, "max_weight_staleness": 1},
    "objective": {"use_kl_loss": True, "kl_loss_coef": 0.1, "correction": "tis"},
    "trainer": {"lr": 1e-4, "max_sequence_length": 900},
    "debug": {"diagnostic_interval": 2},
    "eval": {
        "sets": [
            {"name": "sums", "task_set": {"name": "addition", "split": "held_out", "size": 4, "verifier": "regex"}}
        ]
    },
}


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """Names that a run with nearly everything logs: sources, tools, replay, records, correction, KL, diagnostics."""
    folder = tmp_path_factory.mktemp("everything")
    path, output = folder / "run.toml", folder / "out"
    path.write_text(tomli_w.dumps({**TOOLS, "records": {"enabled": True, "root": str(folder / "store")}}))

    async def run():
        async with session_of(path, output) as session:
            await train(session)

    asyncio.run(asyncio.wait_for(run(), 240))
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return {name for line in lines for name in line} - {"step", "time"}


def test_every_logged_metric_has_one_entry(logged):
    assert len(logged) > 90
    assert {name: len(entries(METRICS, name)) for name in logged} == dict.fromkeys(logged, 1)


def test_every_entry_of_core_is_logged(logged):
    unseen = {metric.pattern for metric in CORE if not any(metric.names(name) for name in logged)}
    assert unseen == set()


def test_what_components_describe_is_in_their_code_beside_the_description():
    """Harnesses of containers are not run here: their metrics must be written somewhere all the same."""
    described = [metric for metric in METRICS if metric not in CORE]
    assert {metric.given_by for metric in described} >= {"reroll-harbor", "reroll-records"}
    for metric in described:
        sources = ROOT / "packages" / metric.given_by.removeprefix("reroll-") / "src"
        written = Counter(
            node.value
            for path in sources.rglob("*.py")
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant)
        )
        assert written[metric.pattern] >= 2, metric.pattern


def test_no_two_entries_are_of_one_name():
    assert len({metric.pattern for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert entries(METRICS, metric.pattern.replace("<", "").replace(">", "")) == [metric]
        assert metric.unit and metric.meaning


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("a/<x>", "a/b", True),
        ("a/<x>", "a/b/c", True),
        ("a/<x>", "a/", False),
        ("a/<x>/c", "a/b/c", True),
        ("a/<x>/c", "a/b/b/c", False),
        ("a/b_<x>", "a/b_3", True),
        ("a/b", "a/bc", False),
        ("a/b", "xa/b", False),
        ("a.b/c", "axb/c", False),
    ],
)
def test_a_pattern_fits_whole_names(pattern, name, fits):
    assert Metric(pattern, "", "").names(name) is fits
