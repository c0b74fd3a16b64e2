"""Replay derivation for reroll: ask for a check of a finished rollout."""
