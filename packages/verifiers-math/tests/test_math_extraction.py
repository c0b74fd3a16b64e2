"""Where the answer is found."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll_verifiers_math.extraction import find_answer, last_boxed, last_number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}} done", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\boxed{8\sqrt{6}}}", r"8\sqrt{6}"),
        (r"\boxed{\left\{1, 2\right\}}", r"\left\{1, 2\right\}"),
        (r"\boxed {3} and \fbox{4}", "4"),
        (r"\\boxed{840}", "840"),
        (r"\boxed{1} but \boxed{never closes", "1"),
        (r"} { \boxed{5}", "5"),
        (r"\boxed{6} \boxed{ }", "6"),
        (r"\boxed{}", None),
        ("42", None),
    ],
)
def test_last_boxed(text, expected):
    assert last_boxed(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("first 41, then 42.", "42"),
        ("it is -3", "-3"),
        ("100 - 30 = 70", "70"),
        ("5-3", "3"),
        ("costs $1,234,567.50 now", "1,234,567.50"),
        ("a share of .25", ".25"),
        ("12.5%", "12.5%"),
        ("the ratio 13/30", "13/30"),
        ("it is 2 1/4 cups", "2 1/4"),
        (r"918\frac{1}{2}", r"918\frac{1}{2}"),
        (r"$-\dfrac{3}{4}$", r"-\dfrac{3}{4}"),
        ("64 + 67 = **131**", "131"),
        ("1,000.99m²", "1,000.99"),
        ("面积 = 4000千克", "4000"),
        ("AZYUK2A", None),
        ("x2 and v1.2", None),
        ("none", None),
        ("", None),
    ],
)
def test_last_number(text, expected):
    assert last_number(text) == expected


def test_a_box_is_preferred_to_a_number():
    assert find_answer(r"\boxed{277} ... 99") == "277"
    assert find_answer(r"\boxed{never closes 7") == "7"


@given(st.text(alphabet=r"\boxed{}1,/.-% $frac", max_size=200))
def test_an_answer_is_part_of_its_text(text):
    answer = find_answer(text)
    assert answer is None or (answer in text and answer.strip())


@pytest.mark.parametrize(
    "text", [r"\boxed{" * 50_000, "{" * 200_000, "1" * 200_000, "1/" * 100_000, "1 " * 100_000, "1" + " " * 200_000]
)
def test_hostile_texts_take_no_longer_than_their_length(text):
    start = time.perf_counter()
    find_answer(text)
    assert time.perf_counter() - start < 10
