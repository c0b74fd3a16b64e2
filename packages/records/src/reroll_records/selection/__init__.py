"""`reroll records select`, and the filter that skips by its tables."""
