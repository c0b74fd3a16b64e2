"""The verifier, asked as a run that reads saved rollouts would."""

import json

import pytest
from answering import answered

from reroll import Task
from reroll_verifiers_reasoning_gym.verifier import ReasoningGymVerifier


@pytest.fixture
def judge():
    def judge(task, text, **options):
        saved = Task(**{**vars(task), "targets": json.loads(json.dumps(task.targets, allow_nan=False))})
        verifier = ReasoningGymVerifier(ReasoningGymVerifier.Config(**options))
        return verifier.score(saved, answered(saved, text))

    return judge
