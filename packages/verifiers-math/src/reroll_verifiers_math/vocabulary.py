"""Names of mathematics, in LaTeX and in plain text, and the words that stand between and beside answers."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FUNCTIONS = _words(
    """
    sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan arccot arcsec arccsc asin acos atan
    log ln lg exp sqrt cbrt abs floor ceil gcd lcm max min sgn sign det arg re im binom
    """
)
GREEK = _words(
    """
    alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi pi varpi rho sigma tau
    upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell hbar
    """
)
SAME_GREEK = {"varepsilon": "epsilon", "vartheta": "theta", "varphi": "phi", "varpi": "pi"}

_STYLES = _words(
    """
    mathbf mathit mathcal mathsf mathfrak boldsymbol bm vec overrightarrow hat widehat tilde widetilde underline pmb
    mathop overleftrightarrow dot boxed fbox
    """
)
_TEXT_STYLES = _words("text textbf textit textrm textsf texttt textnormal mbox emph mathrm operatorname")

COMMANDS = {
    **dict.fromkeys(("cdot", "times", "ast", "cdotp"), "*"),
    **dict.fromkeys(("le", "leq", "leqslant", "leqq"), "<="),
    **dict.fromkeys(("ge", "geq", "geqslant", "geqq"), ">="),
    **dict.fromkeys(("ne", "neq"), "!="),
    **dict.fromkeys(("approx", "simeq", "sim", "thickapprox"), "~"),
    **dict.fromkeys(("equiv", "cong"), "="),
    **dict.fromkeys(("to", "rightarrow", "mapsto", "Rightarrow", "implies", "longrightarrow"), "->"),
    **{"land": "and", "wedge": "and", "lor": "or", "vee": "or"},
    **dict.fromkeys(("ldots", "dots", "cdots", "dotsc", "dotsb", "vdots", "ddots"), "dots"),
    **dict.fromkeys(("lvert", "rvert", "vert", "mid", "Vert", "lVert", "rVert", "|"), "|"),
    **dict.fromkeys(("setminus", "backslash", "smallsetminus"), "setminus"),
    **dict.fromkeys(("quad", "qquad"), "gap"),
    **dict.fromkeys(("overline", "bar"), "overline"),
    **dict.fromkeys(_STYLES, "style"),
    **dict.fromkeys(_TEXT_STYLES, "text"),
    **{"{": "\\{", "}": "\\}", "lbrace": "\\{", "rbrace": "\\}", "langle": "<(", "rangle": ")>", "div": "/"},
    **{"lt": "<", "gt": ">", "in": "in", "notin": "notin", "cup": "cup", "cap": "cap", "pm": "pm", "mp": "mp"},
    **{"frac": "frac", "sqrt": "root", "binom": "binom", "dbinom": "binom", "tbinom": "binom", "choose": "choose"},
    **{"lfloor": "floor(", "rfloor": ")floor", "lceil": "ceil(", "rceil": ")ceil", "mathbb": "mathbb"},
    **{"pmod": "pmod", "bmod": "mod", "mod": "mod", "prime": "'", "colon": ":"},
}
"""LaTeX command → kind of its token."""

SYMBOLS = {
    **{name: name for name in ("infty", "emptyset", "angle", "triangle", "partial", "nabla", "perp", "parallel")},
    **{"varnothing": "emptyset", "Re": "Re", "Im": "Im"},
}
"""LaTeX command → name of the symbol."""

WORDS = {
    **dict.fromkeys(_words("and und et y 和 与 及 و"), "and"),
    **dict.fromkeys(_words("or ou oder 或 或者 أو"), "or"),
    **dict.fromkeys(("union", "cup"), "cup"),
    **dict.fromkeys(("infinity", "inf", "oo", "infty"), "infty"),
    **{"times": "*", "mod": "mod"},
}
"""Word of plain text → kind of its token; `infty` is a symbol."""

STOP_WORDS = _words(
    """
    is the so we to of it be an at as if for are was has not no yes all per by on us he she him her they our its this
    that then thus but can may any one two ten six and or my me do go true hence since let got gets get in am pm up ok
    vs hi de la le un en du il im es el
    """
)
"""Short words that are no products of letters."""

MULTIPLES = {
    **{"dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12},
    **{"百": 100, "千": 1000, "万": 10**4, "亿": 10**8},
}
"""Words behind a number that multiply it."""

NO_UNITS = _words(
    """
    is are was be not isn't no nor never wrong incorrect false minus plus less more greater fewer than or half quarter
    third a an the squared cubed factorial times over under negative if because since as while but maybe perhaps
    possibly hmm instead rather between to from either unless except without approximately about root
    """
)
"""Words that, behind a number, make it another one or take it back."""
