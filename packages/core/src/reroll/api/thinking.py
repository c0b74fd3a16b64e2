"""What of a model's text is said, and what was only thought."""

from __future__ import annotations

ENDS = ("</think>", "</thinking>", "</thought>", "</reasoning>", "◁/think▷", "<|channel|>final<|message|>")
"""Marks that end thinking, as models of several families write them; the last is the harmony format's."""
BEGINS = ("<think>", "<thinking>", "<thought>", "<reasoning>", "◁think▷", "<|channel|>analysis<|message|>")


def without_thinking(text: str) -> str:
    r"""What a model says once it has thought: the text behind the last end mark, up to the first begin mark there.

    A begin mark behind the last end mark is never ended, so that a text which was cut off within its thinking says
    what stands before that, most often nothing. White space stays as it is. Takes time in proportion to the text.

        >>> without_thinking("<think>4? No.</think>\nIt is 5.")
        '\nIt is 5.'
        >>> without_thinking("A prompt that opened the thinking.</think>5")
        '5'
        >>> without_thinking("<think>4? Or perhaps")
        ''
        >>> without_thinking("It is 5.")
        'It is 5.'
    """
    text = text[max(text.rfind(mark) + len(mark) if mark in text else 0 for mark in ENDS) :]
    begun = [place for place in map(text.find, BEGINS) if place >= 0]
    return text[: min(begun)] if begun else text
