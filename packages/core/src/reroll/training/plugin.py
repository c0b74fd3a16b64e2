"""What the room registers."""

from __future__ import annotations

from reroll.api import Advantage, ConfigSection, Correction, hookimpl


@hookimpl
def reroll_config_sections() -> list[type[ConfigSection]]:
    from reroll.training.config import ObjectiveSection, TrainerSection

    return [ObjectiveSection, TrainerSection]


@hookimpl
def reroll_advantages() -> list[type[Advantage]]:
    from reroll.training.advantages import DrGrpo, Grpo, ReinforcePlusPlusBaseline, Rloo

    return [Grpo, DrGrpo, Rloo, ReinforcePlusPlusBaseline]


@hookimpl
def reroll_corrections() -> list[type[Correction]]:
    from reroll.training.corrections import (
        IcePop,
        MaskedImportanceSampling,
        NoCorrection,
        TruncatedImportanceSampling,
    )

    return [TruncatedImportanceSampling, IcePop, MaskedImportanceSampling, NoCorrection]
