"""Text before it is read as mathematics: one spelling for what looks the same."""

from __future__ import annotations

import re
import unicodedata
from html import unescape

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿˣ", "0123456789+-()nx")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉₊₋ₙ", "0123456789+-n")
_SUPERSCRIPT_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿˣ]+")
_SUBSCRIPT_RUN = re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋ₙ]+")

# What each line's characters are read as, which stands behind the last.
_CHARACTERS = r"""
− – — ‐ ‑ ﹣  -
× ✕         \times
· ⋅ ∙ •     \cdot
∗           *
÷           \div
⁄ ∕         /
≤ ⩽ ≦       \le
≥ ⩾ ≧       \ge
≠           \ne
≈ ≃         \approx
≅           \cong
≡           \equiv
∈           \in
∉           \notin
±           \pm
∓           \mp
∞           \infty
√           \sqrt
∛           \sqrt[3]
∜           \sqrt[4]
∪           \cup
∩           \cap
∖           \setminus
∅           \emptyset
ℝ           \mathbb{R}
ℤ           \mathbb{Z}
ℕ           \mathbb{N}
ℚ           \mathbb{Q}
ℂ           \mathbb{C}
→ ⇒ ⟹       \to
… ⋯         \dots
′ ’ ‘       '
″           ''
⟨ 〈         \langle
⟩ 〉         \rangle
⌊           \lfloor
⌋           \rfloor
⌈           \lceil
⌉           \rceil
∠           \angle
△           \triangle
∨           \lor
∧           \land
º ˚         °
٪ ％        %
، 、         ,
؛           ;
٫           .
٬           ,
ϕ           \phi
"""
_INVISIBLE = "\u200b\u200c\u200d\ufeff\u2061\u2062\u00ad\u200f\u200e"


def _characters() -> dict[str, str]:
    found = dict.fromkeys(_INVISIBLE, "")
    for line in _CHARACTERS.strip().splitlines():
        *characters, text = line.split()
        found |= dict.fromkeys(characters, f" {text} " if text.startswith("\\") else text)
    return found


_GREEK = {
    chr(code): "\\" + unicodedata.name(chr(code)).rpartition(" ")[2].lower() + " "
    for code in (*range(0x3B1, 0x3C2), *range(0x3C3, 0x3CA))
} | {"Δ": r"\Delta ", "Ω": r"\Omega ", "Σ": r"\Sigma ", "Φ": r"\Phi ", "λ": r"\lambda "}
_TABLE = str.maketrans(_characters() | _GREEK)
_VULGAR = re.compile("[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞⅐⅑⅒]")

_NOISE = re.compile(
    r"\\(?:left|right|middle|displaystyle|textstyle|scriptstyle|limits|nolimits|hline|bigl|bigr|Bigl|Bigr|biggl|biggr"
    r"|big|Big|bigg|Bigg|hfill|noindent|centering|mathstrut|strut|nonumber)(?![A-Za-z])(?:(?<=left)\.|(?<=right)\.)?"
    r"|\\(?:label|tag|color|textcolor)\*?\{[^{}]*\}"
)
_SPACE = re.compile(r"\\(?:[hv]space|[hv]?phantom)\*?\{[^{}]*\}")
_ESCAPED_TWICE = re.compile(
    r"(?<!\\)\\\\(?=(?:boxed|d?frac|tfrac|sqrt|text|left|right|pi|cdot|times|le|ge|infty|in|cup|begin|end)(?![a-z]))"
)
_WRITTEN_NEWLINE = re.compile(r"\\n(?=\\n|\s|\\\[|\\\(|\*|[A-Z]|$)")
_DEGREES = re.compile(
    r"\^\s*(?:\{\s*\\(?:circ|degree)\s*\}|\\(?:circ|degree)(?![a-z]))|\\(?:degree|textdegree)(?![a-z])"
    r"|(?<=\d)\s*\^\s*(?:\{o\}|o(?![a-zA-Z]))"
)
_GROUPED_DIGITS = re.compile(r"(?<=\d)(?:\{,\}|,\\!\s*|\\,|,?\\ |\\;|\\:|,\{\}|[’'\u2009\u202f\u00a0])(?=\d{3}(?!\d))")
_ENTITIES = re.compile(r"&(?:lt|gt|le|ge|amp|nbsp|times|pi|infin|minus|deg);")
_GLUED = re.compile(r"\\q?quad(?=[A-Za-z])")
_TIMES_TEN = re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*(?:\^|\*\*))")
_BRACED_COMMA = re.compile(r"(?<=\d)\{,\}(?=\d)")
_THIN_SPACES = re.compile(r"\\[,;:>!]|(?<!\\)\\ |~")
_FRACTIONS = re.compile(r"\\[dtc]frac(?![a-z])")
_ARTICLES = re.compile(r"^(?:a|an|the)\s+")
_STYLES = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|textnormal|mathrm|mathbf|mbox|bf|rm|it|emph|underline)(?![a-z])"
)


def tidy(text: str) -> str:
    """One spelling for characters and commands that differ in their looks alone; the meaning stays."""
    if "&" in text:
        text = _ENTITIES.sub(lambda entity: unescape(entity[0]), text)
    if not text.isascii():
        text = _SUPERSCRIPT_RUN.sub(lambda run: "^{" + run[0].translate(_SUPERSCRIPTS) + "}", text)
        text = _SUBSCRIPT_RUN.sub(lambda run: "_{" + run[0].translate(_SUBSCRIPTS) + "}", text)
        text = _VULGAR.sub(_vulgar, text)
        text = unicodedata.normalize("NFKC", text.translate(_TABLE)).translate(_TABLE)
        text = "".join(str(unicodedata.decimal(char)) if char.isdecimal() else char for char in text)
    if "\\" in text:
        text = _ESCAPED_TWICE.sub(r"\\", text)
        text = _WRITTEN_NEWLINE.sub(" ", text)
        text = _NOISE.sub("", text)
        text = _SPACE.sub(" ", text)
        text = _GLUED.sub(r"\g<0> ", text)
        text = _FRACTIONS.sub(r"\\frac", text)
    text = _DEGREES.sub("°", text)
    text = _TIMES_TEN.sub(r"\\times ", text)
    text = _GROUPED_DIGITS.sub("", text)
    text = _BRACED_COMMA.sub(".", text)
    return _THIN_SPACES.sub(" ", text).replace("\\$", "$").replace("\\%", "%").replace("\\#", "#").strip()


def _vulgar(character: re.Match[str]) -> str:
    above, _, below = unicodedata.normalize("NFKC", character[0]).partition("⁄")
    return f" \\frac{{{above}}}{{{below}}}"


def folded(text: str) -> str:
    """What is left of an answer in words: without case, spaces, LaTeX styles and outer punctuation."""
    text = _STYLES.sub(" ", tidy(text))
    text = re.sub(r"[{}$*`\"“”]|\\[()\[\]]", " ", text).strip().strip(".,;:!?'").strip().casefold()
    return re.sub(r"\s+", "", _ARTICLES.sub("", text))
