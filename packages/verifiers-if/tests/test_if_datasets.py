"""The data set `if`, from rows in the forms in which such sets are published."""

import json

import pytest

from reroll import DatasetConfig, TaskError
from reroll.tasks.catalog.prepare import Package, prepare
from reroll.tasks.catalog.rows import How
from reroll.tasks.catalog.sources import file_source
from reroll_verifiers_if.datasets import InstructionsDataset
from reroll_verifiers_if.verifier import InstructionsVerifier

IDS = ["punctuation:no_comma", "length_constraints:number_words"]
KWARGS = [{"num_words": None, "relation": None}, {"num_words": 5, "relation": "at least", "keywords": None}]
TARGET = {"instruction_id_list": IDS, "kwargs": [{}, {"num_words": 5, "relation": "at least"}]}
PROMPT = "Write about {rain}. Use no comma."
CHAT = [{"role": "user", "content": PROMPT}]
TRUTH = [{"instruction_id": IDS, "kwargs": [None, {"num_words": 5, "relation": "at least"}]}]


@pytest.mark.parametrize(
    "raw",
    [
        {"key": 1000, "prompt": PROMPT, "instruction_id_list": IDS, "kwargs": KWARGS},
        {"prompt": PROMPT, "instruction_id_list": IDS, "kwargs": [json.dumps(item) for item in KWARGS]},
        {"prompt": PROMPT, "instruction_id_list": IDS, "kwargs": json.dumps(KWARGS)},
        {"messages": CHAT, "instruction_id_list": IDS, "kwargs": KWARGS},
        {"messages": CHAT, "ground_truth": json.dumps(TRUTH), "dataset": "ifeval", "constraint": "Use no comma."},
        {"messages": CHAT, "ground_truth": repr(TRUTH), "dataset": "ifeval"},
        {"messages": CHAT, "ground_truth": [json.dumps(TRUTH[0])]},
        {"messages": CHAT, "ground_truth": TRUTH[0]},
    ],
)
def test_every_form_gives_the_same_target(raw):
    row = InstructionsDataset().row(raw)
    assert row.target == TARGET
    assert InstructionsVerifier().check_target(row.target) is None
    assert (row.messages or [{"role": "user", "content": row.values["prompt"]}]) == CHAT
    assert row.metadata == ({"key": 1000} if "key" in raw else {})


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({"prompt": "x"}, "has no instruction_id_list and no ground_truth; its fields: prompt"),
        ({"prompt": "x", "instruction_id_list": [], "kwargs": []}, r"instruction_id_list = \[\] is no list of ids"),
        ({"prompt": "x", "instruction_id_list": IDS, "kwargs": [{}]}, "one table for each of 2 ids"),
        ({"prompt": "x", "instruction_id_list": IDS, "kwargs": [{}, 3]}, r"kwargs\[1\] = 3 is no table"),
        ({"prompt": "x", "instruction_id_list": IDS, "kwargs": "[{"}, "is neither JSON nor what Python writes"),
        ({"instruction_id_list": IDS, "kwargs": KWARGS}, "has no 'prompt'"),
        ({"messages": CHAT, "ground_truth": "__import__('os')"}, "is neither JSON nor what Python writes"),
        ({"messages": CHAT, "ground_truth": "[1, 2]"}, "is no table with instruction_id and kwargs"),
        (
            {"messages": CHAT, "ground_truth": json.dumps({"func_name": "validate_lowercase", "N": None})},
            "names the function 'validate_lowercase': rows of that older form have no instruction ids",
        ),
    ],
)
def test_a_row_that_cannot_be_read_says_why(raw, told):
    with pytest.raises(TaskError, match=told):
        InstructionsDataset().row(raw)


def test_the_prompt_stays_with_the_target_where_a_template_adds_to_it():
    raw = {"prompt": PROMPT, "instruction_id_list": IDS, "kwargs": KWARGS}
    row = InstructionsDataset(DatasetConfig(template="Listen! {prompt}")).row(raw)
    assert row.target == {**TARGET, "prompt": PROMPT}
    assert InstructionsVerifier().check_target(row.target) is None


def test_unknown_instructions_are_faults_of_their_rows(tmp_path):
    rows = [
        {"prompt": PROMPT, "instruction_id_list": IDS, "kwargs": KWARGS},
        {"prompt": "x", "instruction_id_list": ["punctuation:no_commas"], "kwargs": [{}]},
    ]
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = InstructionsDataset(), Package("reroll-verifiers-if", "0.1.0"), file_source(source)
    with pytest.raises(TaskError, match="rows.jsonl:2: target .*no_commas"):
        prepare(*arguments, tmp_path / "out", How(), InstructionsVerifier())
    again = InstructionsDataset(), arguments[1], file_source(source)
    done = prepare(*again, tmp_path / "out", How(skip_invalid=True), InstructionsVerifier())
    assert done.manifest.facts.splits["train"].left_out == {"unreadable": 1}
    (line,) = (tmp_path / "out" / "train.jsonl").read_text().splitlines()
    assert json.loads(line)["messages"] == CHAT
