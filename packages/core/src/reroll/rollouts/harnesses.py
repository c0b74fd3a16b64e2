"""The built-in harness: one question, one answer."""

from __future__ import annotations

from reroll.api import Completion, GenerationRequest, Harness, HarnessContext, Node, RenderedPrompt, Task, Trace


class SingleTurn(Harness):
    """The prompt, then one sampled assistant message."""

    name = "single_turn"

    async def run(self, task: Task, rendered: RenderedPrompt, context: HarnessContext) -> Trace:
        trace = Trace(id=context.trace_id, task=task, nodes=prompt_nodes(task, rendered))
        request = GenerationRequest(context.trace_id, list(rendered.token_ids), context.sampling)
        completion = await context.generate(request)
        trace.nodes.append(sampled_node(completion, len(trace.nodes) - 1, context))
        trace.is_completed = completion.finish_reason != "abort"
        trace.stop_condition = completion.finish_reason
        trace.timing = dict(completion.timing)
        return trace


def prompt_nodes(task: Task, rendered: RenderedPrompt) -> list[Node]:
    """A node a message. The template renders messages together, so the last node carries all tokens."""
    nodes = [
        Node(parent=index - 1 if index else None, message=message, sampled=False, token_ids=[], mask=[])
        for index, message in enumerate(task.messages)
    ]
    nodes[-1].token_ids = list(rendered.token_ids)
    nodes[-1].mask = [False] * len(rendered.token_ids)
    return nodes


def sampled_node(completion: Completion, parent: int, context: HarnessContext) -> Node:
    """The engine's answer as a node: ids as sampled, all of them carrying loss."""
    return Node(
        parent=parent,
        message={"role": "assistant", "content": context.decode(completion.output_ids)},
        sampled=True,
        token_ids=completion.output_ids,
        mask=[True] * len(completion.output_ids),
        logprobs=completion.logprobs,
        weight_versions=completion.weight_versions,
        finish_reason=completion.finish_reason,
        seed=completion.seed,
        usage={"completion_tokens": len(completion.output_ids)},
    )
