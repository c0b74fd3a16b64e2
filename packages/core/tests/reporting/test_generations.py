"""Which groups are shown to people, and what of them."""

import json

from contexts import CONTEXT
from hypothesis import given
from hypothesis import strategies as st

from reroll.api import Decision, Group, Node, RenderedPrompt, Task, Trace, Tracker, Verdict
from reroll.reporting.generations import COLUMNS, chosen, rows, shown
from reroll.reporting.trackers import Trackers


def group_of(row=0, messages=(), reward=1.0, detail=""):
    task = Task("what is 1+1?", {"v": "2"}, "set", row, str(row))
    nodes = [Node(None, {"role": "user", "content": "what is 1+1?"}, False, [1], [False])]
    for message in messages:
        nodes.append(Node(len(nodes) - 1, message, message["role"] == "assistant", [2], [True]))
    trace = Trace(f"trace-{row}", task, nodes, verdicts={"v": Verdict(reward, {}, "ok", detail)})
    rendered = RenderedPrompt("<what is 1+1?>", (1,), "", "")
    return Group(f"o-{row}", row, 0, 0, task, rendered, [trace], [0], {"v": 1.0}, [reward], env_name="sums")


@given(st.integers(), st.integers(0, 1000), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_shows_what_a_smaller_one_does(seed, collection, one, other):
    small, large = sorted([one, other])
    groups = [group_of(row) for row in range(20)]
    picked = [{group.group_index for group in groups if chosen(group, collection, seed=seed, rate=rate)}
              for rate in (0.0, small, large, 1.0)]  # fmt: skip
    assert picked[0] == set()
    assert picked[1] <= picked[2] <= picked[3] == set(range(20))


def test_about_the_share_is_chosen_and_others_in_other_collections():
    groups = [group_of(row) for row in range(2000)]
    picked = [[group for group in groups if chosen(group, number, seed=7, rate=0.1)] for number in (0, 1)]
    assert all(150 < len(found) < 250 for found in picked)
    assert picked[0] != picked[1]


def test_an_answer_stands_as_it_is_and_a_conversation_with_roles():
    answer = [{"role": "assistant", "content": "2"}]
    found = shown(group_of(messages=answer, detail="found 2"), "passed", 3)
    assert found == {
        "collection": 3,
        "task": group_of().task.key,
        "source": "sums",
        "outcome": "passed",
        "prompt": "<what is 1+1?>",
        "responses": [
            {
                "text": "2",
                "reward": 1.0,
                "verdicts": {"v": {"state": "ok", "score": 1.0, "detail": "found 2"}},
                "stop_condition": None,
                "weight_versions": [],
            }
        ],
    }
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    said = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "it is 2"},
    ]
    text = shown(group_of(messages=said), "passed", 0)["responses"][0]["text"]
    assert text == f"[assistant] {json.dumps(call)}\n[tool] 2\n[assistant] it is 2"


@given(st.text(), st.floats())
def test_anything_a_model_or_a_verifier_says_becomes_plain_json(text, score):
    group = group_of(messages=[{"role": "assistant", "content": text}], detail=text)
    group.traces[0].verdicts["v"] = Verdict(score, {}, "ok", text)
    found = shown(group, "passed", 0)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert [len(row) for row in rows([found])] == [len(COLUMNS)]


class Shows(Tracker):
    name = "shows"
    shows_groups = True

    def __init__(self):
        super().__init__()
        self.heard = []

    def open(self, context):
        pass

    def log(self, step, metrics):
        self.heard.append(step)

    def log_groups(self, step, groups):
        self.heard.append([group["task"] for group in groups])


class ShowsNone(Shows):
    name = "shows none"
    shows_groups = False


def test_a_group_that_cannot_be_shown_is_told_once_and_costs_no_metrics():
    tracker, told = Shows(), []
    trackers = Trackers([tracker], told.append, 1.0)
    trackers.open(CONTEXT)
    broken = group_of()
    broken.rewards = []
    for step in (1, 2):
        trackers.log(step, {})
        trackers.log_groups(step, 0, [(broken, Decision("passed"))])
    assert tracker.heard == [1, 2]
    assert len(told) == 1 and "no conversations are given to trackers any more" in told[0]


def test_trackers_that_show_none_are_told_nothing():
    shows, none = Shows(), ShowsNone()
    trackers = Trackers([shows, none], sample_rate=1.0)
    trackers.open(CONTEXT)
    trackers.log_groups(1, 0, [(group_of(), Decision("passed"))])
    assert (shows.heard, none.heard) == ([[group_of().task.key]], [])
