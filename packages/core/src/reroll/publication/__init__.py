"""Publication: when engines take new weights, and how tensors reach them."""
