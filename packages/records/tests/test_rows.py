import copy
import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_store import consumed, group, response

from reroll_records.store.checks import is_row
from reroll_records.store.database import COLUMNS, LEFT_AS, RESPONSE, connect
from reroll_records.store.rows import (
    DECISIONS,
    DISPOSITION_FIELDS,
    GROUP_FIELDS,
    RESPONSE_FIELDS,
    SCOPES,
    DispositionRow,
    GroupRow,
    ResponseRow,
    RewardComponent,
    Validity,
    left_as,
    outcome,
    validity,
)

STATES = ["ok", "completed", "timeout", "rejected", "service_error", "judge_error", "unknown"]
FAILED = STATES[2:6]

integers = st.integers(-(2**63), 2**63 - 1)
rewards = st.floats(-1e18, 1e18)
texts = st.text(max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)


@st.composite
def responses(draw):
    return ResponseRow(
        index=draw(integers),
        reward=draw(st.none() | rewards),
        reward_components=draw(
            st.lists(st.builds(RewardComponent, name=texts, score=st.none() | rewards, weight=rewards), max_size=2)
        ),
        validity=validity(draw(st.dictionaries(texts, st.sampled_from(STATES), max_size=3))),
        response_tokens=draw(integers),
        status=draw(texts),
        truncated=draw(st.booleans()),
        policy_versions=draw(st.lists(integers, max_size=3)),
        policy_scope=draw(st.none() | st.sampled_from(SCOPES)),
        seed=draw(st.none() | integers),
        response=draw(st.none() | texts),
    )


groups = st.builds(
    GroupRow,
    **dict.fromkeys(
        [
            "observation_id",
            "task_key",
            "task_key_basis",
            "input_key",
            "query_sha256",
            "prompt_token_sha256",
            "prepared_sample_id",
            "source_dataset",
            "filter_reason",
        ],
        texts,
    ),
    **dict.fromkeys(["source_row", "group_index", "rollout_id", "group_size", "group_attempt"], integers),
    verifiers=st.lists(texts, max_size=3),
    filter_decision=st.sampled_from(DECISIONS),
    responses_included=st.booleans(),
    responses=st.lists(responses(), max_size=3),
    time=rewards,
    prompt=st.none() | texts,
)
dispositions = st.builds(
    DispositionRow,
    observation_id=texts,
    disposition=st.sampled_from(["consumed", "expired"]),
    staleness=integers,
    time=rewards,
)


@given(groups | dispositions)
def test_rows_come_back_from_json_as_they_were(row):
    written = json.loads(json.dumps(row.to_json()))
    assert is_row(written)
    assert type(row).from_json(written) == row
    assert type(row).from_json(written | {"added later": 1}).to_json() == written


@given(json_values)
def test_any_json_is_a_row_or_not_and_raises_nothing(value):
    assert is_row(value) in (True, False)


def places(value, path=()):
    """Every place in nested JSON."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in inner:
        yield from places(item, (*path, name))


def replaced(row, path, value):
    """A copy with another value, or without the field where that is Ellipsis."""
    if not path:
        return value
    changed = copy.deepcopy(row)
    holder = changed
    for name in path[:-1]:
        holder = holder[name]
    if value is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return changed


WHOLE = [
    group(
        "a", texts=["x", "y"], responses=[response(0, 1.0, text="x"), response(1, None, "timeout", [1, 2])]
    ).to_json(),
    consumed("a").to_json(),
]
PLACES = [(row, path) for row in WHOLE for path in places(row)]


@given(st.sampled_from(PLACES), json_values)
def test_a_row_with_any_value_in_any_place_raises_nothing_and_what_is_taken_can_be_read(place, value):
    row = replaced(*place, value)
    if is_row(row):
        kind = GroupRow if row["kind"] == "group" else DispositionRow
        assert kind.from_json(row).to_json().keys() >= {"kind", "schema", "observation_id"}


@pytest.mark.parametrize("row", WHOLE, ids=["group", "disposition"])
def test_every_field_is_needed_but_the_texts(row):
    optional = {"prompt", "response"}
    for path in places(row):
        if path and isinstance(path[-1], str) and path[-1] not in optional and path[-2:-1] != ("components",):
            assert not is_row(replaced(row, path, ...)), path


@pytest.mark.parametrize("row", WHOLE, ids=["group", "disposition"])
@pytest.mark.parametrize("wrong", [True, {}, [None], float("inf"), float("nan"), 2**63, 2.0**63, -(2**63) - 1])
def test_every_field_is_of_its_type_and_numbers_are_below_two_to_the_63(row, wrong):
    may_be_true = {"valid", "truncated", "responses_included"}
    may_be_empty = {"components"}
    for path in places(row):
        if path and not (wrong is True and path[-1] in may_be_true) and not (wrong == {} and path[-1] in may_be_empty):
            assert not is_row(replaced(row, path, wrong)), path


@pytest.mark.parametrize("empty", ["", {}])
@pytest.mark.parametrize("name", ["policy_versions", "reward_components"])
def test_what_is_empty_but_no_list_is_no_list(name, empty):
    assert not is_row(replaced(WHOLE[0], ("responses", 0, name), empty))


@pytest.mark.parametrize("number", [True, 1.0, "1", 2, None])
def test_a_reader_takes_its_own_schema_alone(number):
    assert not is_row(WHOLE[1] | {"schema": number})


@pytest.mark.parametrize("failed", FAILED)
def test_valid_is_false_when_any_component_failed_even_beside_an_unknown_one(failed):
    assert validity({"math": "ok", "judge": failed}).valid is False
    assert validity({"math": "unknown", "judge": failed}).valid is False


def test_valid_is_true_only_when_every_component_is_ok_or_completed():
    assert validity({"math": "ok", "judge": "completed"}).valid is True
    assert validity({"math": "ok"}).valid is True


def test_valid_is_null_when_any_component_is_unknown_and_none_failed():
    assert validity({"math": "ok", "judge": "unknown"}).valid is None
    assert validity({}).valid is None


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([0.0, 0.0], "all_zero"),
        ([0.0, -0.0], "all_zero"),
        ([0.5, 0.5], "constant"),
        ([0.0, 1.0], "mixed"),
        ([0.0, None, 1.0], "mixed"),  # two scored rewards differ, whatever is missing
        ([0.0, None], "unscored"),
        ([None], "unscored"),
        ([], "unscored"),
    ],
)
def test_groups_are_all_zero_constant_mixed_or_unscored_by_their_rewards_whatever_the_filter_decided(found, expected):
    assert outcome(found) == expected
    for decision in DECISIONS:
        assert group("a", rewards=found, filter_decision=decision).outcome == expected


def test_texts_are_written_only_where_they_are_there():
    bare = group("a").to_json()
    assert "prompt" not in bare
    assert all("response" not in item for item in bare["responses"])
    kept = group("a", texts=["", "y"]).to_json()
    assert [item["response"] for item in kept["responses"]] == ["", "y"]


def test_columns_are_the_fields_of_rows_in_their_order():
    """A field that is added to rows has a place in Parquet, or this fails."""
    assert list(COLUMNS) == [*("kind", "schema", *GROUP_FIELDS, "prompt"), "disposition", "staleness"]
    assert [item.name for item in fields(GroupRow)] == [*GROUP_FIELDS, "prompt"]
    assert list(RESPONSE) == list(RESPONSE_FIELDS)
    assert list(RESPONSE["validity"]) == [item.name for item in fields(Validity)]
    assert list(RESPONSE["reward_components"][0]) == [item.name for item in fields(RewardComponent)]
    assert list(consumed("o").to_json()) == list(DISPOSITION_FIELDS)
    row = group("o", texts=["a", "b"]).to_json()
    assert list(row) == ["kind", "schema", *GROUP_FIELDS, "prompt"]
    assert list(row["responses"][0]) == list(RESPONSE_FIELDS)


@pytest.mark.parametrize(
    ("decision", "reason", "disposition", "told"),
    [
        ("passed", "", None, "unused"),
        ("passed", "", "", "unused"),
        ("passed", "", "expired", "expired"),
        ("filtered", "zero_variance", None, "filtered:zero_variance"),
        ("filtered", "it's", "consumed", "filtered:it's"),
        ("aborted", "", None, "aborted"),
        ("aborted", "why", "consumed", "aborted"),
    ],
)
def test_what_became_of_a_group_is_told_alike_in_python_and_in_sql(decision, reason, disposition, told):
    assert left_as(decision, reason, disposition) == told
    given = "SELECT $decision AS filter_decision, $reason AS filter_reason, $disposition AS disposition"
    with connect() as connection:
        query = f"SELECT {LEFT_AS.format(disposition='disposition')} FROM ({given})"
        values = {"decision": decision, "reason": reason, "disposition": disposition or None}
        assert connection.execute(query, values).fetchall() == [(told,)]
