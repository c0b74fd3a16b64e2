"""Models on disk: where one is, what it needs, how it is loaded."""
