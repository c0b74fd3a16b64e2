"""Answers that follow the instructions of IFEval, and answers that just do not."""

import pytest

from reroll_verifiers_if.registry import instructions
from reroll_verifiers_if.targets import read_target

FAMILIES = (
    "keywords", "language", "length_constraints", "detectable_content", "detectable_format", "startend", "punctuation",
    "combination", "change_case",
)  # fmt: skip

FRENCH = "La rivière traverse lentement la vallée, et les enfants du village jouent sur ses rives pendant tout l'été."
ENGLISH = "The river crosses the valley slowly, and the children of the village play on its banks all summer long."
GERMAN = "Der Fluss fließt langsam durch das Tal, und die Kinder des Dorfes spielen den ganzen Sommer an seinem Ufer."
SPACED = "Rain falls.\n\nHowever, we walk.\n\nThe end."

CASES = [
    (
        "keywords:existence",
        {"keywords": ["river", "c++"]},
        ["The River runs C++ code.", "rivers and c++."],
        ["Only the river.", "c++ by the rivet"],
    ),
    (
        "keywords:frequency",
        {"keyword": "owl", "frequency": 2, "relation": "at least"},
        ["Owl, owl.", "owl bowl owl"],
        ["One owl.", "No bird."],
    ),
    (
        "keywords:frequency",
        {"keyword": " owl ", "frequency": 2, "relation": "less than"},
        ["One owl.", "No bird."],
        ["Owl, owl.", "owl bowl owl"],
    ),
    (
        "keywords:forbidden_words",
        {"forbidden_words": ["art", "c++"]},
        ["A part of it.", "c and cc"],
        ["Art is long.", "We use C++ here.", "the art."],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "q", "let_frequency": 2, "let_relation": "at least"},
        ["Q and q.", "quick quiet queen"],
        ["q", "none"],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "#", "let_frequency": 2, "let_relation": "less than"},
        ["#one", "none"],
        ["#one #two", "###"],
    ),
    ("language:response_language", {"language": "fr"}, [FRENCH, FRENCH.upper()], [ENGLISH, GERMAN, "123 !!!", "?"]),
    (
        "language:response_language",
        {"language": "zh"},
        ["今天天气很好，我们一起去公园散步吧。", "河流慢慢地穿过山谷，孩子们在岸边玩耍。"],
        [ENGLISH, "今日はとても天気がいいので、公園を散歩しましょう。"],
    ),
    (
        "length_constraints:number_words",
        {"num_words": 4.0, "relation": "at least"},
        ["one two three four", "a b c d e"],
        ["one two three", "well-known thing"],
    ),
    (
        "length_constraints:number_words",
        {"num_words": 4, "relation": "less than"},
        ["one two three", "Yes."],
        ["one two three four", "it's a day"],
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": "at least"},
        ["It rains. We walk.", "Really?! Yes!", "the sun. it shone"],
        ["Dr. Smith walks", "At 3.5 m it stops.", '"Stop!" she said.', "1. Walk"],
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": "less than"},
        ["It rains.", "See e.g. the map."],
        ["It rains. We walk.", "雨が降る。歩く。"],
    ),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["One\n***\nTwo", "***\nOne *** Two\n***"],
        ["One", "One *** Two *** Three", "One *** *** Two"],
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 3, "nth_paragraph": 2, "first_word": "However"},
        [SPACED, "Rain falls.\n\n\n\n'however' we walk.\n\nThe end."],
        ["However, rain.\n\nWe walk.\n\nThe end.", "Rain.\n\nHowever, we walk.", SPACED + "\n\nReally."],
    ),
    (
        "detectable_content:number_placeholders",
        {"num_placeholders": 2},
        ["[name] of [street]", "[a][b][c]"],
        ["[name] only", "[a [b]", "] ["],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        ["Bye.\nP.S. Write.", "Bye. p. s. write"],
        ["Bye.", "PS write"],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.P.S"},
        ["Bye.\nP.P.S. Write.", "p. p. s write"],
        ["Bye.\nP.S. Write.", "pps"],
    ),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* one\n* two", "- one\n  - two\n---", "*one\n- two"],
        ["* one", "* one\n* two\n* three", "**bold**\n* one"],
    ),
    (
        "detectable_format:constrained_response",
        {},
        ["My answer is yes.", "Well. My answer is maybe. "],
        ["My answer is yes", "Yes.", "my answer is no."],
    ),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*one* and *two*", "**one** and *two*"],
        ["*one*", "** ** and **one**", "*one\ntwo* three"],
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "SECTION", "num_sections": 2},
        ["SECTION 1\nA\nSECTION 2\nB", "SECTION1 a SECTION2 b SECTION3"],
        ["SECTION 1\nA", "Section 1\nSection 2", "SECTION A SECTION B"],
    ),
    (
        "detectable_format:json_format",
        {},
        ['{"a": [1, 2]}', '```json\n{"a": 1}\n```', "```\n[]\n```"],
        ["a: 1", '{"a": 1} indeed', "[" * 100_000, "{'a': 1}"],
    ),
    (
        "detectable_format:title",
        {},
        ["<<poem>>", "Here: << a day >> and on"],
        ["<poem>", "<<>>", "<<poem\nof joy>>", ">>poem<<"],
    ),
    (
        "startend:end_checker",
        {"end_phrase": "The End"},
        ["It was so. the end", '"The End"'],
        ["The End.", "The end it"],
    ),
    ("startend:quotation", {}, ['"All of it."', "“All of it.”"], ['"', 'He said "yes"', "'yes'", '"yes" he said']),
    ("punctuation:no_comma", {}, ["No such mark.", "one; two"], ["one, two", ","]),
    (
        "combination:two_responses",
        {},
        ["One.\n******\nTwo.", "******One******Two******"],
        ["One.", "Same ****** Same", "a ****** b ****** c", "a ****** ****** b"],
    ),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Say hello. "},
        ["Say hello. Hello!", "\nSAY HELLO."],
        ["Hello!", "Sure. Say hello. Hello!"],
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        ["I like NASA.", "WELL-KNOWN FACT"],
        ["NASA flew.", "Well Known", "WELL-KNOWN"],
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 1, "capital_relation": "less than"},
        ["No such word", "Well Known"],
        ["I do", "DON'T"],
    ),
    ("change_case:english_capital", {}, [ENGLISH.upper(), "YES"], [ENGLISH, FRENCH.upper(), "123", "ДА"]),
    ("change_case:english_lowercase", {}, [ENGLISH.lower(), "yes"], [ENGLISH, FRENCH.lower(), "123", "да"]),
]


def judge(id, parameters, text):
    return read_target([{"id": id, **parameters}])[0].follows(text)


@pytest.mark.parametrize(("id", "parameters", "text"), [(i, p, text) for i, p, good, _ in CASES for text in good])
def test_follows(id, parameters, text):
    assert judge(id, parameters, text)


@pytest.mark.parametrize(("id", "parameters", "text"), [(i, p, text) for i, p, _, bad in CASES for text in bad])
def test_does_not_follow(id, parameters, text):
    assert not judge(id, parameters, text)


def test_every_instruction_of_ifeval_has_two_answers_of_each_kind():
    ids = {id for id in instructions() if id.startswith(FAMILIES)}
    assert len(ids) == 25
    assert {id for id, _, good, bad in CASES if len(good) > 1 and len(bad) > 1} == ids
