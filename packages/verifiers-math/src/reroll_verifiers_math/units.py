"""Units of measurement: their spellings, and which can be compared with which."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple


class Unit(NamedTuple):
    """`dimensions` are powers of base quantities, in order of their names; `factor` is of their base units, exactly.

    Scales that no factor leads to each other, such as those of temperature, are dimensions of their own.
    """

    dimensions: tuple[tuple[str, int], ...]
    factor: Fraction


# Decimal prefixes, by symbol and by name.
_PREFIXES = {
    **{"n": "1/1000000000", "μ": "1/1000000", "u": "1/1000000", "m": "1/1000", "c": "1/100", "d": "1/10"},
    **{"": "1", "k": "1000", "M": "1000000", "G": "1000000000"},
}
_NAMED_PREFIXES = {
    **{"nano": "1/1000000000", "micro": "1/1000000", "milli": "1/1000", "centi": "1/100", "deci": "1/10"},
    **{"": "1", "kilo": "1000", "mega": "1000000", "giga": "1000000000"},
}

# Symbols, names, dimension, power of it, factor: what takes prefixes.
_PREFIXED = """
m          meter metre           length       1  1
g          gram gramme           mass         1  1/1000
s          second                time         1  1
L l        liter litre           length       3  1/1000
N          newton                force        1  1
J          joule                 energy       1  1
eV         electronvolt          electronvolt 1  1
W          watt                  power        1  1
V          volt                  voltage      1  1
A          ampere amp            current      1  1
C          coulomb               charge       1  1
Ω          ohm                   resistance   1  1
Hz         hertz                 time        -1  1
Pa         pascal                pressure     1  1
mol        mole                  amount       1  1
cal        calorie               calorie      1  1
Wh         watt-hour             power-hour   1  1
B          byte                  byte         1  1
"""
# Spellings, dimension, factor: what takes none.
_OTHERS = """
inch inches                        length  0.0254
ft foot feet                       length  0.3048
yd yard                            length  0.9144
mi mile                            length  1609.344
米 公尺                             length  1
厘米 公分                           length  1/100
千米 公里                           length  1000
tonne 吨                           mass    1000
oz ounce                           mass    0.028349523125
lb lbs pound                       mass    0.45359237
克                                 mass    1/1000
千克 公斤                           mass    1
sec secs seconde 秒                time    1
min mins minute 分钟                time    60
h hr hrs hour heure 小时            time    3600
day jour 天                        time    86400
week semaine                       time    604800
month mois 个月                     time    2629800
yr year année 年                   time    31557600
dollar usd buck 美元                dollars 1
cent ¢                             dollars 1/100
euro eur 欧元                       euros   1
gbp                                pounds-sterling 1
yen jpy                            yen     1
yuan rmb cny 元 人民币              yuan    1
rupee inr                          rupees  1
° deg degree 度                    angle   1
rad radian                         angle   180
% percent pct                      share   1/100
K kelvin                           kelvin  1
°C celsius                         celsius 1
°F fahrenheit                      fahrenheit 1
"""
CURRENCIES = {"$": "dollar", "€": "euro", "£": "gbp", "¥": "yen", "₹": "rupee", "¢": "cent"}
SINGLE_LETTERS = frozenset("mgsLlNJWVAKhC")
"""Letters that stand for a unit where they follow a number."""


def _table() -> dict[str, Unit]:
    found: dict[str, Unit] = {}
    for line in _PREFIXED.strip().splitlines():
        *spellings, dimension, power, factor = line.split()
        for spelling in spellings:
            named = len(spelling) > 2 and spelling not in ("mol", "cal")
            for prefix, scale in (_NAMED_PREFIXES if named else _PREFIXES).items():
                unit = Unit(((dimension, int(power)),), Fraction(factor) * Fraction(scale))
                found.setdefault(prefix + spelling, unit)
                if named:
                    found.setdefault(prefix + spelling + "s", unit)
    for line in _OTHERS.strip().splitlines():
        *spellings, dimension, factor = line.split()
        for spelling in spellings:
            found[spelling] = Unit(((dimension, 1),), Fraction(factor))
            if len(spelling) > 2 and spelling.isalpha():
                found.setdefault(spelling + "s", found[spelling])
    gallon = Unit((("length", 3),), Fraction("0.003785411784"))
    mile_an_hour = Unit((("length", 1), ("time", -1)), Fraction("0.44704"))
    found |= {"gal": gallon, "gallon": gallon, "gallons": gallon, "mph": mile_an_hour}
    return found | {"kph": Unit((("length", 1), ("time", -1)), Fraction(5, 18))}


_UNITS = _table()
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "平方": 2, "立方": 3}
_DEGREES_OF = re.compile(r"(?:°|degrees?|deg)\s*(celsius|fahrenheit|c|f)\b", re.IGNORECASE)
_FACTOR = re.compile(r"(?P<name>[^\d\s^*/·.{}]+)\s*(?:\^?\s*\{?\s*(?P<power>-?\d)\s*\}?)?")


@lru_cache(maxsize=1024)
def read_unit(text: str) -> Unit | None:
    """The unit that a text such as `cm^2`, `km/h` or `square feet` names; None if it names none that is known."""
    text = text.strip().strip(".").strip()
    of = _DEGREES_OF.fullmatch(text)
    if of is not None:
        return _UNITS["celsius" if of[1][0] in "cC" else "fahrenheit"]
    for word, power in _POWERS.items():
        if text.lower().startswith(word):
            base = _named(text[len(word) :].strip(" .-"))
            return None if base is None else _product([(base, power)])
    known = _named(text)
    if known is not None:
        return known
    factors: list[tuple[Unit, int]] = []
    for number, part in enumerate(re.split(r"\s*/\s*|\s+per\s+", text)):
        for piece in re.split(r"[*·\s]+", part.strip()):
            match = _FACTOR.fullmatch(piece)
            unit = None if match is None else _named(match["name"])
            if match is None or unit is None:
                return None
            factors.append((unit, int(match["power"] or 1) * (-1 if number else 1)))
    return _product(factors) if factors else None


def _named(name: str) -> Unit | None:
    """By its exact spelling, since case tells `mW` from `MW`; names and a few symbols in any case as well."""
    found = _UNITS.get(name)
    lowered = name.lower()
    if found is None and (len(name) > 3 or lowered in ("kg", "km", "cm", "usd", "eur", "hrs", "sec", "min", "lbs")):
        found = _UNITS.get(lowered)
    return found


def _product(factors: list[tuple[Unit, int]]) -> Unit:
    scale = Fraction(1)
    dimensions: dict[str, int] = {}
    for unit, power in factors:
        scale *= unit.factor**power
        for name, own in unit.dimensions:
            dimensions[name] = dimensions.get(name, 0) + own * power
    return Unit(tuple(sorted((name, power) for name, power in dimensions.items() if power)), scale)
