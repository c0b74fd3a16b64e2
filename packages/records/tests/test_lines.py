import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_store import consumed, group, line

from reroll_records.store import lines
from reroll_records.store.lines import DEEPEST, complete_lines, ends_incomplete, parse
from reroll_records.store.rows import DispositionRow, GroupRow


@given(st.lists(st.binary(max_size=12).map(lambda text: text.replace(b"\n", b"")), max_size=8), st.data())
def test_adjoining_parts_of_a_file_hold_every_line_once(tmp_path_factory, found, data):
    path = tmp_path_factory.getbasetemp() / "parts.jsonl"
    tail = data.draw(st.sampled_from([b"", b"x", b"\xff"]))
    content = b"".join(text + b"\n" for text in found) + tail
    path.write_bytes(content)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content) + 2), max_size=5)))
    edges = [0, *cuts, None]
    parts = [list(complete_lines(path, start, end)) for start, end in pairwise(edges)]
    assert [text for part in parts for text in part] == found == list(complete_lines(path))
    assert ends_incomplete(path, len(content)) is bool(tail)


def test_a_store_truncated_at_every_byte_of_its_last_record_keeps_every_whole_record(tmp_path):
    """In the middle of é and of an emoji too."""
    path = tmp_path / "records.jsonl"
    first, last = line(group("a", texts=["é", "ok"])), line(group("b", texts=["caf\u00e9 \U0001f600", "fin"]))
    assert b"\xc3\xa9" in last and b"\xf0\x9f\x98\x80" in last, "the texts stand in UTF-8, so that a cut can part them"
    for size in range(len(last) + 1):
        path.write_bytes(first + last[:size])
        rows = [parse(text) for text in complete_lines(path)]
        whole = size == len(last)
        assert [row and row["observation_id"] for row in rows] == (["a", "b"] if whole else ["a"])
        assert ends_incomplete(path, len(first) + size) is (0 < size < len(last))


def test_what_is_appended_after_a_torn_record_costs_that_record_at_most(tmp_path):
    path = tmp_path / "records.jsonl"
    first, torn, new = line(group("a")), line(group("b", texts=["é", "\U0001f600"])), line(consumed("a"))
    for size in range(1, len(torn)):
        path.write_bytes(first + torn[:size] + b"\n" + new)
        rows = [row for text in complete_lines(path) if (row := parse(text)) is not None]
        # without its newline alone, the torn record is whole again
        expected = ["a", "b", "a"] if size == len(torn) - 1 else ["a", "a"]
        assert [row["observation_id"] for row in rows] == expected


def test_an_empty_file_holds_no_line_and_ends_whole(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"")
    assert list(complete_lines(path)) == []
    assert not ends_incomplete(path, 0)


def both(text: bytes):
    """What `parse` gives with orjson, and without it."""
    assert lines._decode is not lines._standard, "orjson is installed here"
    quick = parse(text)
    kept = lines._decode
    lines._decode = lines._standard
    try:
        return quick, parse(text)
    finally:
        lines._decode = kept


def same(text: bytes):
    """Asserts that the two agree on every field that a row has; gives the row."""
    quick, plain = both(text)
    assert (quick is None) is (plain is None)
    if quick is not None and plain is not None:
        kind = GroupRow if quick["kind"] == "group" else DispositionRow
        assert repr(kind.from_json(quick)) == repr(kind.from_json(plain))
    return quick


GROUP = line(group("a", texts=["é", '\\"'])).strip()
ROW = json.loads(GROUP)
SPELLINGS = [
    *("NaN", "Infinity", "-Infinity", "1E400", "-1E400", "1e-400", "-0", "-0.0", "0", "1", "1.0", "1e3", "01", "1."),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809"),
    *(
        "18446744073709551615",
        "18446744073709551616",
        "1" + "0" * 30,
        "1" + "0" * 400,
        "1" + "0" * 5000,
        "0." + "1" * 400,
    ),
    *("9223372036854774784.0", "9223372036854775808.0", "-9223372036854775808.0", "1.7976931348623159e308"),
    *('"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"', '"\x01"', '"\x7f"', '"\\x"', '"\\/"', '"'),
    *("true", "null", "[]", "{}", '""', "[1,]", '{"a":1,"a":2}', "\ufeff1", " 1\t", "\x0b1"),
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_odd_values_in_any_field_are_taken_or_refused_alike_with_and_without_orjson(spelling):
    mark = json.dumps("\x00 mark")
    for row in (ROW, ROW["responses"][0], ROW["responses"][0]["reward_components"][0], ROW["responses"][0]["validity"]):
        for name in [*row, "field of no interest"]:
            had = row.get(name, ...)
            row[name] = "\x00 mark"
            text = json.dumps(ROW).replace(mark, spelling).encode()
            if had is ...:
                del row[name]
            else:
                row[name] = had
            same(text)


@given(st.binary(max_size=60))
def test_random_bytes_are_no_row_with_and_without_orjson(text):
    assert same(text) is None


@given(st.integers(0, len(GROUP) - 1), st.binary(max_size=3), st.integers(0, 3))
@settings(max_examples=500)
def test_a_record_with_any_bytes_in_any_place_is_taken_or_refused_alike(place, inserted, removed):
    same(GROUP[:place] + inserted + GROUP[place + removed :])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(ROW)), json_values, st.booleans())
def test_any_json_in_any_field_is_taken_or_refused_alike(name, value, ascii_only):
    text = json.dumps(ROW | {name: value}, ensure_ascii=ascii_only)
    same(text.encode(errors="surrogatepass"))


@pytest.mark.parametrize("depth", [1, DEEPEST - 1, DEEPEST, 900, 1020, 1100, 200_000])
@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")])
def test_deep_nesting_is_taken_or_refused_alike_and_at_one_depth(depth, opened, closed):
    text = GROUP[:-1] + f',"more":{opened * depth}1{closed * depth}}}'.encode()
    assert (same(text) is not None) is (depth < DEEPEST)  # the row itself is one level


def test_brackets_in_texts_and_beside_each_other_are_no_nesting():
    assert same(line(group("a", texts=["[" * 5000, '\\"[{' * 5000])).strip()) is not None
    assert same(line(group("a", rewards=[0.0] * 500)).strip()) is not None


def test_a_long_line_of_quotes_that_never_end_is_refused():
    assert same(b'[{"' * 1000 + b'\\"' * 1_000_000) is None


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b"null", GROUP + b" x", b"\x00" * 100, GROUP.decode().encode("utf-16")]
)
def test_what_is_no_row_is_none(text):
    assert same(text) is None


def test_rows_may_have_fields_of_no_interest_and_lines_other_spaces():
    assert same(b" " + GROUP[:-1] + b',"added": [1, {"x": null}]}\r')["observation_id"] == "a"
