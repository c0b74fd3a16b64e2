"""What the tests of the verifier share."""

import pytest

from reroll import Node, Task, Trace
from reroll_verifiers_math.verifier import MathConfig, MathVerifier


@pytest.fixture(scope="session")
def judge():
    """Asks the verifier: `judge(gold, completion, **options)`."""
    MathVerifier().warm_up()

    def judge(gold, completion, **options):
        task = Task("", {"math": gold}, "test", 0, "0")
        node = Node(None, {"role": "assistant", "content": completion}, True, [1], [True])
        return MathVerifier(MathConfig(**options)).score(task, Trace("t", task, [node]))

    return judge
