"""The command line: one module a command."""

from reroll.cli.app import main

__all__ = ["main"]
