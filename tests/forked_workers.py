"""Worker processes that are forked from one which has imported torch and transformers already.

They are workers like any other, `reroll.workers.serve` over a socket; an import a rank is what a test would mostly
wait for.
"""

import multiprocessing
import os
import sys
from contextlib import contextmanager

from reroll.workers import process, serve

PRELOADED = [
    "pytest",
    "reroll.serving.local.worker",
    "reroll.training.worker",
    "reroll.training.corrections",
    "accelerate",
    "transformers.models.qwen3.modeling_qwen3",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "torch._dynamo",  # which transformers and FSDP import at their first forward pass
]


FORKED = ("reroll.training.", "reroll.serving.local.")
"""Targets of workers that import what is preloaded; others would only be larger for it."""


class ForkedProcess:
    """What a `ProcessWorker` asks of a `subprocess.Popen`."""

    def __init__(self, context, before, spec, connection, output):
        arguments = (connection, dict(spec.environment), output.name, before)
        self._process = context.Process(target=_serve, args=arguments)
        self._process.start()
        self.pid = self._process.pid

    def poll(self):
        return self._process.exitcode

    def kill(self):
        self._process.kill()


def _serve(connection, environment, log, before):
    os.environ.update(environment)
    if before is not None:
        before()
    with open(log, "ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.argv = ["serve", str(connection.detach())]
    serve.main()


def forkserver():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


@contextmanager
def forked_workers(context=None, before=None):
    """Trainer ranks and embedded engines that start in here are forked, by default from the server process, which has
    no threads.

    Args:
        before: a function that each worker calls first.
    """
    plain = process._spawn

    def spawn(spec, connection, output):
        if not spec.target.startswith(FORKED):
            return plain(spec, connection, output)
        return ForkedProcess(context or forkserver(), before, spec, connection, output)

    process._spawn = spawn
    try:
        yield
    finally:
        process._spawn = plain
