"""A worker that compiles something, for the tests of the cache."""

import os


class Compiling:
    def compile(self):
        """What a small compiled function gives, and how often inductor's cache of graphs was hit and missed."""
        import torch
        from torch._dynamo.utils import counters

        function = torch.compile(lambda x: torch.sin(x) * 2 + x)
        value = function(torch.ones(8)).sum().item()
        found = counters["inductor"]
        return value, found["fxgraph_cache_hit"], found["fxgraph_cache_miss"]

    def environment(self):
        return dict(os.environ)
