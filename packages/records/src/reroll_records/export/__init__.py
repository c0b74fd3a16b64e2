"""`reroll records export`."""
