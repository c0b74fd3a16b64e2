"""reasoning-gym for reroll: its generators as the task set, and its scorers as the verifier, `reasoning-gym`."""
