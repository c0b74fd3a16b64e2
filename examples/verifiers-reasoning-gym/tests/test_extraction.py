"""Where the answer is found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reasoning_gym.utils import extract_answer

from reroll_verifiers_reasoning_gym.extraction import find_answer, tagged

pieces = st.lists(st.sampled_from(["<answer>", "</answer>", "<answer", "4", " ", "\n", "<", "</answer"])).map("".join)


@given(pieces)
def test_tags_are_paired_as_reasoning_gym_pairs_them(text):
    found = tagged(text)
    assert (None if found is None else found.strip()) == extract_answer(text)


@pytest.mark.parametrize(
    ("place", "text", "answer"),
    [
        ("tag", "It is <answer> 4 </answer>.", "4"),
        ("tag", "<answer>1</answer> no, <answer>\n2\n3\n</answer>", "2\n3"),
        ("tag", "4", None),
        ("tag", "<answer> </answer>", None),
        ("tag", "<think>is it <answer>3</answer>?</think><answer>4</answer>", "4"),
        ("tag", "a thought <answer>3</answer></think> I do not know", None),
        ("tag", "<think>is it <answer>3</answer>", None),
        ("tag", "<reasoning><answer>3</answer></reasoning> I do not know", None),
        ("boxed", r"\boxed{1} and \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ("boxed", r"\boxed{1} and \boxed{2", "1"),
        ("boxed", r"\boxed{a\}b}", r"a\}b"),
        ("boxed", "4", None),
        ("last_line", "so\n\n 4 \n", "4"),
        ("last_line", " \n", None),
        ("whole", " 4\n5 ", "4\n5"),
        ("whole", "", None),
    ],
)
def test_places(place, text, answer):
    assert find_answer(text, place) == answer


@pytest.mark.parametrize(
    "piece", ["<answer>", "</answer>", "<answer></answer>", r"\boxed{", "}", "<think>", "</think>", "\n"]
)
@pytest.mark.parametrize("place", ["tag", "boxed", "last_line", "whole"])
def test_a_long_run_of_one_piece_holds_no_answer_up(place, piece):
    text = piece * (200_000 // len(piece))
    assert find_answer(f"{text}</think>\n<answer>4</answer>", "tag") == "4"
    assert find_answer(text, place) in (None, text, text.strip())
