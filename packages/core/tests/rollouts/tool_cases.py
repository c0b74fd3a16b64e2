"""Conversations with tools, answered by a script in place of an engine; everything else is real."""

import asyncio
import json
import sys
from pathlib import Path

from reroll.api import Completion, Group, HarnessContext, SamplingParams, Task, Tool, VersionSpan
from reroll.models.files import resolve_model
from reroll.rollouts.groups import check_trace
from reroll.rollouts.tool_loop import ToolLoop, ToolLoopConfig
from reroll.tasks.calculator import Calculator
from reroll.tasks.render import Renderer
from reroll.traces.samples import unweighted_samples

sys.path.insert(0, str(Path(__file__).parents[1] / "tasks"))

from call_templates import READABLE, TAGS

END = "<|im_end|>"
FORGETFUL = TAGS.replace(
    "message.role + '\\n' + message.content }}", "message.role + '\\n' + said(message) }}"
).replace(
    "{%- for message in messages %}",
    "{%- macro said(message) %}{{ message.content.split('</think>')[-1] if message.role == 'assistant' "
    "else message.content }}{% endmacro %}\n{%- for message in messages %}",
    1,
)
"""Leaves out what was thought as soon as the turn is over."""

TEMPLATES = {**READABLE, "forgetful": FORGETFUL}
RENDERERS = {
    name: Renderer(resolve_model("builtin:tiny-math"), TEMPLATES[name]) for name in ("tags", "thinking", "forgetful")
}


class Script:
    """Says one text after another; `(text, reason)` ends for another reason, a list is tokens. A turn is cut at its
    limit."""

    def __init__(self, renderer, turns):
        self.renderer = renderer
        self.turns = list(turns)
        self.requests = []
        self.given = []

    async def __call__(self, request):
        await asyncio.sleep(0)
        place = len(self.requests)
        self.requests.append(request)
        said = self.turns[place]
        text, reason = said if isinstance(said, tuple) else (said, "stop")
        encode = self.renderer.tokenizer.encode
        ids = list(text) if isinstance(text, list) else encode(text).ids
        ids += encode(END).ids if reason == "stop" else []
        room = request.sampling.max_new_tokens
        if len(ids) > room:
            ids, reason = ids[:room], "length"
        first = sum(len(given.output_ids) for given in self.given)
        self.given.append(
            Completion(
                request.request_id,
                ids,
                [-float(first + number + 1) for number in range(len(ids))],
                [VersionSpan(3, 0, len(ids))] if ids else [],
                reason,
                request.sampling.seed,
                {"start": 10.0 * place + 1, "first_token": 10.0 * place + 2, "end": 10.0 * place + 3},
            )
        )
        return self.given[-1]


def call(name="calculator", **arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def add(expression="2 + 2"):
    return call(expression=expression)


def task_of(prompt="What is 2 + 2?"):
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return Task(messages, {"v": "4"}, "set", 0, "0", tools=[Calculator().schema()])


def context_of(renderer, script, tools=None, max_context=None, max_new_tokens=1000, seed=7):
    return HarnessContext(
        generate=script,
        render=renderer.render,
        decode=renderer.decode,
        sampling=SamplingParams(max_new_tokens=max_new_tokens, seed=seed),
        max_context=max_context,
        trace_id="trace",
        tools={"calculator": Calculator(), **(tools or {})},
        parse=renderer.parse,
        extend=renderer.extend,
    )


async def conversation(script, task, config=(), **context):
    renderer = script.renderer
    harness = ToolLoop(ToolLoopConfig(**dict(config)))
    return await harness.run(task, renderer.render(task), context_of(renderer, script, **context))


def converse(*turns, template="tags", task=None, tools=None, context=(), **config):
    """The trace of a conversation, checked for all that must hold of any, and the script that answered."""
    script = Script(RENDERERS[template], turns)
    trace = asyncio.run(conversation(script, task or task_of(), config, tools=tools, **dict(context)))
    check_conversation(trace, script)
    return trace, script


def check_conversation(trace, script):
    """What holds of every trace: it fits together, and tells exactly what the model saw and said."""
    check_trace(trace, "tool_loop")
    sampled = [index for index, node in enumerate(trace.nodes) if node.sampled]
    assert [trace.nodes[index].token_ids for index in sampled] == [given.output_ids for given in script.given]
    for index, request in zip(sampled, script.requests, strict=True):
        seen = [token for at in trace.path(index)[:-1] for token in trace.nodes[at].token_ids]
        assert seen == request.input_ids
    for node in trace.nodes:
        assert node.mask == [node.sampled] * len(node.token_ids)
    told = [value for given in script.given for value in given.logprobs]
    assert sorted(trained(trace)) == sorted(told), "every sampled token carries loss in one sample"
    names = [made["id"] for index in sampled for made in trace.nodes[index].message.get("tool_calls", ())]
    assert len(set(names)) == len(names)
    assert len({request.request_id for request in script.requests}) == len(script.requests)
    assert len({request.sampling.seed for request in script.requests}) == len(script.requests)


def trained(trace):
    """Log-probabilities of the tokens that carry loss, over all samples of the trace."""
    samples = unweighted_samples(
        [Group("o", 0, 0, 0, trace.task, None, [trace], [0], {"v": 1.0}, [1.0])],
        [0],
    )
    return [
        value
        for sample in samples
        for value, active in zip(sample.rollout_logprobs, sample.loss_mask, strict=True)
        if active
    ]


def read(template, ids):
    return RENDERERS[template].tokenizer.decode(ids, skip_special_tokens=False)


class Waits(Tool):
    """Waits for ever, or until `release`; says whether it runs."""

    name = "waits"

    def __init__(self):
        super().__init__()
        self.running = 0
        self.started = asyncio.Event()

    def schema(self):
        return {"type": "function", "function": {"name": self.name}}

    async def call(self, arguments):
        self.running += 1
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.running -= 1


def tool(name, function):
    """A tool around `async function(arguments)`."""

    async def run(self, arguments):
        return await function(arguments)

    schema = {"type": "function", "function": {"name": name}}
    return type(name, (Tool,), {"name": name, "schema": lambda self: schema, "call": run})()
