"""`[records]` and `[selection]`: what a run file may say."""

from pathlib import Path

import pytest
import tomli_w

from reroll.api import RunFileError
from reroll.config import load_run_file
from reroll.plugins import load_plugins

BASE = """
[model]
path = "builtin:tiny-math"
[data]
verifiers = [{ name = "regex", pattern = "(\\\\d+)" }]
"""
ASYNC = """
[async]
fully_async = true
max_weight_staleness = 1
"""


@pytest.fixture(scope="module")
def plugins():
    return load_plugins()


def faults(tmp_path, plugins, text, base=BASE + ASYNC):
    path = tmp_path / "run.toml"
    path.write_text(base + text)
    try:
        load_run_file(path, [], plugins)
    except RunFileError as error:
        return {problem.key: f"{problem.message}\n{problem.remedy}" for problem in error.problems}
    return {}


def test_recording_is_off_by_default(tmp_path, plugins):
    path = tmp_path / "run.toml"
    path.write_text(BASE)
    section = load_run_file(path, [], plugins).sections["records"]
    assert section.enabled is False and section.responses == "off"


def test_recording_is_refused_in_a_synchronous_run(tmp_path, plugins):
    found = faults(tmp_path, plugins, '[records]\nenabled = true\nroot = "/store"\n', base=BASE)
    assert list(found) == ["records.enabled"] and "synchronous" in found["records.enabled"]
    assert faults(tmp_path, plugins, '[records]\nenabled = true\nroot = "/store"\n') == {}


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("enabled = true", "records.root", "is not given"),
        ('enabled = true\nroot = "store"', "records.root", "'store' is relative"),
        ('root = "/store"', "records.root", "records.enabled is not"),
        ('enabled = true\nroot = "/s"\nresponses = "sample"', "records.response_sample_rate", "is not given"),
        ('enabled = true\nroot = "/s"\nresponse_sample_rate = 0.1', "records.response_sample_rate", "'off'"),
        (
            'enabled = true\nroot = "/s"\nresponses = "all"\nresponse_sample_rate = 0.1',
            "records.response_sample_rate",
            "'all'",
        ),
        (
            'enabled = true\nroot = "/s"\nresponses = "sample"\nresponse_sample_rate = 0.0',
            "records.response_sample_rate",
            "greater than 0",
        ),
        (
            'enabled = true\nroot = "/s"\nresponses = "sample"\nresponse_sample_rate = 1.01',
            "records.response_sample_rate",
            "less than or equal to 1",
        ),
        ('enabled = true\nroot = "/s"\nresponses = "some"', "records.responses", "some"),
    ],
)
def test_what_is_needed_and_what_does_nothing(tmp_path, plugins, text, key, message):
    found = faults(tmp_path, plugins, f"[records]\n{text}\n")
    assert list(found) == [key] and message in found[key]


def test_recording_can_be_switched_off_with_one_key(tmp_path, plugins):
    assert faults(tmp_path, plugins, '[records]\nenabled = false\nroot = "/store"\n', base=BASE) == {}


def test_nothing_is_scored_where_rollouts_are_loaded(tmp_path, plugins):
    text = '[records]\nenabled = true\nroot = "/store"\n[debug]\nload_rollouts = "/a/run"\n'
    assert "nothing is scored" in faults(tmp_path, plugins, text)["records.enabled"]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('table = "/t.json"', "selection.sha256"),
        (f'sha256 = "{"a" * 64}"', "selection.table"),
        ('table = "/t.json"\nsha256 = "abc"', "selection.sha256"),
    ],
)
def test_a_table_is_pinned_by_its_digest(tmp_path, plugins, text, key):
    assert list(faults(tmp_path, plugins, f"[selection]\n{text}\n")) == [key]


def test_selection_is_switched_on_by_its_section_alone(tmp_path, plugins):
    found = faults(tmp_path, plugins, "", base=BASE.replace("[data]", '[data]\nprompt_filters = ["selection"]'))
    assert "switches on by itself" in found["data.prompt_filters[0]"]


def test_validate_says_that_a_store_cannot_be_written(tmp_path, plugins):
    (tmp_path / "file").write_text("")
    path = tmp_path / "run.toml"
    path.write_text(BASE + ASYNC + f'[records]\nenabled = true\nroot = "{tmp_path}/file/store"\n')
    run = load_run_file(path, [], plugins)
    section = run.sections["records"]
    assert [problem.key for problem in section.validate_files(run, thorough=True)] == ["records.root"]
    assert list(section.validate_files(run, thorough=False)) == [], "a run goes on without records"
    assert Path(section.root).is_absolute()


@pytest.mark.parametrize(
    "text",
    [
        '[records]\nenabled = true\nroot = "/store"\nresponses = "all"',
        '[records]\nenabled = true\nroot = "/store"\nresponses = "sample"\nresponse_sample_rate = 0.25',
        "[records]\nenabled = false",
        f'[selection]\ntable = "/t.json"\nsha256 = "{"a" * 64}"',
    ],
)
def test_the_written_run_file_loads_to_the_same_run(tmp_path, plugins, text):
    path = tmp_path / "run.toml"
    path.write_text(f"{BASE}{ASYNC}{text}\n")
    written = load_run_file(path, [], plugins).to_toml()
    path.write_text(tomli_w.dumps(written))
    assert load_run_file(path, [], plugins).to_toml() == written
    assert {"records", "selection"} <= set(written)
