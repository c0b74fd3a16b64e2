"""Answers judged by mathematical equality, for reroll."""
