"""What of a completion is judged, and the variants that loose judging accepts."""

from __future__ import annotations

from reroll import without_thinking


def final_answer(completion: str, keep_thinking: bool = False) -> str:
    """The answer of a completion, without blank lines before it and space after it; empty if there is none.

    What the model thought is left out, as `reroll.without_thinking` finds it, unless `keep_thinking`.
    """
    answer = completion if keep_thinking else without_thinking(completion)
    answer = answer.rstrip()
    # The first line keeps its indentation: an instruction may ask for one.
    start = len(answer) - len(answer.lstrip())
    return answer[answer.rfind("\n", 0, start) + 1 :]


def loose_variants(answer: str) -> list[str]:
    """The eight readings of the IFEval paper, those that are blank or equal to an earlier one left out.

    As it is, without its first line, its last, and both; each with and without asterisks. The answer comes first.
    """
    written = answer.split("\n")
    shortened = ("\n".join(part).strip() for part in (written[1:], written[:-1], written[1:-1]))
    readings = [answer, *shortened]
    both = [*readings, *(reading.replace("*", "") for reading in readings)]
    return [variant for variant in dict.fromkeys(both) if variant.strip()]
