"""What the room registers."""

from __future__ import annotations

from reroll.api import ConfigSection, Launcher, hookimpl


@hookimpl
def reroll_config_sections() -> list[type[ConfigSection]]:
    from reroll.launch.config import LaunchSection

    return [LaunchSection]


@hookimpl
def reroll_launchers() -> list[type[Launcher]]:
    from reroll.launch.local import LocalLauncher
    from reroll.launch.ray_jobs import RayLauncher
    from reroll.launch.slurm import SlurmLauncher

    return [LocalLauncher, RayLauncher, SlurmLauncher]
