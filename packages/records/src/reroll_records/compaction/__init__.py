"""`reroll records compact`."""
