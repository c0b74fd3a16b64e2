"""Wrong run files on the command line: each fault names line or key, value and remedy, and all come at once."""

import sys
from typing import NamedTuple

import pytest

from reroll.cli import main

GOOD = """[model]
path = "builtin:tiny-math"
[data]
verifiers = [{ name = "regex", pattern = "(x)" }]
"""
SECRET = "sk-" + "a1B2" * 6
FAULTS = {
    "misspelt section": ("[trianer]\nlr = 1e-6\n", ["run.toml:5: trianer", "did you mean 'trainer'?"]),
    "wrong type": ("[trainer]\nlr = 'fast'\n", ["run.toml:6: trainer.lr: 'fast'", "valid number"]),
    "aliases that conflict": (
        "[serving]\nengine = 'sglang'\n[sglang]\ntp_size = 2\ntensor_parallel_size = 4\n",
        ["run.toml:9: sglang.tensor_parallel_size", "another name of tp_size", "leave one of them out"],
    ),
    "two names of one length": (
        "[trainer]\nlr_warmup_iters = 1\nlr_warmup_fraction = 0.1\n",
        ["run.toml:5: trainer: lr_warmup_iters and lr_warmup_fraction", "give one"],
    ),
    "lag too small": (
        "[trainer]\nglobal_batch_size = 64\n[async]\nfully_async = true\nmax_weight_staleness = 1\n",
        ["run.toml:9: async.max_weight_staleness: 1 does not cover", "set it to 3 or more"],
    ),
    "lengths that contradict": (
        "[trainer]\nmax_sequence_length = 100\n",
        ["run.toml:6: trainer.max_sequence_length: 100 is shorter than the 640", "set rollout.rollout_max_context_len"],
    ),
    "unknown option of SGLang": (
        "[serving]\nengine = 'sglang'\n[sglang]\nmem_fraction_sttic = 0.5\n",
        ["run.toml:8: sglang.mem_fraction_sttic", "did you mean 'mem_fraction_static'"],
    ),
    "absent plugin": (
        "[rollout]\nharness = 'sandboxes'\n",
        ["run.toml:6: rollout.harness: 'sandboxes'", "there are:", "single_turn"],
    ),
    "TOML syntax": ("[run]\nname = quick\n", ["run.toml:6: TOML:", "strings need quotes"]),
    "secret": (
        f"[run]\nname = '{SECRET}'\n",
        ["run.toml:6: run.name: holds what looks like an API key", "environment variable"],
    ),
}


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def reroll(tmp_path, monkeypatch, capsys):
    """Runs a command on the text of a run file, as the installed program does."""

    def run(command, text):
        (tmp_path / "run.toml").write_text(text)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["reroll", command, "run.toml"])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(ended.value.code, *capsys.readouterr())

    return run


@pytest.mark.parametrize(("text", "told"), FAULTS.values(), ids=FAULTS)
def test_a_wrong_file_is_told_with_place_value_and_remedy(reroll, text, told):
    done = reroll("plan", GOOD + text)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("1 fault in the run file:")
    for part in told:
        assert part in done.stderr
    assert SECRET not in done.stderr


def test_a_model_that_cannot_be_read_is_told_with_the_other_files(reroll, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{")
    (tmp_path / "taken").write_text("")
    text = """[model]
path = "model"
[data]
verifiers = [{ name = "regex", pattern = "(x)" }]
task_set = { name = "file", path = "nowhere.jsonl" }
[output]
dir = "taken"
"""
    done = reroll("validate", text)
    assert done.returncode == 2
    assert "run.toml:2: model.path" in done.stderr and "config.json" in done.stderr
    assert "run.toml:7: output.dir: 'taken' is a file" in done.stderr
    assert "nowhere.jsonl" in done.stderr


def test_a_fault_of_one_file_hides_none_of_the_others(reroll, tmp_path):
    (tmp_path / "taken").write_text("")
    (tmp_path / "wrong.jsonl").write_text('{"prompt": 5, "targets": {"regex": "x"}}\n')
    wrong = '{ name = "file", path = "wrong.jsonl" }'
    sets = "".join(f'[[eval.sets]]\nname = "{name}"\ntask_set = {wrong}\n' for name in "ab")
    done = reroll("validate", GOOD + '[output]\ndir = "taken"\n' + sets)
    assert done.returncode == 2
    for key in ("output.dir", "eval.sets[0].task_set", "eval.sets[1].task_set"):
        assert key in done.stderr


def test_all_faults_come_at_once(reroll):
    text = f"""[trianer]
lr = 1
[model]
path = "builtin:tiny-math"
chat_tmplate = "x"
[run]
name = "{SECRET}"
[data]
verifiers = ["regx"]
[rollout]
harness = "sandboxes"
n_samples_per_prompt = "many"
lr = 1e-6
[trainer]
lr = -1
lr_warmup_iters = 1
lr_warmup_fraction = 0.1
max_sequence_length = 100
[async]
fully_async = true
[serving]
engine = "sglang"
[sglang]
mem_fraction_sttic = 0.5
tp_size = 1
tensor_parallel_size = 1
[miles]
num_rollout = 3
[eval]
eval_interval = 5
[trackers]
names = ["jsonl", "jsonl"]
"""
    done = reroll("plan", text)
    assert done.returncode == 2
    expected = {
        1: "trianer",
        5: "model.chat_tmplate",
        7: "run.name",
        9: "data.verifiers[0]",
        11: "rollout.harness",
        12: "rollout.n_samples_per_prompt",
        13: "rollout.lr",
        14: "trainer",
        15: "trainer.lr",
        18: "trainer.max_sequence_length",
        19: "async.max_weight_staleness",
        24: "sglang.mem_fraction_sttic",
        26: "sglang.tensor_parallel_size",
        28: "miles.num_rollout",
        30: "eval.eval_interval",
        32: "trackers.names",
    }
    told = [line.strip() for line in done.stderr.splitlines() if line.startswith("  run.toml")]
    assert [
        key
        for number, key in expected.items()
        if not any(line.startswith(f"run.toml:{number}: {key}:") for line in told)
    ] == []
    assert len(told) == len(expected)
    assert SECRET not in done.stderr


def test_toml_syntax_hides_the_rest(reroll):
    done = reroll("validate", "[run\nname = 1\n")
    assert (done.returncode, done.stderr.count("\n  run.toml:")) == (2, 1)
    assert "run.toml:1: TOML" in done.stderr
