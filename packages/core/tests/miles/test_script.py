"""Shell scripts that start MILES: what their flags say, and where only a shell would know."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.api import RunFileError
from reroll.miles.script import read_script
from reroll.miles.source import read_source
from reroll.miles.words import statements

SCRIPT = """#!/bin/bash
set -ex
MODEL="/models/Qwen3-4B"   # a comment
STEPS=${STEPS:-30}
CKPT_ARGS=(
   --hf-checkpoint ${MODEL}
   --save "${MODEL}_run/"  # beside it
   # --load nothing
)
ROLLOUT_ARGS=(
   --num-rollout $STEPS
   --rollout-temperature 0.8
   --eval-prompt-data aime '/data/a b.jsonl'
   --apply-chat-template
)
ROLLOUT_ARGS+=(--lr=1e-6 --no-offload-train)
UNUSED=(--seed 7)
cat <<EOF > note.txt
--lr 5 'not closed
EOF
RUNTIME="{ \\"env\\": \\"$HOME\\" }"
ray job submit --address="http://127.0.0.1:8265" \\
   --runtime-env-json="${RUNTIME}" \\
   -- python3 train.py \\
   --actor-num-nodes 1 \\
   --rollout-top-k -1 \\
   ${CKPT_ARGS[@]} \\
   "${ROLLOUT_ARGS[@]}" \\
   ${MODEL_ARGS[@]}
echo "done" && exit
"""


def test_a_script_is_read():
    script = read_script(SCRIPT)
    assert script.given == {
        "actor_num_nodes": 1,
        "rollout_top_k": -1,
        "hf_checkpoint": "/models/Qwen3-4B",
        "save": "/models/Qwen3-4B_run/",
        "num_rollout": 30,
        "rollout_temperature": 0.8,
        "eval_prompt_data": ["aime", "/data/a b.jsonl"],
        "apply_chat_template": True,
        "lr": 1e-6,
        "offload_train": False,
    }
    assert (script.lines["hf_checkpoint"], script.lines["num_rollout"], script.lines["rollout_top_k"]) == (6, 11, 26)
    assert not script.problems
    assert [(note.about, note.text.split(":")[0]) for note in script.notes] == [("${MODEL_ARGS[@]}", "line 29")]


def test_arrays_are_read_where_no_program_is_called():
    assert read_script("ARGS=(--lr 1e-5)\n").given == {"lr": 1e-5}


def test_a_repeated_flag_counts_as_its_last():
    assert read_script("python train.py --lr 1 --lr 2\n").given == {"lr": 2}


@pytest.mark.parametrize("value", ["$LR", "${LR}", "$(cat lr.txt)", "`cat lr.txt`", '"${BASE}e-6"', "${LR/a/b}"])
def test_a_value_that_only_a_shell_knows_is_a_fault_with_its_line(value):
    (problem,) = read_script(f"python train.py \\\n  --lr {value}\n").problems
    assert (problem.key, problem.line) == ("--lr", 2)
    assert "which the script does not set" in problem.message and problem.remedy


def test_it_is_no_fault_where_the_control_has_no_counterpart():
    script = read_script("python train.py --wandb-key $KEY --custom-rm-path $RM --unheard-of $X --lr 1\n")
    assert not script.problems
    assert script.given == {"wandb_key": True, "custom_rm_path": True, "unheard_of": True, "lr": 1}


def test_single_quotes_hold_no_variables():
    assert read_script("A=1\npython train.py --wandb-group '$A' --save \"$A\" --load \\$A\n").given == {
        "wandb_group": "$A",
        "save": 1,
        "load": "$A",
    }


def test_conditions_are_told():
    script = read_script('if [ "$X" = 1 ]; then\n  ARGS=(--lr 1)\nfi\npython train.py "${ARGS[@]}"\n')
    assert script.given == {"lr": 1}
    assert [note.about for note in script.notes] == ["the script's conditions"]


def test_a_source_has_files_and_lines(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text("python train.py --num-rollout 3 \\\n  --lr $LR\n")
    with pytest.raises(RunFileError) as caught:
        read_source(path)
    assert str(caught.value).startswith(f"{path}:2: --lr: holds $LR")
    path.write_text("python train.py --num-rollout 3\n")
    source = read_source(path, ["miles.num_rollout=4"])
    assert source.given == {"miles.num_rollout": 4} and source.line("miles.num_rollout") == 1


def test_a_source_never_repeats_a_secret(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text("python train.py --wandb-key abcdef0123456789 \\\n  --save s3://user:hunter2@host/a\n")
    with pytest.raises(RunFileError) as caught:
        read_source(path)
    assert [(problem.key, problem.line) for problem in caught.value.problems] == [
        ("miles.wandb_key", 1),
        ("miles.save", 2),
    ]
    assert "abcdef" not in str(caught.value) and "hunter2" not in str(caught.value)


def test_a_source_in_toml_tells_sections_that_are_unknown(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[miles]\nlr = 1e-6\n[judges]\nx = 1\n")
    source = read_source(path)
    assert source.given == {"miles.lr": 1e-6}
    assert [note.about for note in source.notes] == ["judges"]


WORDS = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=10)


@given(st.lists(WORDS, min_size=1, max_size=6))
def test_quoted_words_are_read_as_a_shell_would(words):
    import shlex

    (statement,) = statements(shlex.join(words))
    assert ["".join(map(str, word.pieces)) for word in statement] == words


@given(st.text(st.sampled_from("ab= \n\\'\"`${}()[]@#;&|<-:!~EOF1"), max_size=40))
def test_any_text_is_read_to_its_end(text):
    script = read_script(text + "\n")
    assert all(problem.line for problem in script.problems)


def test_variables_that_double_one_another_end():
    lines = ["V0=ab", *(f"V{number + 1}=${{V{number}}}${{V{number}}}" for number in range(60))]
    script = read_script("\n".join([*lines, "python train.py --hf-checkpoint $V60"]))
    (problem,) = script.problems
    assert problem.key == "--hf-checkpoint"
