"""What an evaluation came to: shares of the responses that could be judged."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reroll.api import Group, Node, RenderedPrompt, RerollError, Task, Trace, Verdict
from reroll.rollouts.evaluation import EvaluationError, summarise
from reroll.rollouts.scoring.rewards import combine_rewards

FAILED = Verdict(None, state="timeout", detail="over the deadline")


def response(tokens=3, finish="stop", error=None, **verdicts):
    """A trace with one sampled answer; a number stands for the verdict of that score."""
    trace = Trace("trace", Task("q", {}, "set", 0, "0"))
    trace.nodes = [Node(None, {"role": "assistant", "content": "a"}, True, [1] * tokens, [True] * tokens)]
    trace.nodes[0].finish_reason = finish
    trace.verdicts = {
        name: verdict if isinstance(verdict, Verdict) else Verdict(float(verdict)) for name, verdict in verdicts.items()
    }
    for name, verdict in trace.verdicts.items():
        if not verdict.scored:
            trace.errors.append({"where": f"verifier {name}", "message": f"{verdict.state}: {verdict.detail}"})
    if error:
        trace.errors.append({"where": "engine", "message": error})
    return trace


def group(*traces, weights=None, policy="exclude"):
    names = list(dict.fromkeys(name for trace in traces for name in trace.verdicts)) or ["v"]
    weights = weights or {}
    return Group(
        observation_id="observation",
        group_index=0,
        attempt=0,
        rollout_id=0,
        task=Task("q", dict.fromkeys(names, "1"), "set", 0, "0"),
        rendered=RenderedPrompt("q", (1,), "", ""),
        traces=list(traces),
        seeds=[0] * len(traces),
        verifier_weights=weights,
        rewards=[combine_rewards(trace.verdicts, weights, policy).total for trace in traces],
    )


def result(*groups, skipped=0):
    return summarise("held-out", 4, groups, skipped, "fingerprint")


def found(score, parsed=True):
    return Verdict(float(score), {"parsed": float(parsed)})


def test_accuracy_is_the_share_of_responses_that_are_right():
    told = result(group(response(v=1), response(v=0)), group(response(v=0.5), response(v=0)))
    assert told.accuracy == 0.25
    assert told.reward == 0.375
    assert (told.responses, told.failed) == (4, 0)


def test_a_response_is_right_where_every_verifier_says_so():
    told = result(group(response(v=1, w=1), response(v=1, w=0.9), response(v=0, w=1), response(v=2, w=1)))
    assert told.accuracy == 0.5


def test_the_result_carries_what_it_was_made_of():
    told = result(group(response(tokens=2, finish="length", v=1), response(tokens=4, v=1)), skipped=3)
    assert (told.name, told.step, told.skipped, told.fingerprint) == ("held-out", 4, 3, "fingerprint")
    assert (told.truncated, told.mean_response_tokens) == (0.5, 3.0)


@pytest.mark.parametrize("policy", ["exclude", 0.0, 1.0])
def test_a_response_that_could_not_be_judged_is_in_no_share_under_any_failure_policy(policy):
    told = result(group(response(v=found(1)), response(v=found(0)), response(v=FAILED), policy=policy))
    assert (told.responses, told.failed) == (2, 1)
    assert (told.accuracy, told.reward, told.parse_rate, told.accuracy_parsed) == (0.5, 0.5, 1.0, 0.5)


def test_one_verifier_that_failed_takes_the_whole_response_out_under_a_stated_score():
    told = result(group(response(v=1, w=FAILED), response(v=0, w=1), policy=1.0))
    assert (told.accuracy, told.failed, told.responses) == (0.0, 1, 1)


def test_a_response_without_a_verdict_counts_as_failed():
    told = result(group(response(v=1), response(error="the response ended with abort")))
    assert (told.accuracy, told.responses, told.failed) == (1.0, 1, 1)


def test_a_rejected_answer_is_wrong_and_not_failed():
    told = result(group(response(v=1), response(v=Verdict(0.0, state="rejected"))))
    assert (told.accuracy, told.failed) == (0.5, 0)


@pytest.mark.parametrize("weight", [0.0, -1.0])
def test_verifiers_without_a_positive_weight_do_not_decide_what_is_right(weight):
    told = result(group(response(v=1, penalty=0), response(v=0, penalty=1), weights={"v": 1.0, "penalty": weight}))
    assert told.accuracy == 0.5
    told = result(group(response(v=1, penalty=1), response(v=1, penalty=0), weights={"v": 1.0, "penalty": weight}))
    assert told.accuracy == 1.0
    assert told.reward == 1.0 + weight / 2


def test_a_weight_scales_the_reward_and_not_what_is_right():
    told = result(group(response(v=1), response(v=0), weights={"v": 0.5}))
    assert (told.accuracy, told.reward) == (0.5, 0.25)


def test_nothing_is_said_of_parsing_where_no_verifier_says_it():
    told = result(group(response(v=1), response(v=0)))
    assert (told.parse_rate, told.accuracy_parsed) == (None, None)
    assert not {"eval/held-out/parse_rate", "eval/held-out/accuracy_parsed"} & set(told.metrics())


def test_parse_rate_and_accuracy_among_what_was_parsed():
    told = result(group(response(v=found(1)), response(v=found(0)), response(v=found(0, parsed=False))))
    assert told.parse_rate == pytest.approx(2 / 3)
    assert told.accuracy_parsed == 0.5
    assert told.metrics()["eval/held-out/accuracy_parsed"] == 0.5


def test_an_answer_is_parsed_where_every_verifier_that_says_so_found_one():
    told = result(group(response(v=found(0), w=found(0, parsed=False)), response(v=found(1), w=1)))
    assert told.parse_rate == 0.5
    assert told.accuracy_parsed == 1.0


def test_nothing_parsed_is_no_accuracy_among_it():
    told = result(group(response(v=found(0, parsed=False))))
    assert (told.parse_rate, told.accuracy_parsed, told.accuracy) == (0.0, 0.0, 0.0)


@given(
    st.lists(st.lists(st.sampled_from(["right", "wrong", "unparsed", "failed"]), min_size=1, max_size=5), max_size=5)
)
def test_accuracy_is_parse_rate_times_accuracy_among_parsed_where_unparsed_is_wrong(outcomes):
    assume(any(outcome != "failed" for group_outcomes in outcomes for outcome in group_outcomes))
    verdicts = {"right": found(1), "wrong": found(0), "unparsed": found(0, parsed=False), "failed": FAILED}
    told = result(*(group(*(response(v=verdicts[outcome]) for outcome in of)) for of in outcomes))
    assert told.parse_rate * told.accuracy_parsed == pytest.approx(told.accuracy, abs=1e-12)
    flat = [outcome for of in outcomes for outcome in of]
    assert told.failed == flat.count("failed")
    assert told.accuracy == pytest.approx(flat.count("right") / (len(flat) - told.failed))


def test_nothing_scored_is_an_error_that_names_the_most_frequent_reason():
    stopped = response(error="the response ended with abort")
    with pytest.raises(EvaluationError) as caught:
        result(group(response(v=FAILED), stopped), group(response(v=FAILED)))
    message = str(caught.value)
    assert "'held-out' at step 4 scored none of 3 responses" in message
    assert "timeout: over the deadline" in message
    assert isinstance(caught.value, RerollError)


def test_a_set_whose_prompts_are_all_too_long_says_so():
    with pytest.raises(EvaluationError, match=r"none of 0 responses: it has no responses \(7 prompts are too long\)"):
        result(skipped=7)


def test_all_failed_is_an_error_under_a_stated_score_as_well():
    with pytest.raises(EvaluationError, match="over the deadline"):
        result(group(response(v=FAILED), response(v=FAILED), policy=0.0))
