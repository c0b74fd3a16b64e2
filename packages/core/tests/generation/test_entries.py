"""Lines of the journal."""

import json
import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.generation.entries import Entry, entry_from, entry_from_line

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PLACES = st.none() | TEXT | st.tuples(st.integers(0, 1 << 50), st.integers(0, 1 << 30))
ENTRIES = st.builds(
    Entry,
    position=st.integers(0, 1 << 40),
    trial=st.integers(0, 100),
    outcome=st.sampled_from(["passed", "failed", "error", "skipped"]),
    final=st.booleans(),
    reward=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    prompt_tokens=st.integers(0, 10),
    tokens=st.integers(0, 10),
    truncated=st.booleans(),
    seed=st.integers(0, (1 << 63) - 1),
    source=TEXT,
    source_dataset=TEXT,
    source_row=st.integers(0, 1 << 40),
    prepared_sample_id=TEXT,
    detail=TEXT,
    place=PLACES,
)


@given(ENTRIES)
def test_a_line_says_the_entry(entry):
    assert entry_from_line(entry.line()) == entry
    assert entry_from_line(entry.line()[:-1] + b" ") == entry
    assert entry_from({**entry.stamp(), "added by a later version": 1}) == entry.at(None)


@given(ENTRIES, st.sampled_from(sorted(asdict(Entry(*[0] * 13)))), st.sampled_from(["x", 1, 1.5, True, None, [1], {}]))
def test_both_ways_of_reading_take_the_same(entry, field, value):
    changed = json.loads(json.dumps({**asdict(entry), field: value}))
    try:
        expected = entry_from(changed)
    except ValueError as error:
        with pytest.raises(ValueError, match=field):
            entry_from_line(json.dumps(changed).encode())
        assert field in str(error)
    else:
        assert entry_from_line(json.dumps(changed).encode()) == expected


def test_a_reward_that_is_no_number_comes_back_as_it_was():
    entry = Entry(0, 0, "failed", True, math.inf, 1, 1, False, 1, "s", "d", 0, "p")
    assert entry_from_line(entry.line()).reward == math.inf


@pytest.mark.parametrize("line", [b"", b"[]", b"{", b"7", b'{"position": 1}', b"\0" * 40])
def test_what_is_no_entry_is_refused(line):
    with pytest.raises(ValueError):
        entry_from_line(line)
