"""A run file in names of MILES is told what to write instead, all at once and with its lines."""

import subprocess
import sys

import pytest

from reroll.api import RunFileError
from reroll.config import load_run_file
from reroll.dials.table import dials
from reroll.plan import size_problems
from reroll.plugins import load_plugins

GOOD = """[model]
path = "builtin:tiny-math"
[data]
verifiers = [{ name = "regex", pattern = "(x)" }]
"""


@pytest.fixture(scope="module")
def plugins():
    return load_plugins()


@pytest.fixture
def faults(tmp_path, plugins):
    def load(text, *overrides):
        path = tmp_path / "run.toml"
        path.write_text(text)
        with pytest.raises(RunFileError) as caught:
            load_run_file(path, overrides, plugins, [size_problems])
        return {problem.key: problem for problem in caught.value.problems}

    return load


def test_every_key_of_a_foreign_section_has_its_answer_and_line(faults):
    text = "[miles]\nlr = 1e-6\nsave_hf = true\nfoo = 1\nsglang_page_size = 2\n[core]\nrow_specialization = 'x'\n"
    found = faults(GOOD + text)
    assert str(found["miles.lr"]).split("run.toml:")[1].startswith("6: miles.lr: use `trainer.lr`")
    assert "--from-miles" in found["miles.lr"].remedy
    assert found["miles.save_hf"].message == "is refused" and "output.export_hf" in found["miles.save_hf"].remedy
    assert found["core.row_specialization"].message == "is not applicable here"
    assert found["core.row_specialization"].line == 11
    assert found["miles.sglang_page_size"].message == "use `sglang.page_size`"
    assert "no control" in found["miles.foo"].message
    assert len(found) == 5


@pytest.mark.parametrize("section", ["miles", "core"])
def test_every_line_of_the_table_answers(faults, section):
    lines = [line for line in dials().values() if line.name.startswith(f"{section}.")]
    found = faults(GOOD + f"[{section}]\n" + "".join(f"{line.control} = 1\n" for line in lines))
    for line in lines:
        assert found[line.name].message == line.told()[0]


def test_a_foreign_name_in_a_section_of_ours_is_answered(faults):
    found = faults(GOOD + "[trainer]\nrollout_num_gpus = 4\n[rollout]\nmax_policy_lag = 1\nlora_rank = 8\n")
    assert "serving.num_engines" in found["trainer.rollout_num_gpus"].message
    assert "async.max_weight_staleness" in found["rollout.max_policy_lag"].message
    assert found["rollout.lora_rank"].message == "is refused"


def test_a_section_that_bears_a_name_of_ours_has_its_own_answers(faults):
    found = faults(GOOD + "tasks = ['gsm8k']\n[output]\nroot = 'x'\n")
    assert found["output.root"].message == "is a name of MILES: use `output.dir`"
    assert "reroll data prepare" in found["data.tasks"].remedy


def test_an_override_in_a_foreign_name_is_answered(faults):
    found = faults(GOOD, "miles.lr=1e-6", "trainer.max_policy_lag=1")
    assert found["--set miles.lr"].message == "use `trainer.lr`"
    assert "async.max_weight_staleness" in found["--set trainer.max_policy_lag"].message


def test_a_key_in_the_wrong_section_is_told_where_it_belongs(faults):
    found = faults(GOOD + "[rollout]\nlr = 1e-6\n[trainer]\nseed = 1\n[run]\nnames = 'x'\n")
    assert found["rollout.lr"].remedy == "use `trainer.lr`"
    assert found["trainer.seed"].remedy == "use `data.seed` or `rollout.seed` or `run.seed`"
    assert found["run.names"].remedy == "did you mean 'name'? Else use `trackers.names`"


def test_what_a_section_refuses_is_its_own_answer(faults):
    found = faults(GOOD + "[trainer]\nmax_tokens_per_gpu = 1\n[async]\nmax_policy_lag = 1\n")
    assert "it is called trainer.max_tokens_per_micro_batch" in found["trainer.max_tokens_per_gpu"].message
    assert "the bound has one name here" in found["async.max_policy_lag"].message


def test_a_misspelt_key_still_has_the_nearest_one(faults):
    assert faults(GOOD + "[trainer]\nadam_bta1 = 0.5\n")["trainer.adam_bta1"].remedy == "did you mean 'adam_beta1'?"


def test_a_foreign_section_that_is_no_table_is_told(faults):
    assert "is a section of MILES" in faults("miles = 1\n" + GOOD)["miles"].message


def test_keys_that_contradict_each_other_hide_nothing(faults):
    text = (
        "[trainer]\nlr_warmup_iters = 1\nlr_warmup_fraction = 0.1\nglobal_batch_size = 7\n[eval]\neval_interval = 2\n"
    )
    assert set(faults(GOOD + text)) == {"trainer", "trainer.global_batch_size", "eval.eval_interval"}


def test_a_section_that_cannot_be_built_hides_no_check_of_others(faults):
    found = faults("[data]\n[eval]\neval_interval = 2\n[trainer]\nglobal_batch_size = 7\n")
    assert set(found) == {"model.path", "data.verifiers", "eval.eval_interval", "trainer.global_batch_size"}


def test_the_table_is_not_read_for_a_sound_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(GOOD)
    program = (
        "import sys\nfrom pathlib import Path\nfrom reroll.config import load_run_file\n"
        "from reroll.plugins import load_plugins\n"
        f"load_run_file(Path({str(path)!r}), [], load_plugins())\n"
        "assert not [name for name in sys.modules if name.startswith(('reroll.dials', 'reroll.miles'))]"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
