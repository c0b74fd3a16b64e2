"""Inference records for reroll: every scored group's outcome in one store."""
