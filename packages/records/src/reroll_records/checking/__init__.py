"""`reroll records check`."""
