"""`reroll plan --from-miles` as a user calls it."""

import json
import subprocess
import sys
import tomllib
from typing import get_args

from typer.models import OptionInfo

from reroll.cli.from_miles import FromMilesOption

FILE = """[miles]
hf_checkpoint = "/data/hf"
rollout_batch_size = 4
n_samples_per_prompt = 4
prompt_data = "/data/train.jsonl"
label_key = "answer"
rm_type = "math"
lr = 1e-5
"""
STRUCTURED = """global_batch_size = 16
train_env_vars = { NCCL_DEBUG = "WARN" }
eval_prompt_data = ["gsm8k", "/data/gsm8k-heldout.jsonl"]
sglang_cuda_graph_config = { decode = { backend = "full", max_bs = 4 }, prefill = { backend = "disabled" } }
"""
REFUSED = "`reroll plan` refuses this file until this is mended:"


def reroll(tmp_path, *arguments):
    command = [sys.executable, "-m", "reroll", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)


def test_what_it_prints_is_a_run_file_that_plan_takes(tmp_path):
    (tmp_path / "miles.toml").write_text(FILE)
    done = reroll(tmp_path, "plan", "--from-miles", "miles.toml", "--set", "miles.lr=2e-5")
    assert done.returncode == 0, done.stderr
    assert tomllib.loads(done.stdout)["trainer"]["lr"] == 2e-5
    assert REFUSED not in done.stdout + done.stderr
    (tmp_path / "run.toml").write_text(done.stdout)
    planned = reroll(tmp_path, "plan", "run.toml", "--json")
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["sizes"]["collection_responses"] == 16


def test_tables_and_lists_of_values_are_taken_by_plan_as_well(tmp_path):
    (tmp_path / "miles.toml").write_text(FILE + STRUCTURED)
    given = ["miles.lr=1e-6", "miles.num_rollout=100", 'miles.wandb_group="gsm8k-comparison"', "miles.use_wandb=true"]
    done = reroll(tmp_path, "plan", "--from-miles", "miles.toml", *(f"--set={each}" for each in given))
    assert done.returncode == 0, done.stderr
    (tmp_path / "run.toml").write_text(done.stdout)
    planned = reroll(tmp_path, "plan", "run.toml", "--json")
    assert planned.returncode == 0, planned.stderr
    explicit = json.loads(planned.stdout)["explicit"]
    assert explicit["trainer"]["env_vars"] == {"NCCL_DEBUG": "WARN"}
    assert explicit["sglang"]["cuda_graph_config"]["decode"] == {"backend": "full", "max_bs": 4}
    assert explicit["eval"]["sets"][0]["task_set"]["path"] == "/data/gsm8k-heldout.jsonl"
    assert explicit["trackers"]["names"][1]["wandb_group"] == "gsm8k-comparison"


def test_json_holds_the_same(tmp_path):
    (tmp_path / "miles.toml").write_text(FILE + "debug_rollout_only = true\nn_samples_per_prompt_ = 2\nseed = -1\n")
    done = reroll(tmp_path, "plan", "--from-miles", "miles.toml", "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["run_file"] == tomllib.loads(found["text"])
    assert [(note["kind"], note["about"]) for note in found["notes"]][:2] == [
        ("refused", "miles.debug_rollout_only"),
        ("unknown", "miles.n_samples_per_prompt_"),
    ]
    (fault,) = found["refused_by_plan"]
    assert (fault["key"], fault["file"], fault["line"]) == ("miles.seed", "miles.toml", 11)
    assert "`run.seed`: -1" in fault["message"]
    assert done.stderr == ""


def test_what_plan_refuses_is_told_with_control_line_and_remedy(tmp_path):
    (tmp_path / "miles.toml").write_text(FILE + "fully_async = true\nmax_weight_staleness = 2\nglobal_batch_size = 8\n")
    done = reroll(tmp_path, "plan", "--from-miles", "miles.toml")
    assert done.returncode == 1
    assert done.stderr.startswith(f"{REFUSED}\n  miles.toml:10: miles.max_weight_staleness: as `async.max_weight_st")
    assert "\n    set it to 3 or more" in done.stderr
    assert done.stdout.startswith(f"# {REFUSED}\n# miles.max_weight_staleness: as `async.max_weight_staleness`: 2 does")
    assert tomllib.loads(done.stdout)["async"]["max_weight_staleness"] == 2
    (tmp_path / "run.toml").write_text(done.stdout)
    assert reroll(tmp_path, "plan", "run.toml").returncode == 2
    mended = reroll(tmp_path, "plan", "--from-miles", "miles.toml", "--set", "max_weight_staleness=3")
    assert mended.returncode == 0, mended.stderr


def test_controls_that_are_left_out_stand_under_what_they_mean(tmp_path):
    more = 'lora_rank = 8\ncustom_rm_path = "my.reward"\nnum_rolout = 3\nbalance_data = true\n'
    (tmp_path / "miles.toml").write_text(FILE + more)
    done = reroll(tmp_path, "plan", "--from-miles", "miles.toml")
    assert done.returncode == 1
    for text in (
        "Refused: without it the run is another one\n  miles.lora_rank: ",
        "Unknown:\n  miles.num_rolout: is no control that is known here; did you mean 'num_rollout'?\n",
        "To be given by hand:\n  data.verifiers: in place of miles.custom_rm_path: ",
        "Not needed here:\n  miles.balance_data: ",
    ):
        assert text in done.stderr
        assert text.partition("\n")[0] in done.stdout


def test_aliases_that_disagree_print_no_run_file(tmp_path):
    (tmp_path / "miles.toml").write_text(FILE + "max_weight_staleness = 1\n[core]\nmax_policy_lag = 2\n")
    done = reroll(tmp_path, "plan", "--from-miles", "miles.toml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "miles.toml:11: core.max_policy_lag" in done.stderr or "miles.toml:9: miles.max_weight" in done.stderr
    assert "core.max_policy_lag" in done.stderr and "miles.max_weight_staleness" in done.stderr


def test_a_file_that_is_not_there_is_named(tmp_path):
    done = reroll(tmp_path, "plan", "--from-miles", "nowhere.sh")
    assert done.returncode == 2 and "nowhere.sh" in done.stderr


def test_help_says_what_the_exit_code_means():
    # The terminal's help is wrapped to its width; this is what it wraps.
    (option,) = [item for item in get_args(FromMilesOption) if isinstance(item, OptionInfo)]
    assert "Exits with 1 where `plan` would refuse it" in option.help
