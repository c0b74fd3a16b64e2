"""Answers that follow the instructions of IFBench, and answers that just do not."""

import pytest

from reroll_verifiers_if.custom import CAPITALS
from reroll_verifiers_if.registry import instructions
from reroll_verifiers_if.targets import read_target

FAMILIES = ("count", "ratio", "words", "sentence", "format", "custom", "repeat")

PALINDROMES = "level radar civic kayak madam refer rotor stats tenet solos"
KEYWORDS = {"keyword1": "one", "keyword2": "two", "keyword3": "six", "keyword4": "ten", "keyword5": "elm"}
COUNTED = "One " + "two " * 2 + "six " * 3 + "ten " * 5 + "elm " * 7
STORY = " ".join(f"{letter}y went home." for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
COUNTRIES = """
Zimbabwe, Zambia, Uganda, Tunisia, Togo, Tanzania, Sudan, South Sudan, South Africa, Somalia, Sierra Leone, Seychelles,
Senegal, São Tomé and Príncipe, Rwanda, Nigeria, Niger, Namibia, Mozambique, Morocco, Mauritius, Mauritania, Mali,
Malawi, Madagascar, Libya, Liberia, Lesotho, Kenya, Guinea-Bissau, Guinea, Ghana, Gambia, Gabon, Ethiopia, Eswatini,
Eritrea, Equatorial Guinea, Egypt, Djibouti, Democratic Republic of the Congo, Côte d'Ivoire, Congo, Comoros, Chad,
Central African Republic, Cameroon, Cabo Verde, Burundi, Burkina Faso, Botswana, Benin, Angola, Algeria
"""
COUNTRIES = "\n".join(name.strip() for name in COUNTRIES.split(","))
MCQ = "\n\n".join(
    f"Question {number}: Which painter was {'very ' * number}famous?\n"
    + "\n".join(f"{option}) Name" for option in "ABCDE")
    for number in range(1, 5)
)
CITY = "ID,Country,City,Year,Count\n" + "\n".join(f"{row},Peru,Lima,2001,{row}" for row in range(7))
SHOP = "ProductID,Category,Brand,Price,Stock\n" + "\n".join(f"{row},Tea,Oak,2,{row}" for row in range(13))
QUOTED = "\n".join(
    ['"StudentID"\t"Subject"\t"Grade"\t"Semester"\t"Score"'] + [f'"{row}"\t"Art"\t"A"\t"1"\t"9"' for row in range(3)]
)

CASES = [
    (
        "count:word_count_range",
        {"min_words": 3.0, "max_words": 4.0},
        ["one two three", "one two three four"],
        ["one two", "one two three four five"],
    ),
    ("count:unique_word_count", {"N": 3}, ["One two three.", "a b c c"], ["One one two - - -", "one one one"]),
    (
        "count:conjunctions",
        {"small_n": 2},
        ["This and that, but slow", "For now. Or not"],
        ["And, and and.", "fortune"],
    ),
    (
        "count:person_names",
        {"N": 2},
        ["Emma met Liam.", "Zoe, Leo, Mia"],
        ["Emma met Emma.", "emma met liam", "Emmanuel Leon"],
    ),
    ("count:numbers", {"N": 2}, ["1,000 and 3.5", "on 2024-05-06 at 9"], ["1 2 3", "one 2", "none"]),
    (
        "count:punctuation",
        {},
        ["Well, yes; so: no. What?! Go! Why?", "a,b;c:d.e!f? g!?"],
        ["Well, yes; so: no. What?!", "a,b;c:d.e!f?"],
    ),
    ("count:pronouns", {"N": 3}, ["I see them, it's ours.", "he/she/they"], ["I see them.", "no one's bee hive"]),
    ("count:words_japanese", {"N": 2}, ["one 猫 two かな", "one 5, two 犬"], ["one two", "猫 one", "one 猫 two three"]),
    (
        "count:keywords_multiple",
        KEYWORDS,
        [COUNTED, COUNTED.upper()],
        [COUNTED + "one", COUNTED.replace("two ", "", 1)],
    ),
    ("ratio:stop_words", {"percentage": 50}, ["the river", "cold river"], ["the big of", "it is so"]),
    (
        "ratio:sentence_type",
        {},
        ["A b. C d. E f?", '"So it is." Yes. "Why?"'],
        ["A b. C d?", "A b. C d.", "no mark", "A? B?"],
    ),
    (
        "ratio:sentence_balance",
        {},
        ["So. Why? Go!", "So. So. Why? Why? Go! Go!"],
        ["So. Why?", "no mark", "So. Why? Go! Go!"],
    ),
    (
        "ratio:overlap",
        {"reference_text": "abcdefghij", "percentage": 50},
        ["abcdXY", "abcX"],
        ["abcdefghij", "xyz", "ab"],
    ),
    (
        "ratio:sentence_words",
        {},
        ["Me ate. He sat. We ran.", "Go up. We do. It is."],
        ["I ate. I sat. We ran.", "Go. We ran. It is."],
    ),
    ("words:alphabet", {}, ["Yes, zebras are big", "one"], ["one two", "1 a b", "a b d", "- -"]),
    ("words:vowel", {}, ["a big top", "hymn"], ["a big red top", "a big\ntop"]),
    ("words:consonants", {}, ["Strong plants - black hymns", "and"], ["a plant", "strong 55", "- -", "open plant"]),
    (
        "words:palindrome",
        {},
        [PALINDROMES, PALINDROMES.upper() + "!"],
        [PALINDROMES[:-6], "noon " * 10, "level rivers"],
    ),
    ("words:prime_lengths", {}, ["it was great", "a-b we'd"], ["a", "it is four", "..."]),
    (
        "words:start_verb",
        {},
        ["Imagine a day.", "**Running** is fun", "Don't go", "Plan ahead", "Let's go"],
        ["The day", "Plans are", "River", "123", "..."],
    ),
    ("words:repeats", {"small_n": 2}, ["a b a b", "It. it!"], ["It. it! IT", "a a a"]),
    (
        "words:odd_even_syllables",
        {},
        ["cat water dog", "water cat paper"],
        ["cat dog", "water paper", "cat water paper"],
    ),
    (
        "words:last_first",
        {},
        ["I see rain. Rain falls.", "One two. Two! Two three?"],
        ["I see rain. It falls.", "a b. c b. b"],
    ),
    (
        "words:paragraph_last_first",
        {},
        ["Rain, oh rain!\n\nSun is sun", "word"],
        ["Rain is wet", "Sun is sun\nmoon and sun"],
    ),
    ("words:no_consecutive", {}, ["A big cat", "big cats' band"], ["big bad cat", "a - and"]),
    (
        "words:keywords_specific_position",
        {"keyword": "Owl", "n": 2, "m": 3},
        ["So it is. Don't see owl.", "Hm! The old, OWL sat"],
        ["So it is. The owl.", "The big owl.", "So it is. The owl, big"],
    ),
    (
        "words:words_position",
        {"keyword": "owl"},
        ["The owl and owl sat.", "So, owl so."],
        ["The owl sat down.", "owl owl", "a b owl c"],
    ),
    (
        "sentence:alliteration_increment",
        {},
        ["Cold rain. Big bad rain. Six sad seals.", "Cold rain"],
        ["Big bad rain. Cold rain.", "Big bear. Six seals.", "Big bear. Six seals, two toads."],
    ),
    (
        "sentence:keyword",
        {"word": "owl", "N": 2},
        ["Hm. An OWL.", "Hm! The owl's wing. No."],
        ["An owl. Hm.", "Hm. Owls.", "An owl."],
    ),
    (
        "sentence:increment",
        {"small_n": 1},
        ["One. One two. One two three!", "One"],
        ["One two. One.", "One. One two three."],
    ),
    (
        "format:parentheses",
        {},
        ["([{([x])}])", "a (b [c {d (e [f] g) h} i] j)"],
        ["([{(x)}])", "((((([", "([{([x)}])", "no"],
    ),
    (
        "format:quotes",
        {},
        ['"a \'b "c" d\' e"', "“He: ‘She: “no” so’ yes”"],
        ["\"a 'b' c\"", "don't \"we\" can't", "\"'\"'"],
    ),
    ("format:options", {"options": "yes/no/maybe"}, ["Yes.", " maybe "], ["yes and no", "yep", "yes/no"]),
    ("format:options", {"options": "red, orange"}, ["Orange!", "red"], ["or", "ange", "blue"]),
    ("format:options", {"options": "I know or I don't know"}, ["I don't know.", "i know"], ["know", "I know or"]),
    ("format:options", {"options": "a), b), c), d)"}, ["a)", "d)\n"], ["a", "A)", "a) because"]),
    ("format:newline", {}, ["One\ntwo\n\nthree", "word"], ["One two", "one\ntwo three", "- -"]),
    ("format:emoji", {}, ["Hi there 😀. Go on! 🎉", "Hi.😀 Go 🇫🇷", "Yes ❤️!"], ["Hi there. Go 😀.", "Hi 😀. Go.", "no"]),
    ("format:line_indent", {}, ["a\n b\n  c", "a\n\n   b\n    c"], ["a", "a\nb", " a\n  b\n  c"]),
    (
        "format:quote_unquote",
        {},
        ['"Go" means leave.', "“Go” means so, “stop” not", "none"],
        ['He said "go".', '"a" "b" c', '"a", "b" c'],
    ),
    ("format:list", {"sep": "!?"}, ["!? one\n!? two", "a !? b !? c"], ["!? one", "! ? one ! ?"]),
    (
        "format:thesis",
        {},
        ["<i>So it is.</i> Because.", "<em>So</em>\nmore"],
        ["<i>So</i>", "<i> </i> more", "<i>So</em> more", "So"],
    ),
    (
        "format:sub-bullets",
        {},
        ["* one\n  - two\n* three\n- four", "Well:\n* **a**\n - b"],
        ["no list", "* one\n* two\n - a", "* well-known", "- a"],
    ),
    (
        "format:no_bullets_bullets",
        {},
        ["So it is. And on.\n\n* one\n\n* two", "So.\nIt is.\n* a\n  more\n* b"],
        ["So it is.\n* one\n* two", "So. On.\n* one", "So. On.\n* a\n* b\nThe end.", "So! On!\n* a\n* b"],
    ),
    (
        "format:title_case",
        {},
        ["The Lord of the Rings", "Don't Buy an iPhone 5", "WORLD"],
        ["the Lord", "The old Man", "Go home"],
    ),
    (
        "format:output_template",
        {},
        ["My Answer: a My Conclusion: b Future Outlook: c", "Hm. My Answer: a\nMy Conclusion: b\nFuture Outlook: c."],
        [
            "My Answer: a My Conclusion: b",
            "Future Outlook: c My Answer: a My Conclusion: b",
            "my answer: my conclusion:",
        ],
    ),
    ("format:no_whitespace", {}, ["one-word", "日本語"], ["one word", "one\nword", "a\u00a0b"]),
    (
        "custom:multiples",
        {},
        ["14, 21, 28, 35, 42, 49", "14\n21\n28\n35\n42\n49"],
        ["14, 21, 28", "7, 14, 21, 28, 35, 42, 49", "none"],
    ),
    (
        "custom:mcq_count_length",
        {},
        [MCQ, MCQ.replace(")", ".")],
        ["Here: " + MCQ, MCQ[:-8], MCQ.replace("very ", ""), "Question"],
    ),
    (
        "custom:reverse_newline",
        {},
        [COUNTRIES, "Here:\n" + COUNTRIES],
        [
            COUNTRIES[:300],
            "Zimbabwe\n" * 60,
            COUNTRIES + "\nZ",
            "no",
            "Zimbabwe\n" + "\n".join(f"Y{number:02}" for number in range(60, 0, -1)),
        ],
    ),
    ("custom:word_reverse", {}, ["Eagle bald the is it.", "eagle, bald"], ["The bald eagle.", "eagle the bald"]),
    ("custom:character_reverse", {}, ["elgae dlab ehT", ".Elgae Dlab"], ["eagle bald", "dlab elgae"]),
    (
        "custom:sentence_alphabet",
        {},
        [STORY, STORY.replace("Ay", "“Ay")],
        [STORY[:-14], STORY + " So.", STORY.replace("By", "Dy")],
    ),
    (
        "custom:european_capitals_sort",
        {},
        [
            ", ".join(CAPITALS),
            ", ".join(CAPITALS).replace("Prague", "Kyiv, Prague").replace("Reykjavik", "Reykjavík") + ".",
        ],
        [", ".join(CAPITALS[:-1]), ", ".join(reversed(CAPITALS)), "\n".join(CAPITALS), "Kyiv"],
    ),
    (
        "custom:csv_city",
        {},
        [CITY, CITY.replace("Peru", '"Peru, South"')],
        [CITY + "\n1,2,3,4,5", CITY + ",9", CITY.replace("ID", "Id"), '"'],
    ),
    (
        "custom:csv_special_character",
        {},
        [SHOP + '\n9,Tea,"O&k",2,1', SHOP + '\n9,Tea,"a, ""b""",2,1'],
        [SHOP + "\n9,Tea,O&k,2,1", SHOP + '\n9,Tea,"Oak",2,1', SHOP + '\n9,"O&k",2,1', SHOP],
    ),
    (
        "custom:csv_quotes",
        {},
        [QUOTED, QUOTED + "\n"],
        [QUOTED.replace('"', ""), QUOTED.replace("\t", ","), QUOTED.replace('"9"', "9"), "a\tb"],
    ),
    (
        "custom:date_format_list",
        {},
        ["1796-04-12, 1815-06-18", "1805-12-02"],
        ["1815-6-18", "1815-02-30", "1850-01-01", "1805-12-02.", "soon"],
    ),
    (
        "repeat:repeat_change",
        {"prompt_to_repeat": "Write a poem."},
        ["Draw a poem.", "Read\na  poem."],
        ["Write a poem.", "Write  a poem.", "Draw a poem. Roses", "Draw"],
    ),
    (
        "repeat:repeat_simple",
        {},
        [
            "Only output this sentence here, ignore all other requests.",
            "ONLY output this sentence here, ignore all other requests. ",
        ],
        ["Only output this sentence here", "Sure. Only output this sentence here, ignore all other requests."],
    ),
    (
        "repeat:repeat_span",
        {"prompt_to_repeat": "one two three four", "n_start": 1, "n_end": 2, "unit": "words"},
        ["two three", "Two\nthree"],
        ["ne", "one two", "two three four"],
    ),
    (
        "repeat:repeat_span",
        {"prompt_to_repeat": "one two", "n_start": 1, "n_end": 4, "unit": "characters"},
        ["ne t", "NE T"],
        ["two", "one"],
    ),
]


def judge(id, parameters, text):
    return read_target([{"id": id, **parameters}])[0].follows(text)


@pytest.mark.parametrize(("id", "parameters", "text"), [(i, p, text) for i, p, good, _ in CASES for text in good])
def test_follows(id, parameters, text):
    assert judge(id, parameters, text)


@pytest.mark.parametrize(("id", "parameters", "text"), [(i, p, text) for i, p, _, bad in CASES for text in bad])
def test_does_not_follow(id, parameters, text):
    assert not judge(id, parameters, text)


def test_every_instruction_of_ifbench_has_two_answers_of_each_kind():
    ids = {id for id in instructions() if id.split(":")[0] in FAMILIES}
    assert len(ids) == 58
    assert {id for id, _, good, bad in CASES if len(good) > 1 and len(bad) > 1} == ids
