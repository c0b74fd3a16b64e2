"""Entries survive JSON, whatever generators put into them."""

import json
import math
from fractions import Fraction

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll_verifiers_reasoning_gym.entries import decode, encode

keys = st.one_of(st.text(), st.integers(), st.tuples(st.integers(), st.integers()))
plain = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.fractions())
values = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(keys, inner), st.sets(st.integers() | st.text())
    ),
    max_leaves=8,
)


def types(value):
    """The value with the types in it: `==` knows no tuple with an equal list in it from another one, but 1 is True."""
    if isinstance(value, dict):
        return {key: types(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [types(item) for item in value]
    return type(value)


@given(values)
def test_every_value_comes_back_through_json(value):
    back = decode(json.loads(json.dumps(encode(value), allow_nan=False)))
    assert back == value and types(back) == types(value)


names = st.text() | st.sampled_from(["$tuple", "$set", "$pairs", "$number", "$fraction"])
jsons = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(names, inner), max_leaves=20
)


@given(jsons)
def test_any_json_is_decoded_or_refused(value):
    try:
        decode(value)
    except ValueError:
        assert "$" in json.dumps(value)


def test_numbers_of_numpy_become_pythons_and_nan_comes_back():
    saved = encode({"a": numpy.float64(0.5), "b": numpy.int64(3), "c": numpy.str_("x"), "d": math.nan})
    assert [type(saved[name]) for name in "abc"] == [float, int, str]
    assert math.isnan(decode(saved)["d"])


def test_what_json_cannot_hold_is_refused_with_its_place():
    with pytest.raises(TypeError, match=r"entry\.metadata\.boards\[1\] is builtins\.object, which cannot be saved"):
        encode({"metadata": {"boards": [Fraction(1, 3), object()]}})


@pytest.mark.parametrize("value", [{"$tuple": 3}, {"$fraction": "1/0"}, {"$pairs": [[1]]}, {"$new": 1}, {"$number": 1}])
def test_what_no_entry_was_saved_as_is_refused(value):
    with pytest.raises(ValueError, match=r"\$"):
        decode({"entry": value})
