"""Checkpoints: what a run saves of itself so that another process can go on with it."""
