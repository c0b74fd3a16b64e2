"""Which targets are read, and what is said of the others."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reroll_verifiers_if.registry import instructions
from reroll_verifiers_if.targets import TargetError, read_target
from reroll_verifiers_if.verifier import InstructionsVerifier

ROW = {
    "key": 7,
    "prompt": "Write.",
    "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
    "kwargs": [{"num_words": None, "relation": None}, {"num_words": 5, "relation": "at least", "keywords": None}],
}


def short(id, **parameters):
    return [{"id": id, **parameters}]


def examples(instruction):
    return {name: parameter.example for name, parameter in instruction.parameters.items()}


def test_the_three_forms_read_alike():
    listed = [
        {"id": "punctuation:no_comma"},
        {"id": "length_constraints:number_words", "num_words": 5.0, "relation": "at least"},
    ]
    read = [
        [(item.name, item.values) for item in read_target(form)]
        for form in (ROW, json.dumps(ROW), listed, json.dumps(listed))
    ]
    assert read[0] == read[1] == read[2] == read[3]
    assert read[0][1] == ("length_constraints:number_words", {"num_words": 5, "relation": "at least"})


@pytest.mark.parametrize("id", list(instructions()))
def test_the_examples_of_an_instruction_are_right(id):
    instruction = instructions()[id]
    (asked,) = read_target(short(id, **examples(instruction)))
    assert set(asked.values) == set(instruction.parameters)
    for name, parameter in instruction.parameters.items():
        left = {key: value for key, value in examples(instruction).items() if key != name}
        if parameter.default is None:
            with pytest.raises(TargetError, match=f"{id} needs {name}: "):
                read_target(short(id, **left))
        for wrong in (True, [], {}, "", " ", float("nan"), float("inf"), -1, ["", 1]):
            with pytest.raises(TargetError, match=f"{id}: {name} = .* must be "):
                read_target(short(id, **{**examples(instruction), name: wrong}))


def test_an_id_that_comes_again_has_a_name_of_its_own():
    names = [item.name for item in read_target(short("punctuation:no_comma") * 3)]
    assert names == ["punctuation:no_comma", "punctuation:no_comma#2", "punctuation:no_comma#3"]


def test_the_prompt_stands_for_a_request_that_is_not_given():
    repeat = short("combination:repeat_prompt")
    assert read_target(repeat, "Say hello.")[0].values == {"prompt_to_repeat": "Say hello."}
    assert read_target(
        {"instruction_id_list": ["combination:repeat_prompt"], "kwargs": [None], "prompt": "Own."}, "Other."
    )[0].values == {"prompt_to_repeat": "Own."}
    assert read_target(repeat)[0].values == {}
    with pytest.raises(TargetError, match="combination:repeat_prompt: prompt_to_repeat = '' must be a text"):
        read_target(repeat, "")


def test_the_prompt_says_what_a_span_is_counted_in():
    span = short("repeat:repeat_span", prompt_to_repeat="one two three", n_start=1, n_end=2)
    assert read_target(span, "The indices are word indices!")[0].values["unit"] == "words"
    assert read_target(span, "The indices are character indices!")[0].values["unit"] == "characters"
    with pytest.raises(TargetError, match="n_start = 5 is beyond the 3 words of prompt_to_repeat; give less"):
        read_target([{**span[0], "n_start": 5, "n_end": 6}], "word indices")


def test_an_instruction_may_come_again_with_other_parameters():
    for again in (
        short("language:response_language", language="fr") * 2,
        short("keywords:existence", keywords=["a"]) + short("keywords:existence", keywords=["b"]),
        short("change_case:english_capital") * 2 + short("language:response_language", language="en") * 2,
    ):
        assert InstructionsVerifier().check_target(again) is None


WRONG = [
    ("punctuation:no_coma", "unknown instruction 'punctuation:no_coma'; did you mean 'punctuation:no_comma'?"),
    ("number_words", "unknown instruction 'number_words'; "),
    ("zzz", "unknown instruction 'zzz'; INSTRUCTIONS.md of reroll-verifiers-if lists all ids"),
    (7, "unknown instruction 7; "),
]


@pytest.mark.parametrize(("id", "fault"), WRONG)
def test_an_unknown_id_is_no_target(id, fault):
    for target in (short(id), {"instruction_id_list": [id], "kwargs": [{}]}):
        assert InstructionsVerifier().check_target(target).startswith(fault)


FAULTS = [
    (
        short("count:numbers", n=3),
        "count:numbers has no parameter 'n'; did you mean 'N'?|count:numbers has no parameter 'n'; it has N",
    ),
    (short("punctuation:no_comma", N=3), "punctuation:no_comma has no parameter 'N'; it has none; leave it out"),
    (short("count:numbers", N=2.5), "count:numbers: N = 2.5 must be a whole number of 0 or more"),
    (short("count:numbers", N="3"), "count:numbers: N = '3' must be a whole number of 0 or more"),
    (short("count:conjunctions", small_n=8), "small_n = 8 must be a whole number from 0 to 7"),
    (short("count:person_names", N=51), "N = 51 must be a whole number from 0 to 50"),
    (short("ratio:stop_words", percentage=101), "percentage = 101 must be a number from 0 to 100"),
    (
        short("length_constraints:number_words", num_words=3, relation="at leat"),
        "relation = 'at leat' must be one of 'at least', 'less than'; did you mean 'at least'?",
    ),
    (
        short("length_constraints:number_words", num_words=0, relation="less than"),
        "num_words = 0 can never be met; give 1 or more",
    ),
    (short("language:response_language", language="xx"), "language = 'xx' must be a language code such as 'en'"),
    (short("keywords:existence", keywords="river"), "keywords = 'river' must be a list of texts, at least one"),
    (
        short("keywords:letter_frequency", letter="ab", let_frequency=1, let_relation="at least"),
        "letter = 'ab' must be one character",
    ),
    (short("count:word_count_range", min_words=9, max_words=3), "min_words = 9 is above max_words = 3; swap them"),
    (
        short("length_constraints:nth_paragraph_first_word", num_paragraphs=2, nth_paragraph=3, first_word="so"),
        "nth_paragraph = 3 is beyond num_paragraphs = 2; give at most 2",
    ),
    (
        short("count:keywords_multiple", keyword1="a", keyword2="b", keyword3="A", keyword4="d", keyword5="e"),
        "keyword1 and keyword3 are both 'a'",
    ),
    (short("change_case:english_capital") + short("change_case:english_lowercase"), "exclude each other; keep one"),
    (short("change_case:english_capital") + short("language:response_language", language="fr"), "asks for English"),
    (
        short("keywords:existence", keywords=["Owl"]) + short("keywords:forbidden_words", forbidden_words=["owl"]),
        "both have 'owl'; drop it from one",
    ),
    (
        short("language:response_language", language="fr") + short("language:response_language", language="de"),
        "language:response_language asks for 'fr' and 'de'; keep one",
    ),
    (
        short("language:response_language", language="en")
        + short("change_case:english_lowercase")
        + short("language:response_language", language="fr"),
        "asks for 'en' and 'fr'; keep one",
    ),
    (
        short("keywords:existence", keywords=["a"])
        + short("keywords:existence", keywords=["b"])
        + short("keywords:forbidden_words", forbidden_words=["c"])
        + short("keywords:forbidden_words", forbidden_words=["B"]),
        "both have 'B'; drop it from one",
    ),
    ([], "the target names no instruction; give at least one"),
    (short("punctuation:no_comma") * 101, "the target names 101 instructions; give at most 100"),
    (
        short("keywords:existence", keywords=["a"] * 600)
        + short("keywords:forbidden_words", forbidden_words=["b"] * 601),
        "forbidden_words has 601 words, of 1201 in all lists of the target; give at most 1000 together",
    ),
    (short("format:options", options="/ ,"), "has no option; give some"),
    (short("keywords:existence", keywords=["\u200b"]), "must be a list of texts, none of them blank"),
    ("no json", "is a text that is no JSON"),
    ("[" * 100_000, "is a text that is no JSON"),
    (None, "the target must be"),
    (["punctuation:no_comma"], "an instruction must be a mapping with an id"),
    ({**ROW, "kwargs": [{}]}, "kwargs must be a list with one mapping for each of 2 ids"),
    ({**ROW, "kwargs": [{}, "x"]}, "kwargs must hold mappings of parameters only"),
    ({**ROW, "instruction_id_list": "punctuation:no_comma"}, "instruction_id_list must be a list of ids"),
    ({**ROW, "prompt": 3}, "prompt must be a text, not 3"),
    ({**ROW, "kwarg": []}, "unknown key 'kwarg'; did you mean 'kwargs'?"),
]


@pytest.mark.parametrize(("target", "fault"), FAULTS)
def test_a_fault_is_named_with_its_remedy(target, fault):
    found = InstructionsVerifier().check_target(target)
    assert any(part in found for part in fault.split("|"))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(sorted(instructions())),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "kwargs", "instruction_id_list", "N"]), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=40)
@given(JSON)
def test_anything_is_a_target_or_a_fault_in_words(target):
    found = InstructionsVerifier().check_target(target)
    assert found is None or len(found) > 20
