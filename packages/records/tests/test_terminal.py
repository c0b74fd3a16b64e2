import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll_records.terminal import BLOCKS, chart, printable

anything = st.text(st.characters(codec=None), max_size=40)


@given(anything, st.booleans())
def test_no_character_that_steers_a_terminal_gets_through(text, lines):
    shown = printable(text, lines=lines)
    kept = "\n\t" if lines else ""
    for character in shown:
        assert character in kept or unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")
    shown.encode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("a\rb\x08\x7f\x00", "a\\x0db\\x08\\x7f\\x00"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u2028", "\\u2028"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("one\n\ttwo", "one\\x0a\\x09two"),
    ],
)
def test_what_could_steer_or_hide_is_spelled_out(text, shown):
    assert printable(text) == shown


def test_lines_stay_where_a_text_is_shown_whole():
    assert printable("one\n\ttwo\r\n", lines=True) == "one\n\ttwo\\x0d\n"


@pytest.mark.parametrize(
    "text", ["café", "\U0001f469\u200d\U0001f52c\ufe0f", "a\u00a0b", "नमस्ते", "日本", "[bold]x[/bold]"]
)
def test_texts_of_people_stay_as_they_are(text):
    assert printable(text) == text


series = st.lists(st.lists(st.none() | st.floats(-1e18, 1e18), min_size=1, max_size=60), min_size=1, max_size=5)


@given(series, st.integers(1, 80), st.integers(1, 9))
def test_charts_have_their_height_and_nearly_their_width(values, width, height):
    lines = chart(values, width, height)
    known = [value for run in values for value in run if value is not None]
    assert len(lines) == (0 if not known else 1 if min(known) == max(known) else height)
    for line in lines:
        blocks = line.partition("┤")[2]
        assert set(blocks) <= set(BLOCKS)
        assert len(blocks) <= width + 2 * len(values)


def test_a_chart_shows_low_and_high_and_gaps():
    assert chart([[0.0, 0.5, 1.0], [None, 1.0]], width=20, height=2) == ["1 ┤ ▁█  █", "0 ┤▁██  █"]


def test_columns_share_neighbours_where_there_are_more_than_fit():
    assert chart([[float(i) for i in range(10)]], width=5, height=1) == ["9 ┤▁▃▅▆█"]


def test_a_chart_of_one_value_is_one_line_and_of_none_is_none():
    assert chart([[2.0, 2.0], [2.0]], width=20, height=6) == ["2 ┤██ █"]
    assert chart([[None], [None]], width=20, height=6) == []
