"""The embedded engine: continuous batching over a Hugging Face model's own forward, in a worker process.

`engine` is the controller's side and imports no torch; everything else runs in the worker.
"""
