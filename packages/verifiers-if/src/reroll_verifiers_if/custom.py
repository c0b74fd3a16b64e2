"""Instructions that are a task of their own (IFBench, `custom:`)."""

from __future__ import annotations

import datetime
import re
from itertools import pairwise

from reroll_verifiers_if.registry import instruction
from reroll_verifiers_if.texts import ascii_only, bare, plain_words, sentences

_QUESTION = re.compile(r"Question (\d+)[.|):;]?")
_OPTION = re.compile(r"([A-Za-z])[.|)]\s*\w")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_NAPOLEON = (1769, 1821)

AFRICA = frozenset(
    """
    algeria angola benin botswana burkinafaso burundi caboverde capeverde cameroon centralafricanrepublic chad
    comoros congo thecongo republicofcongo republicofthecongo therepublicofthecongo congorepublicofthe congorepublic
    congobrazzaville congothe drcongo drc congokinshasa democraticrepublicofcongo democraticrepublicofthecongo
    thedemocraticrepublicofthecongo congodemocraticrepublicofthe congodemocraticrepublic
    republicofthecongobrazzaville democraticrepublicofthecongokinshasa democraticrepublicofthecongodrc
    congorepublicofthecongo cotedivoire ivorycoast djibouti egypt equatorialguinea eritrea eswatini swaziland
    ethiopia gabon gambia thegambia ghana guinea guineabissau kenya lesotho liberia libya madagascar malawi mali
    mauritania mauritius morocco mozambique namibia niger nigeria rwanda saotomeandprincipe saotomeprincipe senegal
    seychelles sierraleone somalia southafrica southsudan sudan tanzania togo tunisia uganda westernsahara zambia
    zimbabwe
    """.split()  # noqa: SIM905
)
"""The countries of Africa in their usual spellings, letters only."""

CAPITALS = tuple(
    """
    Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin Berlin Amsterdam Warsaw London
    Brussels Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz Chisinau Bern Ljubljana Zagreb
    """.split()  # noqa: SIM905
)
"""The European capitals north of 45 degrees that the reference knows, from north to south."""

_KYIV = ("Kyiv", "Kiev")


@instruction("custom:multiples", "The numbers are 14, 21, 28, 35, 42 and 49, in this order, and no others.")
def multiples(text: str) -> bool:
    return re.findall(r"\d+", text) == ["14", "21", "28", "35", "42", "49"]


@instruction(
    "custom:mcq_count_length",
    "Starts with `Question` and has four questions numbered 1 to 4 with the five options A to E each, every question "
    "longer than the one before.",
    differs="The reference does not look at the questions' numbers nor at which five letters the options have.",
)
def mcq_count_length(text: str) -> bool:
    whole = text.strip()
    if not whole.startswith("Question"):
        return False
    parts = _QUESTION.split(whole)
    read = list(map(_read_question, parts[2::2]))
    if parts[1::2] != list("1234") or any(options != "ABCDE" for _, options in read):
        return False
    return read[0][0] > 0 and all(left < right for (left, _), (right, _) in pairwise(read))


def _read_question(text: str) -> tuple[int, str]:
    """How many characters a question has before its options, and the letters of its options."""
    asked, options = [], ""
    for line in map(str.strip, text.split("\n")):
        if option := _OPTION.match(line):
            options += option[1].upper()
        elif not options:
            asked.append(line)
    return len(" ".join(asked).strip()), options


@instruction(
    "custom:reverse_newline",
    "From the line of Zimbabwe on, lists at least 52 countries of Africa in reverse alphabetical order, one a line and "
    "nothing else.",
    differs="The reference looks at the order only, so that 52 lines of `Zimbabwe` pass; here the lines are different "
    "and 52 of them countries by a usual name. Order disregards case.",
)
def reverse_newline(text: str) -> bool:
    written = [ascii_only(line) for line in map(bare, text.split("\n")) if line]
    first = next((place for place, line in enumerate(written) if "Zimbabwe" in line), len(written))
    names = [line.lower() for line in written[first:]]
    if len(names) < 52 or any(left <= right for left, right in pairwise(names)):
        return False
    return sum(map(_is_african, names)) >= 52


def _is_african(name: str) -> bool:
    letters = "".join(filter(str.isalpha, name))
    return letters in AFRICA


@instruction(
    "custom:word_reverse",
    "Names the bald eagle in a sentence whose words stand in reverse order: `eagle bald`.",
)
def word_reverse(text: str) -> bool:
    return "bald eagle" in " ".join(reversed(plain_words(text.lower())))


@instruction(
    "custom:character_reverse",
    "Names the bald eagle in a sentence whose letters stand in reverse order: `elgae dlab`.",
)
def character_reverse(text: str) -> bool:
    return "elgae dlab" in text.lower()


@instruction(
    "custom:sentence_alphabet",
    "Has 26 sentences whose first letters are those of the alphabet, in order.",
    differs="The reference does not look behind an opening quotation mark.",
)
def sentence_alphabet(text: str) -> bool:
    return [bare(sentence)[:1].lower() for sentence in sentences(text)] == list("abcdefghijklmnopqrstuvwxyz")


@instruction(
    "custom:european_capitals_sort",
    "Lists the European capitals north of 45 degrees from north to south, separated by commas.",
    differs="The reference forgets Kyiv, at 50.45 degrees between Brussels and Prague; it may be there or not. A full "
    "stop at the end is let pass.",
)
def european_capitals_sort(text: str) -> bool:
    names = [name.strip() for name in ascii_only(text.strip().removesuffix(".")).split(",") if name.strip()]
    place = CAPITALS.index("Prague")
    if len(names) > place and names[place] in _KYIV:
        del names[place]
    return tuple(names) == CAPITALS


@instruction(
    "custom:date_format_list",
    "Is a list of dates between 1769 and 1821, written YYYY-MM-DD and separated by commas.",
    differs="The reference takes month 0 and day 0 for dates.",
)
def date_format_list(text: str) -> bool:
    return all(map(_is_date, text.strip().split(",")))


def _is_date(text: str) -> bool:
    written = text.strip()
    if not _DATE.fullmatch(written):
        return False
    try:
        day = datetime.date.fromisoformat(written)
    except ValueError:
        return False
    return _NAPOLEON[0] <= day.year <= _NAPOLEON[1]
