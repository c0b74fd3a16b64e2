"""Tasks follow from the configuration and their index."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from pydantic import ValidationError

from reroll import TaskError, task_from_record
from reroll_verifiers_reasoning_gym import datasets
from reroll_verifiers_reasoning_gym.task_set import INSTRUCTION, ReasoningGymConfig, ReasoningGymTasks, generator_seed

# Whose generators draw in different ways: strings, boards, sets, graphs, NumPy, data files.
DRAWN = [
    "chain_sum",
    "acre",
    "course_schedule",
    "pool_matrix",
    "arc_1d",
    "gsm_symbolic",
]

PROGRAM = """
import json, random, sys
from reroll_verifiers_reasoning_gym.task_set import ReasoningGymConfig, ReasoningGymTasks
random.seed(sys.argv[1])
names, order = json.loads(sys.argv[2]), json.loads(sys.argv[3])
found = {}
for name in names:
    tasks = ReasoningGymTasks(ReasoningGymConfig(dataset=name))
    drawn = {index: tasks.task(index) for index in order}
    found[name] = [[drawn[i].key, drawn[i].prompt, drawn[i].targets] for i in sorted(order)]
print(json.dumps(found, sort_keys=True))
"""


def drawn_elsewhere(number, order):
    command = [sys.executable, "-c", PROGRAM, str(number), json.dumps(DRAWN), json.dumps(order)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": str(number)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def make(**options):
    return ReasoningGymTasks(ReasoningGymConfig(**options))


def test_a_task_is_the_same_in_every_process_and_in_any_order():
    first = drawn_elsewhere(1, [0, 1, 2])
    assert first == drawn_elsewhere(2, [2, 0, 1])
    assert len({str(task) for tasks in json.loads(first).values() for task in tasks}) == 3 * len(DRAWN)


def test_a_task_asks_the_question_and_how_to_answer():
    tasks = make(dataset="chain_sum", size=3)
    first, *_, last = tasks
    assert len(tasks) == 3 and (first.source_row, last.source_row) == (0, 2)
    target = first.targets["reasoning-gym"]
    assert first.prompt == [{"role": "user", "content": f"{target['entry']['question']}\n\n{INSTRUCTION}"}]
    assert (first.source_dataset, target["dataset"]) == ("reasoning-gym/chain_sum", "chain_sum")
    with pytest.raises(IndexError):
        tasks.task(3)
    bare = make(dataset="chain_sum", size=3, instruction="", verifier="mine").task(0)
    assert bare.prompt[0]["content"] == bare.targets["mine"]["entry"]["question"]


def test_options_reach_the_generator_and_the_target():
    task = make(dataset="chain_sum", options={"min_terms": 2, "max_terms": 2, "max_digits": 1}).task(0)
    target = task.targets["reasoning-gym"]
    assert target["options"] == {"min_terms": 2, "max_terms": 2, "max_digits": 1}
    assert target["entry"]["metadata"]["num_terms"] == 2


def test_sets_of_neighbouring_seeds_share_no_task():
    questions = [
        {task.prompt[0]["content"] for task in make(dataset="chain_sum", size=50, seed=seed)} for seed in (0, 1)
    ]
    assert len(questions[0]) == 50 and not questions[0] & questions[1]
    # What generators would do with the numbers themselves.
    alone = [datasets.make_dataset("chain_sum", {}, seed) for seed in (0, 1)]
    assert alone[0][1]["question"] == alone[1][0]["question"]
    assert len({generator_seed(seed) for seed in range(-500, 500)}) == 1000


def test_several_datasets_are_mixed_by_weight():
    tasks = make(
        datasets=[{"name": "chain_sum", "weight": 3.0}, {"name": "gcd", "options": {"max_value": 9}}], size=200
    )
    counts = Counter(task.source_dataset for task in tasks)
    assert 130 < counts["reasoning-gym/chain_sum"] < 170 and counts.total() == 200
    options = {task.targets["reasoning-gym"]["dataset"]: task.targets["reasoning-gym"]["options"] for task in tasks}
    assert options == {"chain_sum": {}, "gcd": {"max_value": 9}}


def test_tasks_of_two_sets_have_names_of_their_own():
    sets = [
        make(dataset="chain_sum", options=options, seed=seed)
        for options, seed in (({}, 0), ({}, 1), ({"max_digits": 2}, 0))
    ]
    assert len({task_set.task(index).key for task_set in sets for index in range(5)}) == 15


@pytest.mark.parametrize("dataset", ["graph_color", "gsm_symbolic", "knights_knaves"])
def test_a_task_survives_saving(dataset):
    task = make(dataset=dataset).task(1)
    assert task_from_record(json.loads(json.dumps(vars(task), allow_nan=False))) == task


def problem(**options):
    (found,) = ReasoningGymTasks.problems(ReasoningGymConfig(**options), None, "data.task_set")
    return str(found)


def test_faults_name_the_field_and_what_is_near():
    assert "data.task_set.dataset: no dataset is named 'chain_sums'\n    did you mean chain_sum" in problem(
        dataset="chain_sums"
    )
    found = problem(dataset="chain_sum", options={"max_term": 3})
    assert (
        found == "data.task_set.options: 'chain_sum' has no option 'max_term'\n    did you mean max_terms or min_terms?"
    )
    assert "give the task set's own `seed`" in problem(dataset="chain_sum", options={"seed": 3})
    found = problem(dataset="chain_sum", options={"min_terms": 0})
    assert "'chain_sum' does not take {'min_terms': 0}: min_terms must be positive" in found
    found = problem(datasets=[{"name": "gcd"}, {"name": "word_ladder"}])
    assert (
        "data.task_set.datasets[1].name: 'word_ladder' is not usable: a task is not the same in every process" in found
    )
    assert "there are" in problem(dataset="§")


def test_the_set_itself_refuses_what_problems_names():
    with pytest.raises(TaskError, match="task set 'reasoning-gym': no dataset is named 'sum'"):
        make(dataset="sum").task(0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "neither of dataset and datasets"),
        ({"dataset": "gcd", "datasets": [{"name": "lcm"}]}, "both of dataset and datasets"),
        ({"datasets": [{"name": "lcm"}], "options": {"a": 1}}, "give each dataset its own options"),
        ({"datasets": [{"name": "lcm"}, {"name": "lcm"}]}, "names lcm twice"),
    ],
)
def test_one_way_to_name_datasets(options, message):
    with pytest.raises(ValidationError, match=message):
        ReasoningGymConfig(**options)


def test_a_question_that_cannot_be_generated_names_the_task():
    tasks = make(dataset="chain_sum")
    tasks._mixture = Broken()
    with pytest.raises(TaskError, match="task 7 of chain_sum cannot be generated: ValueError: no puzzle"):
        tasks.task(7)


class Broken:
    def __getitem__(self, index):
        raise ValueError("no puzzle")
