"""`[checkpoint]`: options that would do nothing are refused, and so is a checkpoint that is not there."""

import pytest

from reroll.api import RunFileError
from reroll.checkpoints.config import CheckpointSection
from reroll.checkpoints.store import CheckpointStore
from reroll.config import load_run_file
from reroll.plugins import load_plugins

GOOD = """
[model]
path = "builtin:tiny-math"
[data]
verifiers = [{ name = "regex", pattern = "(\\\\d+)" }]
[checkpoint]
"""


def load(tmp_path, lines):
    path = tmp_path / "run.toml"
    path.write_text(GOOD + lines)
    return load_run_file(path, [], load_plugins())


def test_nothing_is_saved_by_default(tmp_path):
    section = load(tmp_path, "").get(CheckpointSection)
    assert (section.save_interval, section.keep_last, section.keep_every, section.async_save) == (None, 2, None, True)


@pytest.mark.parametrize("line", ["keep_last = 1", "keep_every = 4", "async_save = false"])
def test_options_without_an_interval_would_do_nothing(tmp_path, line):
    with pytest.raises(RunFileError) as caught:
        load(tmp_path, line)
    (problem,) = caught.value.problems
    assert problem.key == f"checkpoint.{line.split()[0]}"
    assert "save_interval is not given" in problem.message
    assert problem.remedy == "set checkpoint.save_interval"
    load(tmp_path, f"{line}\nsave_interval = 3")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('save = "x"', "is refused: checkpoints always go to <output>/checkpoints"),
        ("ckpt_step = 3", "is refused: checkpoint.load names the folder of the step itself"),
        ("keep_last = 0", "greater than 0"),
        ("save_interval = 0", "greater than 0"),
    ],
)
def test_what_other_tools_call_it_is_told(tmp_path, line, message):
    with pytest.raises(RunFileError, match=message):
        load(tmp_path, line)


def test_a_checkpoint_to_load_must_be_whole(tmp_path):
    store = CheckpointStore(tmp_path / "out" / "checkpoints")
    run = load(tmp_path, f'load = "{tmp_path / "out"}"')
    section = run.get(CheckpointSection)

    def problems(thorough=False):
        return [(item.key, item.message) for item in section.validate_files(run, thorough)]

    ((key, message),) = problems()
    assert (key, message) == ("checkpoint.load", f"{tmp_path / 'out'} is no folder: give a run's folder, or one of its "
                              "checkpoints/step_N")  # fmt: skip
    (store.begin(3) / "x").write_text("abc")
    assert "manifest.json is missing" in problems()[0][1]
    store.complete(3, 1, {})
    assert problems(thorough=True) == []
    (store.folder(3) / "x").write_text("abd")
    assert problems() == []
    assert "is not what was written" in problems(thorough=True)[0][1]
