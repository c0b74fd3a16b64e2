"""A verifier under which hardly two responses have the same reward, whatever they say."""

from reroll import Verdict, Verifier, hookimpl


class Digits(Verifier):
    """The share of digits in the response."""

    name = "digits"

    def score(self, task, trace):
        text = trace.completion
        return Verdict(sum(character.isdigit() for character in text) / max(len(text), 1))


@hookimpl
def reroll_verifiers():
    return [Digits]
