"""The built-in verifiers."""

import pytest
from pydantic import ValidationError

from reroll.api import Node, Task, Trace
from reroll.rollouts.verifiers import ExactMatch, Regex, RegexConfig, TextConfig


def judge(verifier, completion, target):
    task = Task("", {verifier.name: target}, "test", 0, "0")
    node = Node(None, {"role": "assistant", "content": completion}, True, [1], [True])
    verdict = verifier.score(task, Trace("t", task, [node]))
    return verdict.score, verdict.components.get("parsed"), verdict.state


@pytest.mark.parametrize(
    ("config", "completion", "target", "expected"),
    [
        ({}, " yes\n", "yes", (1.0, 1.0, "ok")),
        ({}, "Yes", "yes", (0.0, 1.0, "ok")),
        ({"case_sensitive": False}, "STRASSE", "straße", (1.0, 1.0, "ok")),
        ({"strip": False}, " yes", "yes", (0.0, 1.0, "ok")),
        ({}, "b", ["a", "b"], (1.0, 1.0, "ok")),
        ({}, " \n", "yes", (0.0, 0.0, "ok")),
        ({}, "yes", 3, (None, None, "unknown")),
    ],
)
def test_exact_match(config, completion, target, expected):
    assert judge(ExactMatch(TextConfig(**config)), completion, target) == expected


@pytest.mark.parametrize(
    ("config", "completion", "target", "expected"),
    [
        ({"pattern": r"#### (.*)"}, "so\n#### 4 \n#### 5", "5", (1.0, 1.0, "ok")),
        ({"pattern": r"#### (.*)", "which": "first"}, "so\n#### 4 \n#### 5", "4", (1.0, 1.0, "ok")),
        ({"pattern": r"\d+"}, "4 or 5", "5", (1.0, 1.0, "ok")),
        ({"pattern": r"\d+"}, "4 or 5", "4", (0.0, 1.0, "ok")),
        ({"pattern": r"\d+"}, "none", "4", (0.0, 0.0, "ok")),
        ({"pattern": r"(\d+)|none"}, "none", "none", (0.0, 0.0, "ok")),
        ({"pattern": r"\w+$", "case_sensitive": False}, "it is Yes", ["y", "yes"], (1.0, 1.0, "ok")),
        # the target is compared, not searched for
        ({"pattern": r".+"}, "aaa", "a+", (0.0, 1.0, "ok")),
    ],
)
def test_regex(config, completion, target, expected):
    assert judge(Regex(RegexConfig(**config)), completion, target) == expected


def test_an_invalid_pattern_is_refused_with_the_options():
    with pytest.raises(ValidationError, match="is no regular expression: missing"):
        RegexConfig(pattern="(")
    with pytest.raises(ValidationError, match="pattern"):
        RegexConfig()


@pytest.mark.parametrize("verifier", [ExactMatch(), Regex(RegexConfig(pattern="x"))])
def test_targets_are_checked(verifier):
    assert verifier.check_target("a") is None
    assert verifier.check_target(["a", "b"]) is None
    for bad in (None, 1, [], ["a", 2], {"a": 1}):
        assert verifier.name in verifier.check_target(bad)
