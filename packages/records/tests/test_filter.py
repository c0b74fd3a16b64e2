"""The filter alone: what it skips, and what it tells."""

import logging
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from reroll.api import RenderedPrompt, RerollError, Task

sys.path.insert(0, str(Path(__file__).parent))

from records_cases import CONTEXT, make_group, write

from reroll_records.selection.filter import SelectionFilter
from reroll_records.selection.selecting import Rule, select, write_table


@pytest.fixture
def opened(tmp_path):
    """A filter whose table excludes prompt 0, and what it warned of."""
    for run in range(2):
        group = make_group(0, (0.0,) * 8)
        group.seeds = [100 * run + place for place in range(8)]
        seeds = replace(CONTEXT.seeds, rollout=run)
        write(tmp_path / "store", [group], replace(CONTEXT, run_id=f"r{run}", attempt=f"a{run}", seeds=seeds))
    built = select(tmp_path / "store", Rule(skip=("all_zero",), readmit_fraction=0.0))
    write_table(tmp_path / "table.json", built)
    made, told = SelectionFilter(tmp_path / "table.json", built.sha256), []
    made.warn = told.append
    made.prepare()
    made.open(CONTEXT)
    return made, told, built


def test_loading_a_table_warns_of_what_is_not_checked(opened):
    _, told, _ = opened
    assert len(told) == 1 and "code" in told[0] and "service or model" in told[0]


def test_the_prompt_is_known_by_its_input_key_alone(opened):
    made, _, built = opened
    group = make_group(0)
    assert made.fingerprint == built.sha256
    assert made.skip(group.task, group.rendered) == "all_zero (math)"
    elsewhere = replace(group.task, source_dataset="other", source_row=99, prepared_sample_id="99")
    assert made.skip(elsewhere, group.rendered) == "all_zero (math)"
    assert made.skip(replace(group.task, targets={"math": "5"}), group.rendered) is None
    assert made.skip(group.task, replace(group.rendered, token_ids=(1, 2))) is None
    assert made.skip(group.task, replace(group.rendered, text="<other>")) is None


def test_a_task_that_no_record_could_hold_is_not_skipped(opened):
    made, _, _ = opened
    assert made.skip(Task("q", {"math": object()}, "s", 0, "0"), RenderedPrompt("q", (1,), "", "")) is None


def test_skips_are_logged_by_rule_and_domain(opened, caplog):
    made, _, _ = opened
    group = make_group(0)
    with caplog.at_level(logging.INFO, logger="reroll"):
        for _ in range(5):
            made.skip(group.task, group.rendered)
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"selection: {count} prompts skipped so far: all_zero (math)" for count in (1, 2, 4)]


def test_a_table_that_changed_is_refused_before_anything_begins(opened, tmp_path):
    _, _, built = opened
    (tmp_path / "table.json").write_bytes(built.file.replace(b"all_zero", b"all_full"))
    with pytest.raises(RerollError, match="pins"):
        SelectionFilter(tmp_path / "table.json", built.sha256).prepare()
