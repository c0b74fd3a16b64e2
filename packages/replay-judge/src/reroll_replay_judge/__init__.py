"""Replay derivation for reroll: ask whether a finished rollout was correct."""
