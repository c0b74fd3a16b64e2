"""The task set whose tasks offer a calculator."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from reroll.tasks.arithmetic import is_held_out
from reroll.tasks.calculations import CALCULATOR, Calculation, Calculations, CalculationsConfig

NUMBERS = st.integers(0, 10**6)


def operands(task):
    return tuple(map(int, re.findall(r"\d+", task.prepared_sample_id)))


def test_questions_have_the_form_that_their_kind_says():
    (first,) = Calculations(CalculationsConfig(kinds=["sum"], terms=4, size=1))
    assert first.prompt == [{"role": "user", "content": f"What is {' + '.join(map(str, operands(first)))}?"}]
    (second,) = Calculations(CalculationsConfig(kinds=["product"], size=1))
    a, b, c, d = operands(second)
    assert second.prompt == [{"role": "user", "content": f"What is ({a} + {b}) * ({c} + {d})?"}]


@pytest.mark.parametrize("high", [3, 99])
@pytest.mark.parametrize("split", ["train", "held_out"])
def test_targets_are_the_results_of_the_expressions(split, high):
    tasks = list(Calculations(CalculationsConfig(split=split, high=high, terms=2, size=20)))
    assert {"*" in task.prepared_sample_id for task in tasks} == {True, False}
    for task in tasks:
        assert task.targets == {"math": str(eval(task.prepared_sample_id))}
        assert task.source_dataset == f"calculations/{split}"
    assert [task.source_row for task in tasks] == list(range(20))


def test_every_task_offers_the_calculator_in_the_form_of_chat_templates():
    for task in Calculations(CalculationsConfig(size=5)):
        assert task.tools == [CALCULATOR]
    function = CALCULATOR["function"]
    assert (CALCULATOR["type"], function["name"]) == ("function", "calculator")
    assert function["parameters"]["properties"]["expression"]["type"] == "string"
    assert function["parameters"]["required"] == ["expression"]


def test_the_target_may_be_another_verifiers():
    assert set(Calculations(CalculationsConfig(verifier="exact_match")).task(0).targets) == {"exact_match"}


def test_the_splits_of_a_listed_range_are_disjoint_and_together_everything():
    def listed(split):
        tasks = list(Calculations(CalculationsConfig(high=6, split=split)))
        assert len({task.key for task in tasks}) == len(tasks)
        return {task.prepared_sample_id for task in tasks}

    train, held_out = listed("train"), listed("held_out")
    assert not train & held_out
    assert len(train | held_out) == 7**3 + 7**4
    assert 0.05 < len(held_out) / len(train | held_out) < 0.15


@given(st.permutations([0, 1, 2]), st.tuples(NUMBERS, NUMBERS, NUMBERS))
def test_all_orders_of_a_sum_are_in_one_split(order, numbers):
    other = tuple(numbers[place] for place in order)
    assert Calculation("sum", numbers).held_out == Calculation("sum", other).held_out


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_all_orders_of_a_product_are_in_one_split(a, b, c, d):
    orders = [(a, b, c, d), (b, a, c, d), (c, d, a, b), (d, c, b, a)]
    assert len({Calculation("product", order).held_out for order in orders}) == 1


@given(NUMBERS, NUMBERS)
def test_a_sum_of_two_is_held_out_where_addition_holds_it_out(a, b):
    assert Calculation("sum", (a, b)).held_out == is_held_out("+", a, b)


def test_drawn_tasks_are_of_their_split():
    for split in ("train", "held_out"):
        for task in itertools.islice(Calculations(CalculationsConfig(split=split)), 100):
            kind = "product" if "*" in task.prepared_sample_id else "sum"
            assert Calculation(kind, operands(task)).held_out == (split == "held_out")


@pytest.mark.parametrize("high", [3, 99])
def test_a_seed_gives_one_order_and_another_seed_another(high):
    def order(seed):
        return [task.key for task in Calculations(CalculationsConfig(seed=seed, size=30, high=high))]

    assert order(0) == order(0)
    assert order(0) != order(1)


def test_a_set_ends_where_its_size_says():
    for high in (3, 99):
        tasks = Calculations(CalculationsConfig(size=7, high=high))
        assert (len(tasks), len(list(tasks))) == (7, 7)
        for index in (-1, 7):
            with pytest.raises(IndexError):
                tasks.task(index)


def test_asking_for_more_than_there_is_says_what_to_change():
    with pytest.raises(ValueError, match="size = 5000 asks for more: widen the range or lower size"):
        len(Calculations(CalculationsConfig(high=3, size=5000)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"low": 5, "high": 4}, "high = 4 is below low = 5"),
        ({"kinds": ["sum", "sum"]}, "names one twice"),
        ({"kinds": ["product"], "terms": 4}, "terms = 4 is of sums"),
        ({"kinds": []}, "at least 1 item"),
        ({"terms": 7}, "less than or equal to 6"),
        ({"low": -1}, "greater than or equal to 0"),
    ],
)
def test_options_that_make_no_sense_are_errors(options, message):
    with pytest.raises(ValidationError, match=message):
        CalculationsConfig(**options)
