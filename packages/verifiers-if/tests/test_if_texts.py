"""How a text is taken apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll_verifiers_if.answers import final_answer, loose_variants
from reroll_verifiers_if.folding import holds_word_of
from reroll_verifiers_if.language import NAMES, detect, is_english, known_codes
from reroll_verifiers_if.once import LONG, forget, once
from reroll_verifiers_if.tables import read_row
from reroll_verifiers_if.texts import PUNCTUATION, bare_words, has_content, is_blank, plain_words, sentences, tokens
from reroll_verifiers_if.verbs import is_verb

SPLIT = [
    ("It rains. We walk.", ["It rains.", "We walk."]),
    ("it rains. we walk", ["it rains.", "we walk"]),
    ("Dr. Smith and J. Doe left.", ["Dr. Smith and J. Doe left."]),
    ("See e.g. the map. Go.", ["See e.g. the map.", "Go."]),
    ("It is approx. two. Go.", ["It is approx. two.", "Go."]),
    ("At 3.5 m. Then on.", ["At 3.5 m.", "Then on."]),
    ("Really?! Yes!! No.", ["Really?!", "Yes!!", "No."]),
    ('"Stop!" she said. "Go!" We went.', ['"Stop!" she said.', '"Go!"', "We went."]),
    ("Well... maybe. Well... Maybe.", ["Well... maybe.", "Well...", "Maybe."]),
    ("1. Walk. 2. Run.", ["1. Walk.", "2. Run."]),
    ("In 1999. Then on.", ["In 1999.", "Then on."]),
    ("# Title\n\nIt rains.", ["# Title\n\nIt rains."]),
    ("So (he left.) Then on.", ["So (he left.)", "Then on."]),
    ("**Bold.** Then 😀. On.😀 So", ["**Bold.**", "Then 😀.", "On.😀", "So"]),
    ("雨が降る。歩く。", ["雨が降る。", "歩く。"]),
    ("It was I. Go.", ["It was I.", "Go."]),
    ("Plan B. Then we go.", ["Plan B.", "Then we go."]),
    ("It costs $3 vs. $4. So.", ["It costs $3 vs. $4.", "So."]),
    ("Go. ! Stay.", ["Go. !", "Stay."]),
    (". . ! ?", []),
    ("", []),
]


@pytest.mark.parametrize(("text", "expected"), SPLIT)
def test_sentences(text, expected):
    assert list(sentences(text)) == expected


@given(st.text(alphabet="ab.A!?…\"')* \n1。😀", max_size=60))
def test_sentences_lose_nothing_but_space(text):
    kept = "".join("".join(sentences(text)).split())
    assert kept == "".join(text.split()) or (not kept and not has_content(text))
    assert all(sentence == sentence.strip() != "" for sentence in sentences(text))


@given(st.text(max_size=60))
def test_plain_words_hold_no_mark(text):
    assert not any(mark in word for word in plain_words(text) for mark in PUNCTUATION)


def test_words():
    text = "Don't stop—“now”, _well-known_… -"
    assert plain_words(text) == ("Dont", "stop", "now", "wellknown")
    assert tokens(text) == ("Don't", "stop", "now", "well-known")
    assert bare_words(text.replace("'", "’")) == ("Don't", "stop", "now", "well-known")


@pytest.mark.parametrize("text", ["", " \n", "\u200b", "\u2800\u3164", "\ufeff\u200d", "\u0301", "\x00"])
def test_what_shows_nothing_is_blank(text):
    assert is_blank(text) and not has_content(text) and not is_blank(text + ".")


@pytest.mark.parametrize(("text", "holds"), [("a", True), ("5", True), ("日", True), ("😀", True), ("_ . -", False)])
def test_marks_alone_say_nothing(text, holds):
    assert has_content(text) is holds


@pytest.mark.parametrize(
    "text",
    ["maybe", "So _maybe_.", "**Maybe**",
     "ma\u00adybe", "may\u200bbe", "ｍａｙｂｅ", "m\u0430ybe", "may\u0431 m\u0430yb\u0435",
     "it’s\nme"],
)  # fmt: skip
def test_a_forbidden_word_is_seen_in_disguise(text):
    assert holds_word_of(text, ["never", "maybe", "it's me"])


@pytest.mark.parametrize("text", ["maybes", "may_be", "unmaybe", "_maybe_so", "м\u0430y be", "its me"])
def test_another_word_is_no_forbidden_one(text):
    assert not holds_word_of(text, ["maybe", "it's me", "be_"])


def test_what_is_read_of_a_long_text_is_read_once_and_forgotten():
    read = []
    length = once(lambda text: read.append(text) or len(text))
    long, short = "a" * LONG, "a" * (LONG - 1)
    assert [length(long), length(long), length(short), length(short)] == [LONG, LONG, LONG - 1, LONG - 1]
    assert len(read) == 3
    forget()
    assert length(long) == LONG and len(read) == 4


THINKING = [
    ("yes", "yes"),
    ("<think>no</think>\n\nyes\n", "yes"),
    ("no</think>no</think>  \n  yes", "  yes"),
    ("\n\n  one\n  two \n", "  one\n  two"),
    ("<think>no", ""),
    (" \n <think>no", ""),
    ("a <think> b", "a"),
    ("<reasoning>no</reasoning>yes", "yes"),
    ("<thought>no", ""),
    ("<think>no</think> \n", ""),
    ("", ""),
]


@pytest.mark.parametrize(("completion", "answer"), THINKING)
def test_the_thinking_part_is_not_judged(completion, answer):
    assert final_answer(completion) == answer


def test_the_thinking_part_is_judged_on_request():
    assert final_answer("<think>no</think>\nyes\n", keep_thinking=True) == "<think>no</think>\nyes"


def test_loose_variants_are_the_eight_of_the_paper():
    assert loose_variants("*a\nb\nc*") == ["*a\nb\nc*", "b\nc*", "*a\nb", "b", "a\nb\nc", "b\nc", "a\nb"]
    assert loose_variants("a\nb\nc\n*d") == ["a\nb\nc\n*d", "b\nc\n*d", "a\nb\nc", "b\nc", "a\nb\nc\nd", "b\nc\nd"]
    assert loose_variants("one") == ["one"]
    assert loose_variants(" ") == []


def test_every_language_has_its_name():
    assert set(known_codes()) | {"zh"} == set(NAMES)


@pytest.mark.parametrize("text", ["", "1", "!?", "a", "😀😀", "http://a.b", "\x00", "؟", "ゃ", "a@b.c"])
def test_a_short_text_has_a_language_or_none(text):
    assert detect(text) is None or detect(text) in NAMES


def test_short_plain_letters_pass_as_english():
    assert is_english("yes") and not is_english("ja, möglich") and not is_english("42")


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("a,b", ["a", "b"]),
        ('"a,b",c', ['"a,b"', "c"]),
        ('"a ""b""" , "c"', ['"a ""b"""', '"c"']),
        ("a,,", ["a", "", ""]),
        ("", [""]),
        ('"a', None),
        ('"a"b,c', None),
        ('a "b",c', ['a "b"', "c"]),
        ('"a", b', ['"a"', "b"]),
    ],
)
def test_a_row_of_a_table(line, fields):
    assert read_row(line, ",") == fields


@given(st.text(alphabet='a", \t', max_size=30))
def test_any_line_is_a_row_or_none(line):
    fields = read_row(line, ",")
    assert fields is None or all(field in line for field in fields)


@pytest.mark.parametrize(
    "word",
    [
        "write",
        "writes",
        "wrote",
        "written",
        "writing",
        "studied",
        "running",
        "stopped",
        "lying",
        "don't",
        "peel",
        "jot",
        "preheating",
        "skim",
        "sauté",
    ],
)
def test_forms_of_a_verb(word):
    assert is_verb(word)


@pytest.mark.parametrize(
    ("word", "following"),
    [
        ("the", "day"),
        ("river", ""),
        ("plans", "are"),
        ("design", "of"),
        ("it's", ""),
        ("rose", "petals"),
        ("may", "is"),
        ("spring", "came"),
        ("walk", "went"),
        ("water", "covers"),
    ],
)
def test_no_verb(word, following):
    assert not is_verb(word, following)


@pytest.mark.parametrize(
    ("word", "following"), [("water", "the"), ("book", "it"), ("spring", "up"), ("mark", "carefully"), ("love", "")]
)
def test_a_form_that_is_mostly_a_noun_is_a_verb_before_an_object(word, following):
    assert is_verb(word, following)


def test_a_sentence_in_traditional_characters_is_chinese():
    assert detect("我昨天去市場買了一些蘋果，然後回家做了晚飯。") == "zh-tw"
    assert detect("我昨天去市场买了一些苹果，然后回家做了晚饭。") == "zh-cn"
    assert detect("昨日は市場へ行ってりんごを買いました。") == "ja"
