"""Task directories as Harbor's users have them, and conversations about them with a script in place of an engine."""

import asyncio
import json
from functools import cache
from pathlib import Path

from reroll.api import Completion, HarnessContext, SamplingParams, VersionSpan
from reroll.models.files import resolve_model
from reroll.tasks.render import Renderer
from reroll_harbor.task_set import HarborTasks, HarborTasksConfig

END = "<|im_end|>"
CONFIG = """
version = "1.0"

[metadata]
author_name = "somebody"
difficulty = "easy"

[verifier]
timeout_sec = 60.0

[agent]
timeout_sec = 60.0

[environment]
build_timeout_sec = 60.0
"""
TEST = """#!/bin/bash
if [ "$(cat greeting.txt 2>/dev/null)" = "hello" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""


def write_task(folder, config=CONFIG, instruction="Write hello to greeting.txt.\n", test=TEST, environment=None):
    """A task directory; None leaves a part out. `environment` has file names and texts of that directory."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"task.toml": config, "instruction.md": instruction, "tests/test.sh": test}
    texts |= {f"environment/{name}": text for name, text in (environment or {"Dockerfile": "FROM scratch\n"}).items()}
    for name, text in texts.items():
        if text is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    return folder


def tasks_in(path, **options):
    return HarborTasks(HarborTasksConfig(path=path, **options))


def bash(command):
    return f'<tool_call>\n{{"name": "bash", "arguments": {json.dumps({"command": command})}}}\n</tool_call>'


@cache
def renderer():
    return Renderer(resolve_model("builtin:tiny-tools"))


class Script:
    """Says one text after another, as an engine would; waits for ever where it has nothing more to say."""

    def __init__(self, *turns):
        self.turns = list(turns)
        self.given = []
        self.prompts = []
        self.waits = asyncio.Event()

    async def __call__(self, request):
        self.prompts.append(request.input_ids)
        if not self.turns:
            self.waits.set()
            await asyncio.Event().wait()
        said = self.turns.pop(0)
        if isinstance(said, Exception):
            raise said
        ids = renderer().tokenizer.encode(said + END).ids
        values = [-0.5 - len(self.given) - number / 1000 for number in range(len(ids))]
        spans = [VersionSpan(0, 0, len(ids))]
        self.given.append(Completion(request.request_id, ids, values, spans, "stop", request.sampling.seed, {}))
        return self.given[-1]


def context_of(script, trace_id="trace"):
    made = renderer()
    return HarnessContext(
        generate=script,
        render=made.render,
        decode=made.decode,
        sampling=SamplingParams(max_new_tokens=500, seed=3),
        max_context=None,
        trace_id=trace_id,
        parse=made.parse,
        extend=made.extend,
    )


async def rollout(harness, task, script):
    return await harness.run(task, renderer().render(task), context_of(script))


def folder_of(task) -> Path:
    return Path(task.targets["harbor"]["path"])
