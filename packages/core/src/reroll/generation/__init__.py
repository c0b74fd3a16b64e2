"""Rollouts with frozen weights: pass rates, and the corpus."""
