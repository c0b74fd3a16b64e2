"""Tasks of one dataset, and traces that answer them."""

from reroll import Node, Trace
from reroll_verifiers_reasoning_gym.task_set import ReasoningGymConfig, ReasoningGymTasks


def task_of(dataset, index=0, **options):
    return ReasoningGymTasks(ReasoningGymConfig(dataset=dataset, options=options)).task(index)


def answered(task, text):
    node = Node(None, {"role": "assistant", "content": text}, True, [1], [True])
    return Trace("0", task, [node])


def entry_of(task):
    return task.targets["reasoning-gym"]["entry"]
