"""What the package gives to reroll."""

from __future__ import annotations

from reroll import Verifier, hookimpl
from reroll_verifiers_math.verifier import MathVerifier


@hookimpl
def reroll_verifiers() -> list[type[Verifier]]:
    return [MathVerifier]
