"""Replay derivation for reroll: resume a saved rollout part-way."""
