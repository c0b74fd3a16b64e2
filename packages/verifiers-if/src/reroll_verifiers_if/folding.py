"""A text as it is compared with a wanted or forbidden phrase."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from reroll_verifiers_if.once import once

_QUOTES = str.maketrans(dict.fromkeys("“”„‟«»", '"') | dict.fromkeys("‘’‚‛", "'"))
_UNSEEN = re.compile("[\u00ad\u034f\u180e\u200b-\u200f\u2060-\u2064\ufeff]+")
_CYRILLIC = "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u04bb\u0501"
_GREEK = "\u03bf\u03bd"
_ALIKE = dict(zip(_CYRILLIC + _GREEK, "aeopcyxijshd" + "ov", strict=True))
_SET = "".join(_ALIKE)
# Only beside a Latin letter does one of another script count as its look-alike: a Russian word stays Russian.
_MASKED = re.compile(rf"(?<=[a-z])[{_SET}]++|(?<![{_SET}])[{_SET}]++(?=[a-z])")
_UNMASK = str.maketrans(_ALIKE)


@once
def folded(text: str) -> str:
    """A text in small letters, composed, with straight quotation marks and any white space as one space.

    A wanted phrase that differs in these only is that phrase.
    """
    composed = unicodedata.normalize("NFC", text)
    return " ".join(composed.translate(_QUOTES).split()).casefold()


@once
def unmasked(text: str) -> str:
    """`folded`, and besides without characters of no width, and with wide letters and look-alikes as Latin ones.

    A forbidden phrase is not allowed in these disguises either.
    """
    plain = folded(unicodedata.normalize("NFKC", _UNSEEN.sub("", text)))
    return _MASKED.sub(lambda match: match[0].translate(_UNMASK), plain)


def holds_word_of(text: str, words: Iterable[str]) -> bool:
    """Whether one of `words` stands in the text as a word of its own, in emphasis or not, in whatever disguise.

    An underscore within a name (`may_be`) parts no words.
    """
    read = unmasked(text)
    # Nearly all words are absent, and to find that out needs no pattern.
    within = [re.escape(word) for word in map(unmasked, words) if word in read]
    if not within:
        return False
    edges = r"(?<![^\W_])(?<![^\W_]_)", r"(?![^\W_])(?!_[^\W_])"
    return re.search(f"{edges[0]}(?:{'|'.join(within)}){edges[1]}", read) is not None
