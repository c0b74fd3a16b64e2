"""The run file: TOML, `--set`, sections from plugins, every fault at once, the resolved plan."""

from reroll.config.loader import LoadedRunFile, load_run_file

__all__ = ["LoadedRunFile", "load_run_file"]
