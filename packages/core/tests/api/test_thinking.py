"""What is said and what is thought."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll import without_thinking
from reroll.api import thinking

HARMONY = "<|channel|>analysis<|message|>4?<|end|><|start|>assistant<|channel|>final<|message|>5"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ""),
        (" 5\n", " 5\n"),
        ("<think>4</think>a</think> 5", " 5"),
        ("<thinking>4</thinking>5", "5"),
        ("<thought>4</thought>5", "5"),
        ("<reasoning>4</reasoning>5", "5"),
        ("◁think▷4◁/think▷5", "5"),
        (HARMONY, "5"),
        ("<|channel|>analysis<|message|>4?", ""),
        ("5 <reasoning>or <think>4", "5 "),
        ("<think>4</think>5<think>6", "5"),
        ("</reasoning>a</think>5", "5"),
        ("a < think > b </thinks>", "a < think > b </thinks>"),
    ],
)
def test_what_is_said(text, said):
    assert without_thinking(text) == said


def test_the_examples_of_the_text_are_right():
    assert doctest.testmod(thinking).failed == 0 < doctest.testmod(thinking).attempted


pieces = st.lists(st.sampled_from([*thinking.ENDS, *thinking.BEGINS, "5", " ", "\n", "<", "|>", "think>"]) | st.text())


@given(pieces.map("".join))
def test_it_is_a_part_of_the_text_without_any_mark_and_stays_as_it_is(text):
    said = without_thinking(text)
    assert said in text and without_thinking(said) == said
    assert not any(mark in said for mark in (*thinking.ENDS, *thinking.BEGINS))


@given(pieces.map("".join), st.sampled_from(thinking.ENDS), st.sampled_from(thinking.BEGINS))
def test_what_is_thought_changes_nothing(thought, end, begin):
    assert without_thinking(f"{thought}{end}It is 5.{begin}") == "It is 5."


@pytest.mark.parametrize("piece", [*thinking.ENDS, *thinking.BEGINS, "<", "◁", "</thin"])
def test_no_run_of_one_piece_takes_long(piece):
    # A search that began again at every mark would take minutes.
    run = piece * 300_000
    assert without_thinking(f"{run}</think>5{run}") in ("5", f"5{run}", "")
