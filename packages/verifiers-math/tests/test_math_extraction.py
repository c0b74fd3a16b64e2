"""Where the answer is found."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reroll_verifiers_math.boxes import boxed, boxes
from reroll_verifiers_math.choices import answer_choice, find_choice, gold_choice
from reroll_verifiers_math.extraction import Answer, find_answer, visible
from reroll_verifiers_math.reading import is_mathematics


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{1}, \boxed{2} and \boxed{3}", "1, 2, 3"),
        (r"\boxed{1}\quad\text{or}\quad\boxed{2}", "1, 2"),
        (r"$x=\boxed{1}$ or $x=\boxed{2}$", "1, 2"),
        (r"\boxed{5}, again \boxed{5}", "5"),
        (r"\boxed{\sqrt{2}} \approx \boxed{1.41}", r"\sqrt{2}"),
        (r"\boxed{\sqrt{2}}, numerically \boxed{\approx 1.41}", r"\sqrt{2}"),
        (r"\boxed{\frac{1}{\sqrt{2}}} done", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\boxed{8\sqrt{6}}}", r"8\sqrt{6}"),
        (r"\boxed{\left\{1, 2\right\}}", r"\left\{1, 2\right\}"),
        (r"\boxed {3} and \fbox{4}", "3, 4"),
        (r"\boxed 7", "7"),
        (r"\\boxed{840}", "840"),
        (r"\boxed{1} but \boxed{never closes", "1"),
        (r"} { \boxed{5}", "5"),
        (r"\boxed{6} \boxed{ }", "6"),
        (r"\boxed{}", None),
        ("42", None),
    ],
)
def test_boxes(text, expected):
    assert boxed(text) == expected


def test_the_last_box_alone_by_policy():
    assert boxed(r"\boxed{1}, \boxed{2}", several=False) == "2"


@pytest.mark.parametrize(
    ("text", "expected", "where"),
    [
        (r"\boxed{277} ... 99", "277", "box"),
        (r"\boxed{5}. On second thought, the answer is 6.", "6", "marker"),
        (r"\boxed{5}. This answer is correct.", "5", "box"),
        ("<answer>12.5</answer>", "12.5", "marker"),
        (r"<answer>so \boxed{3}</answer>", "3", "marker"),
        ("Some work.\n#### 1,234", "1,234", "marker"),
        ("Answer: 41 was wrong.\nAnswer: 42", "42", "marker"),
        ("The answer is 72, in total, so the farmer earns that much.", "72", "marker"),
        ("The answer is $x = 5$, since 3 < 4.", "x = 5", "marker"),
        ("**Final Answer**\n\n$\\frac{1}{2}$", r"$\frac{1}{2}$", "marker"),
        ("Final Answer: The final answer is $24$. I hope it is correct.\n\nProblem: 99", "$24$", "marker"),
        ("The answer is 11.\n\nQuestion: what is 3+4?\nAnswer: 7", "11", "marker"),
        ("The answer is Evelyn, who ran fastest.", "Evelyn", "marker"),
        ("答案是 12。", "12", "marker"),
        ("La réponse est 2/3.", "2/3", "marker"),
        (r"\frac{10}{9}", r"\frac{10}{9}", "text"),
        ("2x + 3y = 5", "2x + 3y = 5", "text"),
        ("so **131** it is", "131", "formula"),
        (r"so $x+y=3$ and then \(x = 1\) holds", "x = 1", "formula"),
        ("It follows that $a=1$, $b=2$.", "a=1, b=2", "formula"),
        ("The cubes are 1331 and 1728.", "1331 and 1728", "sentence"),
        ("Hence y = 2x + 1.", "y = 2x + 1", "sentence"),
        ("We compute 17, then 3, and stop.", "3", "number"),
        ("AZYUK2A", None, None),
        ("none", None, None),
        ("", None, None),
    ],
)
def test_answers(text, expected, where):
    found = find_answer(visible(text), is_mathematics)
    assert found == (None if expected is None else Answer(expected, where))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>1</think>2", "2"),
        ("1</think>2", "2"),
        ("<think>1</think>2</think>3", "3"),
        ("2<think>1", "2"),
        ("<think>1", ""),
        ("<thinking>1</thinking>2", "2"),
        ("2<|im_end|>", "2 "),
    ],
)
def test_thinking_is_not_looked_at(text, expected):
    assert visible(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("C", "C"),
        ("(C)", "C"),
        ("C. the third one", "C"),
        (r"\text{(C) } 12", "C"),
        (r"\textbf{(B)}\ 12", "B"),
        ("A, C", "AC"),
        ("A and C", "AC"),
        ("ABD", "ABD"),
        ("12", None),
        ("Cat", None),
        ("A cat", None),
    ],
)
def test_choices(text, expected):
    assert gold_choice(text) == answer_choice(text) == expected


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (r"<think>\boxed{A}</think> \boxed{B}", "B"),
        (r"\boxed{x^2}, so **Answer: D**", "D"),
        ("The answer is for sure D, it can't be A or B", "D"),
        ("I choose option (B).", "B"),
        ("The correct answer is (C) because A is false.", "C"),
        ("答案选C", "C"),
        ("no letter here", None),
    ],
)
def test_choices_of_completions(completion, expected):
    assert find_choice(visible(completion)) == expected


PIECES = [
    r"\boxed{",
    "{",
    "}",
    "1",
    ",",
    "/",
    "$",
    " ",
    "\n",
    "answer is ",
    "**",
    "#### ",
    r"\(",
    r"\)",
    "x",
    "=",
    ". ",
    "<think>",
]


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
@settings(deadline=None)
def test_an_answer_comes_from_its_text(text):
    found = find_answer(text, is_mathematics)
    if found is not None:
        assert found.text.strip()
        assert all(part in text for part in found.text.removesuffix("%").split(", "))


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
@settings(deadline=None)
def test_boxes_do_not_overlap(text):
    found = boxes(text)
    assert all(box.content.strip() and box.content in text for box in found)
    assert all(first.end <= second.start for first, second in pairwise(found))
