"""Tasks: sets of them, prompt files, rendering, the cursor over a run's tasks and its ledger."""
