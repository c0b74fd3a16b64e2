"""What the package gives to reroll."""

from __future__ import annotations

from reroll import Dataset, Verifier, hookimpl
from reroll_verifiers_if.verifier import InstructionsVerifier


@hookimpl
def reroll_verifiers() -> list[type[Verifier]]:
    return [InstructionsVerifier]


@hookimpl
def reroll_datasets() -> list[type[Dataset]]:
    from reroll_verifiers_if.datasets import InstructionsDataset

    return [InstructionsDataset]
