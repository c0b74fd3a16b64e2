"""Plugins: how they are found, loaded one by one, and asked for what they give."""

from reroll.plugins.manager import PluginManager, PluginRecord, Provided, installed_plugins, load_plugins

__all__ = ["PluginManager", "PluginRecord", "Provided", "installed_plugins", "load_plugins"]
