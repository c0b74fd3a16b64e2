"""What the package gives to reroll."""

from __future__ import annotations

from reroll import Dataset, Verifier, hookimpl
from reroll_verifiers_math.verifier import MathVerifier


@hookimpl
def reroll_verifiers() -> list[type[Verifier]]:
    return [MathVerifier]


@hookimpl
def reroll_datasets() -> list[type[Dataset]]:
    from reroll_verifiers_math.datasets import GSM8KDataset, MathDataset

    return [GSM8KDataset, MathDataset]
