"""`reroll records summarize`."""
