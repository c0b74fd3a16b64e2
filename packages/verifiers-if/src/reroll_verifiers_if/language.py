"""Which language a text is in.

langdetect draws the n-grams that it looks at by chance and, as it is usually called, from an unseeded generator. Here
it has a factory of its own, with a fixed seed and with its profiles in a fixed order, so that a text has one language
in every process. Nothing is shared with other users of the library.
"""

from __future__ import annotations

import functools
import re
from importlib.resources import files
from typing import Any

NAMES = {
    "af": "Afrikaans", "ar": "Arabic", "bg": "Bulgarian", "bn": "Bengali", "ca": "Catalan", "cs": "Czech",
    "cy": "Welsh", "da": "Danish", "de": "German", "el": "Greek", "en": "English", "es": "Spanish", "et": "Estonian",
    "fa": "Persian", "fi": "Finnish", "fr": "French", "gu": "Gujarati", "he": "Hebrew", "hi": "Hindi",
    "hr": "Croatian", "hu": "Hungarian", "id": "Indonesian", "it": "Italian", "ja": "Japanese", "kn": "Kannada",
    "ko": "Korean", "lt": "Lithuanian", "lv": "Latvian", "mk": "Macedonian", "ml": "Malayalam", "mr": "Marathi",
    "ne": "Nepali", "nl": "Dutch", "no": "Norwegian", "pa": "Punjabi", "pl": "Polish", "pt": "Portuguese",
    "ro": "Romanian", "ru": "Russian", "sk": "Slovak", "sl": "Slovene", "so": "Somali", "sq": "Albanian",
    "sv": "Swedish", "sw": "Swahili", "ta": "Tamil", "te": "Telugu", "th": "Thai", "tl": "Tagalog", "tr": "Turkish",
    "uk": "Ukrainian", "ur": "Urdu", "vi": "Vietnamese", "zh": "Chinese", "zh-cn": "Simplified Chinese",
    "zh-tw": "Traditional Chinese",
}  # fmt: skip
"""The languages that can be told apart, by code; `zh` stands for both ways of writing Chinese."""

_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]")
_KANA_OR_HANGUL = re.compile("[\u3040-\u30ff\uac00-\ud7af]")

MAX_CHARS = 10_000
"""How much of a text is looked at; langdetect itself stops there."""

SHORT_LETTERS = 60
"""Below so many letters a guess at the language says little."""


@functools.cache
def _factory() -> Any:
    from langdetect.detector_factory import DetectorFactory

    folder = files("langdetect") / "profiles"
    profiles = sorted((item for item in folder.iterdir() if not item.name.startswith(".")), key=lambda item: item.name)
    factory = DetectorFactory()
    factory.load_json_profile([profile.read_text("utf-8") for profile in profiles])
    factory.set_seed(0)
    return factory


def known_codes() -> list[str]:
    """The codes that detection gives."""
    return list(_factory().get_lang_list())


@functools.lru_cache(maxsize=256)
def detect(text: str) -> str | None:
    """The code of the likeliest language of a text; None if it has no letters of any.

    Chinese is told by its script: the detector takes a sentence in traditional characters for Korean.
    """
    from langdetect.lang_detect_exception import LangDetectException

    part = text[:MAX_CHARS]
    if not any(map(str.isalpha, part)):
        return None
    if len(_HAN.findall(part)) * 2 > sum(map(str.isalpha, part)) and not _KANA_OR_HANGUL.search(part):
        return "zh-tw" if _only_in(part, "big5", "gb2312") > _only_in(part, "gb2312", "big5") else "zh-cn"
    detector = _factory().create()
    # Words in capitals are passed over by the detector, so that a text of nothing else has no features.
    detector.append(part.lower() if part.isupper() else part)
    try:
        found = str(detector.detect())
    except LangDetectException:
        return None
    return None if found == detector.UNKNOWN_LANG else found


def _only_in(text: str, encoding: str, other: str) -> int:
    """How many characters of a text one encoding has and another has not: Big5 has the traditional ones."""
    return sum(_has(encoding, character) and not _has(other, character) for character in _HAN.findall(text))


@functools.lru_cache(maxsize=20_000)
def _has(encoding: str, character: str) -> bool:
    return character.encode(encoding, "ignore") != b""


def is_in(text: str, code: str) -> bool:
    """Whether a text is in the language of that code; one without letters is in none."""
    found = detect(text)
    return found is not None and (found == code or (code == "zh" and found.startswith("zh-")))


def is_english(text: str) -> bool:
    """Whether a text is in English; a text of a few plain letters, which no detector can judge, passes as English."""
    letters = [letter for letter in text[:MAX_CHARS] if letter.isalpha()]
    if 0 < len(letters) < SHORT_LETTERS:
        return all(letter.isascii() for letter in letters)
    return is_in(text, "en")
