"""Tasks in Harbor's layout, run in Harbor's environments, for reroll."""
