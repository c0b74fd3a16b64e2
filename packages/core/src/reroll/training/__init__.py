"""Training: the objective, micro-batches, the optimizer step, and the process that holds the model."""
