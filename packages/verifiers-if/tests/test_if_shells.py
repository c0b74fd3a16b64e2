"""Answers that have the form of an instruction and nothing in it, and forms that are easily misread."""

import pytest

from reroll_verifiers_if.targets import read_target

MCQ = "\n".join(
    f"Question {number}. {'Why ' * number}?\n" + "\n".join(f"{letter}. one" for letter in "ABCDE")
    for number in range(1, 5)
)
HEAD = "ID,Country,City,Year,Count\n"
PROMPT = "Write it now please."
THREE = {"num_paragraphs": 3, "nth_paragraph": 2, "first_word": "however"}

CASES = [
    ("count:conjunctions", {"small_n": 2}, ["bread and/or milk", "rain—and sun—but"], ["and"]),
    ("count:numbers", {"N": 2}, ["(1)(2)", "5-10 apples", "5–10", "10:30 or 1/2"], ["1,000", "2024-05-06", "3,4,5"]),
    ("count:unique_word_count", {"N": 3}, ["word—other third"], ["don't don’t stop", "so - —"]),
    ("count:words_japanese", {"N": 5}, ["a b c d 猫 f", "a b c d . 猫"], ["a b c", "a b c d . f"]),
    ("custom:csv_city", {}, [HEAD + "1,Peru,Lima,2000,5\n" * 7], [HEAD + ",,,,\n" * 7]),
    (
        "custom:mcq_count_length",
        {},
        [MCQ],
        [
            MCQ.replace("E. one", "E. one\nF. two"),
            MCQ.replace("B. one", "A. one"),
            MCQ.replace("Question 2", "Question 7"),
            MCQ.replace("A. one\nB. one", "B. one\nA. one"),
        ],
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, ["[a] [__]"], ["[] []", "[ ] [\u200b]"]),
    ("detectable_content:postscript", {"postscript_marker": "PS:"}, ["So. PS: go"], ["Bye. PS:", "Bye. PS: ."]),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, ["So. P.S. go"], ["Bye. P.S."]),
    ("detectable_format:constrained_response", {}, ["My answer is no."], ["My answer is no. My answer is yes."]),
    ("detectable_format:json_format", {}, ['{"a":' + "9" * 5000 + "}", '\ufeff{"a": 1}'], ["NaN", "1```", "```\n1"]),
    ("detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 2},
     ["Section 1\na\nSection 2\nb"], ["Section 1\nSection 2", "Section 1 a Section 1 b", "Section 1 a Section 2 ."]),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, ["* a\n* b\n* * *\n---"], ["-\n-", "* .\n* ."]),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, ["*a* and **b**", "***a*** *b*"],
     ["***a***", "2 * 3 * 4 and 5 * 6 * 7", "*.* *.*"]),
    ("detectable_format:title", {}, ["<<a>>"], ["x <<.>>"]),
    ("format:list", {"sep": "SEPARATOR"}, ["SEPARATOR a SEPARATOR b"], ["SEPARATORSEPARATOR", "a SEPARATOR SEPARATOR"]),
    ("format:list", {"sep": "-"}, ["- a\n- b"], ["well-known and so-called", "a ----"]),
    ("format:newline", {}, ["one\ntwo-three\ndon't\n3.5"], ["one/two", "one_two", "one.two", "one\u200btwo"]),
    ("format:no_whitespace", {}, ["ab"], ["a\u2800b", "a\u3164b", "  a"]),
    ("format:options", {"options": "yes, maybe, or no"}, ["yes", "Maybe.", "no"], ["or no", "yes, no"]),
    ("format:options", {"options": "yes or no, I don't know"}, ["I don’t know", "no"], ["no, I don't know"]),
    ("format:output_template", {}, ["My Answer: a My Conclusion: b Future Outlook: c"],
     ["My Answer:My Conclusion:Future Outlook:", "My Answer: a My Conclusion: . Future Outlook: c"]),
    ("format:quotes", {}, ['"a \'b "c" d\' e"', "\"'\"c\"'\""], ["a \"'\"\"'\""]),
    ("format:sub-bullets", {}, ["* a\n- b"], ["* a\n---", "* a\n-", "* a\n-5 degrees", "* a\n- ."]),
    ("format:no_bullets_bullets", {}, ["I ran. I sat.\n* a\n* b"], [". .\n* a\n* b"]),
    ("format:title_case", {}, ["The Cat"], ["123"]),
    ("keywords:existence", {"keywords": ["New York", "it's", "café"]}, ["New\nYork, it’s a cafe\u0301"], ["New York"]),
    ("keywords:frequency", {"keyword": "owl", "frequency": 1, "relation": "less than"}, ["An eagle"], ["o\u200bwl"]),
    ("keywords:letter_frequency", {"letter": "o", "let_frequency": 1, "let_relation": "less than"}, ["an eagle"],
     ["\u043ewl", "ｏwl"]),
    ("length_constraints:nth_paragraph_first_word", THREE,
     ["A\n\n" + start + " c\n\nd" for start in ("However—so", "However:", "(However)", "**However**")]
     + ["A\n \nHowever c\n\t\nd", "A\r\n\r\nHowever c\r\n\r\nd"], ["A\n\nHowever's c\n\nd"]),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, ["A ***b*** \n***\nC"], ["A ***b*** C", "A *** ."]),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"}, ["So. Go."], ["So . . . !"]),
    ("punctuation:no_comma", {}, ["a ‚b‘"], ["a， b", "a، b", "a‚ b"]),
    ("combination:two_responses", {}, ["A\n******\nB"], ["A\n******\na.", "?\n******\nA"]),
    ("ratio:sentence_balance", {}, ["Go. Go! Go?"], ["a . ! ?"]),
    ("repeat:repeat_change", {"prompt_to_repeat": PROMPT}, ["Read it now please."],
     ["write it now please.", '"Write it now please.', "- it now please."]),
    ("repeat:repeat_span", {"prompt_to_repeat": PROMPT, "n_start": 1, "n_end": 3, "unit": "words"},
     ["it now please", '"it now please."'], ["it now"]),
    ("startend:end_checker", {"end_phrase": "That's all"}, ["“So. That’s all”", "'that's all'"], ["xthat's all"]),
    ("startend:end_checker", {"end_phrase": 'said "bye"'}, ['He said "bye"', "He said “bye”"], ['He said "by"']),
    ("startend:quotation", {}, ["“so\""], ['""', '"."']),
    ("words:alphabet", {}, ["Élan finds gold"], ["Élan gold"]),
    ("words:palindrome", {}, ["level " * 10], ["11111 " * 10, "aaaaa " * 10]),
    ("words:start_verb", {}, ["1. Run fast", "Sauté the onions", "Peel it"], ["Rose petals fell", "Mark went home"]),
    ("words:vowel", {}, ["é e è"], ["àéîôû"]),
]  # fmt: skip


def judge(id, parameters, text):
    return read_target([{"id": id, **parameters}])[0].follows(text)


@pytest.mark.parametrize(("id", "parameters", "text"), [(i, p, text) for i, p, good, _ in CASES for text in good])
def test_follows(id, parameters, text):
    assert judge(id, parameters, text)


@pytest.mark.parametrize(("id", "parameters", "text"), [(i, p, text) for i, p, _, bad in CASES for text in bad])
def test_does_not_follow(id, parameters, text):
    assert not judge(id, parameters, text)
