"""Task sets for cursors, and cursors over them."""

from reroll.api import RenderedPrompt, Task, TaskSet
from reroll.tasks.cursor import Cursor


class Numbers(TaskSet):
    name = "numbers"

    def __init__(self, size):
        super().__init__()
        self.size = size

    def __len__(self):
        return self.size

    def task(self, index):
        if not 0 <= index < self.size:
            raise IndexError(index)
        return Task(f"{index}", {"v": "1"}, "numbers", index, str(index))


class Streaming(Numbers):
    """Can only be walked."""

    def __len__(self):
        raise TypeError("streaming")

    def task(self, index):
        raise AssertionError("a streaming set is not asked for a task by its index")

    def __iter__(self):
        return map(super().task, range(self.size))


def render(task):
    return RenderedPrompt(task.prompt, tuple(range(len(task.prompt))), "", "")


def cursor(task_set, **options):
    settings = {"filters": {}, "max_prompt_len": 100, "seed": 0, **options}
    return Cursor(task_set, render, **settings)
