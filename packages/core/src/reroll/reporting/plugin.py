"""What the room registers."""

from __future__ import annotations

from reroll.api import ConfigSection, Tracker, hookimpl


@hookimpl
def reroll_config_sections() -> list[type[ConfigSection]]:
    from reroll.reporting.config import OutputSection, TrackersSection

    return [OutputSection, TrackersSection]


@hookimpl
def reroll_trackers() -> list[type[Tracker]]:
    from reroll.reporting.to_tensorboard import TensorBoardTracker
    from reroll.reporting.to_trackio import TrackioTracker
    from reroll.reporting.to_wandb import WandbTracker
    from reroll.reporting.trackers import JsonlTracker

    return [JsonlTracker, TensorBoardTracker, TrackioTracker, WandbTracker]
