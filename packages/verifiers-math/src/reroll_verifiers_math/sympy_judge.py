"""What this package's own grammar does not read, judged by Math-Verify with SymPy: sums, integrals, limits, logic.

Nothing is run as a program: Math-Verify's reader of LaTeX alone is asked, which hands on digits. Its other one, for
bare expressions, gives them to Python's `eval`; nor is SymPy's own ever asked.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

LENGTH = 300
"""Characters of a formula that SymPy is asked about: its work grows without bound, and an answer hardly."""
_OPERATOR = re.compile(r"\\(?:sum|int|iint|oint|prod|lim)(?![a-zA-Z])")
_DEGENERATE = re.compile(r"\^\s*\{?\s*\(?\s*[\w\\.]+\s*\^|\^\s*\{?\s*-?\d{3}|(?:\\frac\s*){4}|\d{30}|!\s*!|\d{3}\s*!")


def is_operation(text: str) -> bool:
    """Whether a formula has a sum, an integral or a limit in it, and a size that answers have. Only a target of this
    kind is given to SymPy: an answer should be worked out, and an integral in it could take for ever."""
    return len(text) <= LENGTH and bool(_OPERATOR.search(text)) and not is_degenerate(text)


def is_degenerate(text: str) -> bool:
    """Whether SymPy could take for ever."""
    return len(text) > LENGTH or bool(_DEGENERATE.search(text)) or "\\text" in text


@lru_cache(maxsize=4096)
def parsed(text: str) -> Any:
    """The expressions that Math-Verify reads in a tidied formula, as a list; empty if it reads none."""
    from math_verify import LatexExtractionConfig, parse

    # What it says about failures is no news: they are verdicts. The time limits it offers are signals,
    # which work in a main thread alone; the deadline of whoever calls holds instead.
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    config = [LatexExtractionConfig()]
    try:
        return parse(f"${text}$", config, fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True)
    except MemoryError:
        raise  # says nothing about the formula
    except Exception:
        return []


def equal_formulas(gold: str, answer: str) -> bool:
    """Whether Math-Verify finds two tidied formulas equal; what it cannot read or compare is not."""
    from math_verify import verify

    try:
        return bool(verify(parsed(gold), parsed(answer), timeout_seconds=None, raise_on_error=True))
    except MemoryError:
        raise
    except Exception:
        return False
