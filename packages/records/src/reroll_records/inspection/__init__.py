"""`reroll records inspect`."""
