"""What `reroll plan` shows."""
