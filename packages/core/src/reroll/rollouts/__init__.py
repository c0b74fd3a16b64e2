"""Rollouts: tasks become scored groups, for training and for evaluation."""
