"""Instruction following judged by rule, for reroll."""
