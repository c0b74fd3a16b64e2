"""One line of what others wrote, and numbers of things."""

from hypothesis import given
from hypothesis import strategies as st

from reroll import counted, one_line


def test_lines_are_joined_and_cut():
    assert one_line(" no\n\tsuch  key ") == "no such key"
    assert one_line("abcdef", 3) == "abc…" and one_line("abc", 3) == "abc"


@given(st.text(), st.integers(1, 20))
def test_any_text_is_one_short_line(text, most):
    line = one_line(text, most)
    assert len(line.splitlines()) <= 1 and len(line) <= most + 1


def test_one_is_told_in_the_singular():
    assert [counted(number, "task") for number in range(3)] == ["0 tasks", "1 task", "2 tasks"]
