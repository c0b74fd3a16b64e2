"""The lists of datasets hold for the installed reasoning-gym, all of which is asked here."""

import ast
import inspect
import json
import os
import subprocess
import sys
import textwrap

import pytest
from reasoning_gym.factory import DATASETS, create_dataset

from reroll_verifiers_reasoning_gym.datasets import EVALUATING, GENEROUS, REFUSED, UNSTEADY, usable
from reroll_verifiers_reasoning_gym.entries import decode
from reroll_verifiers_reasoning_gym.verifier import _scorer

EVALUATORS = {"compile", "eval", "exec", "load", "loads", "parse_expr", "S", "sympify", "system"}
IN_ENTRY = {"bitwise_arithmetic", "number_sorting"}
"""Whose scorers evaluate text of the entry, which the verifier checks, and nothing of the answer."""
UNTRUE = ["0", "nan", "inf", "None", "x", ".", "[]", "{}", "()", "[[]]", "9" * 500, "(((", "\\boxed{}"]

DRAW = """
import json, random, sys
from reasoning_gym.factory import create_dataset
from reroll_verifiers_reasoning_gym.entries import encode

names, order = json.loads(sys.argv[1]), json.loads(sys.argv[2])
random.seed(sys.argv[3])
sets = {name: create_dataset(name, seed=7, size=50) for name in names}
found = {(name, index): encode(sets[name][index]) for name in names for index in order}
print()  # some generators print dots
print(json.dumps({name: [found[name, index] for index in sorted(order)] for name in names}))
"""


def drawn(names, order, seed):
    """Entries of every dataset, from a process of its own."""
    command = [sys.executable, "-c", DRAW, json.dumps(names), json.dumps(order), str(seed)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": str(seed)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def entries():
    """Of every usable dataset."""
    return drawn(usable(), [0, 13], 1)


def test_every_usable_dataset_draws_the_same_in_every_process_and_order(entries):
    assert drawn(usable(), [13, 0], 2) == entries


def test_the_unsteady_ones_do_not():
    # Those that differ in most of their tasks: what differs in few of them would make a test of chance.
    names = ["isomorphic_strings", "polynomial_multiplication", "ransom_note"]
    assert {REFUSED[name] for name in names} == {UNSTEADY}
    first, second = drawn(names, [0, 1], 1), drawn(names, [0, 1], 2)
    assert all(first[name] != second[name] for name in names)


def test_every_reference_answer_gets_the_full_score_after_saving(entries):
    judged = {name: [score(name, entry["answer"], entry) for entry in found] for name, found in entries.items()}
    without = {name for name, found in entries.items() if any(entry["answer"] is None for entry in found)}
    assert without == {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
    assert {name for name, scores in judged.items() if min(scores) < 1} == without


def test_the_generous_ones_are_known(entries):
    found = {name for name in entries if any(fooled(name, entry) for entry in entries[name])}
    assert not found
    for name in (name for name, why in REFUSED.items() if why.startswith(GENEROUS)):
        dataset = create_dataset(name, seed=7, size=50)
        assert any(dataset.score_answer(text, dataset[0]) >= 1 for text in UNTRUE), name


def fooled(name, entry):
    """Whether one text that is no answer to anything gets the full score; a zero may be an answer."""
    return any(score(name, text, entry) >= 1 for text in UNTRUE if text.lower() != str(entry["answer"]).lower())


def score(name, answer, entry):
    try:
        return _scorer(name, "{}").score_answer(answer, decode(entry))
    except Exception:
        return 0.0


def test_the_scorers_that_evaluate_text_are_known():
    found = {name: evaluations(cls) for name, (cls, _) in DATASETS.items() if name not in REFUSED}
    assert {name for name, calls in found.items() if calls} == EVALUATING | IN_ENTRY


def evaluations(cls):
    """Calls that evaluate text, in `score_answer` and in what it calls in its own module."""
    found, seen, left = set(), set(), [cls.score_answer]
    while left:
        function = left.pop()
        if function in seen:
            continue
        seen.add(function)
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        for name in (ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)):
            short = name.rpartition(".")[2]
            own = getattr(cls, short, None) or getattr(sys.modules[cls.__module__], short, None)
            if inspect.isfunction(own) and own.__module__ == cls.__module__:
                left.append(own)
            elif short in EVALUATORS and not name.startswith("json."):
                found.add(name)
    return found


def test_the_lists_name_datasets_of_the_library():
    assert set(REFUSED) | EVALUATING <= set(DATASETS) and not set(REFUSED) & EVALUATING
    assert len(usable()) == len(DATASETS) - len(REFUSED) - 1
