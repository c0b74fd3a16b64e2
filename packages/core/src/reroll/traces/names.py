"""Where saved rollouts lie; without what reads them, which is more than a run file needs."""

ROLLOUTS = "rollouts"
FILE = "train_rollouts.jsonl"
MARKER = "train_rollouts.done"
UNUSED = "unused_rollouts.jsonl"
"""Scored groups that no collection took when an attempt ended."""
