"""The maker: groups in order, seeds of siblings, and what each failure costs."""

import asyncio
from types import SimpleNamespace

import pytest

from reroll.api import (
    Completion,
    Engine,
    EngineError,
    Harness,
    Node,
    PluginError,
    RenderedPrompt,
    RequestRefused,
    SamplingParams,
    Task,
    Trace,
    Verdict,
    VersionSpan,
    WorkerDied,
)
from reroll.rollouts.admission import GroupAdmission
from reroll.rollouts.groups import GroupMaker, GroupPlan, check_trace
from reroll.rollouts.harnesses import SingleTurn
from reroll.rollouts.seeds import response_seed
from reroll.serving.router import LeastOutstandingTokensRouter
from reroll.tasks.cursor import Dispatch
from reroll.workers.together import together

ROLLOUT_SEED = 17


class EchoEngine(Engine):
    """Answers with the prompt's tokens. `behave` may give another finish reason, or raise; requests whose place is
    in `hang` never end."""

    name = "echo"

    def __init__(self, behave=lambda place, request: "stop", hang=()):
        super().__init__()
        self.address = "echo"
        self.behave = behave
        self.hang = hang
        self.requests = []
        self.turns = []
        self.turn = 0
        self.cancelled = 0

    async def generate(self, request):
        place = len(self.requests)
        self.requests.append(request)
        self.turns.append(self.turn)
        try:
            # Later requests are answered first, so that no order can come from who is done.
            for _ in range(20 - place):
                await asyncio.sleep(0)
            finish = self.behave(place, request)
            if place in self.hang:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        ids = list(request.input_ids)
        return Completion(
            request.request_id,
            ids,
            [-0.5] * len(ids),
            [VersionSpan(3, 0, len(ids))],
            finish,
            request.sampling.seed,
            {"queued": 1.0, "end": 2.0},
        )


class EqualsTarget:
    """Stands in for the scorer: 1 where the answer is the target."""

    def __init__(self, verdicts=None):
        self.verdicts = verdicts
        self.asked = []

    async def score_group(self, task, traces, keys=None):
        self.asked.append((task.key, [trace.completion for trace in traces]))
        await asyncio.sleep(0)
        if self.verdicts:
            return [dict(found) for found in self.verdicts[: len(traces)]]
        return [{"v": Verdict(float(trace.completion == task.targets["v"]))} for trace in traces]


class RecordingRouter(LeastOutstandingTokensRouter):
    def __init__(self, engines):
        super().__init__(engines)
        self.released = []

    def release(self, group):
        super().release(group)
        self.released.append(group)


def task(row, length=2):
    prompt = " ".join([str(row)] * length)
    return Task(prompt, {"v": prompt}, "set", row, str(row))


def dispatch(row, attempt=0, length=2):
    of = task(row, length)
    return row, Dispatch(of, RenderedPrompt(of.prompt, tuple([row] * length), "", ""), attempt)


def plan(size=3, purpose="train", max_context=100, max_new_tokens=50):
    return GroupPlan(
        rollout_id=6,
        size=size,
        sampling=SamplingParams(temperature=0.7, max_new_tokens=max_new_tokens),
        max_context=max_context,
        purpose=purpose,
    )


def make(engine, scorer=None, harness=None, failure_policy="exclude", weights=None):
    engines = engine if isinstance(engine, list) else [engine]
    return GroupMaker(
        harness=harness or SingleTurn(),
        renderer=SimpleNamespace(render=None, parse=None, extend=None, decode=lambda ids: " ".join(map(str, ids))),
        router=RecordingRouter(engines),
        admission=GroupAdmission(),
        scorer=scorer or EqualsTarget(),
        verifier_weights=weights or {"v": 1.0},
        failure_policy=failure_policy,
        rollout_seed=ROLLOUT_SEED,
    )


async def make_all(maker, dispatches, of):
    return await together(maker.make(index, item, of) for index, item in dispatches)


def produce(maker, *dispatches, of=None):
    async def main():
        return await asyncio.wait_for(make_all(maker, dispatches, of or plan()), 20)

    return asyncio.run(main())


def refuse(*places):
    def behave(place, request):
        if place in places:
            raise RequestRefused("max_new_tokens = 0: give at least 1")
        return "stop"

    return behave


def fail_with(error, place=1):
    def behave(number, request):
        if number == place:
            raise error
        return "stop"

    return behave


def test_groups_come_in_the_order_of_their_dispatches_with_all_that_they_are_made_of():
    engine = EchoEngine()
    maker = make(engine)
    groups = produce(maker, dispatch(5), dispatch(2), dispatch(9, attempt=4))
    assert [group.group_index for group in groups] == [5, 2, 9]
    assert [group.task.source_row for group in groups] == [5, 2, 9]
    assert [group.attempt for group in groups] == [0, 0, 4]
    assert [[trace.completion for trace in group.traces] for group in groups] == [["5 5"] * 3, ["2 2"] * 3, ["9 9"] * 3]
    assert [group.rewards for group in groups] == [[1.0] * 3] * 3
    assert {group.rollout_id for group in groups} == {6}
    assert {group.source for group in groups} == {"train"}
    assert len({group.observation_id for group in groups}) == 3
    assert len({trace.id for group in groups for trace in group.traces}) == 9
    assert [request.input_ids for request in engine.requests] == [[5, 5]] * 3 + [[2, 2]] * 3 + [[9, 9]] * 3


def test_a_trace_of_the_single_turn_is_the_prompt_and_the_answer_as_sampled():
    ((trace, *_),) = [group.traces for group in produce(make(EchoEngine()), dispatch(5))]
    prompt, answer = trace.nodes
    assert (prompt.token_ids, prompt.mask, prompt.sampled) == ([5, 5], [False, False], False)
    assert (answer.token_ids, answer.mask, answer.sampled) == ([5, 5], [True, True], True)
    assert (answer.parent, answer.logprobs, answer.weight_versions) == (0, [-0.5, -0.5], [(3, 0, 2)])
    assert (trace.is_completed, trace.stop_condition, trace.errors) == (True, "stop", [])
    assert trace.timing == {"queued": 1.0, "end": 2.0}


def test_siblings_are_drawn_with_seeds_of_their_own_that_anyone_can_derive():
    engine = EchoEngine()
    (group,) = produce(make(engine), dispatch(5, attempt=2), of=plan(size=4))
    expected = [response_seed(ROLLOUT_SEED, "set:5", 2, sibling) for sibling in range(4)]
    assert group.seeds == expected
    assert [request.sampling.seed for request in engine.requests] == expected
    assert [trace.nodes[-1].seed for trace in group.traces] == expected
    assert len(set(expected)) == 4
    assert {request.sampling.temperature for request in engine.requests} == {0.7}


def test_an_evaluation_draws_with_other_seeds():
    (group,) = produce(make(EchoEngine()), dispatch(5), of=plan(purpose="eval:held-out"))
    assert group.source == "eval"
    assert group.seeds == [response_seed(ROLLOUT_SEED, "set:5", 0, n, "eval:held-out") for n in range(3)]


def test_all_requests_of_one_call_reach_the_engine_in_one_turn_of_the_event_loop():
    engine = EchoEngine()
    maker = make(engine)

    async def main():
        loop = asyncio.get_running_loop()

        def tick():
            engine.turn += 1
            nonlocal handle
            handle = loop.call_soon(tick)

        handle = loop.call_soon(tick)
        await asyncio.sleep(0)
        for _ in range(2):
            await make_all(maker, [dispatch(row) for row in range(4)], plan(size=3))
        handle.cancel()

    asyncio.run(main())
    first, second = engine.turns[:12], engine.turns[12:]
    assert len(second) == 12
    assert (len(set(first)), len(set(second))) == (1, 1)
    assert first[0] < second[0], "the turns are told apart"


def test_a_group_stays_on_one_engine_and_is_forgotten_when_it_ends():
    engines = [EchoEngine(), EchoEngine()]
    maker = make(engines)
    groups = produce(maker, *(dispatch(row) for row in range(4)))
    assert [[request.input_ids[0] for request in engine.requests] for engine in engines] == [
        [0, 0, 0, 2, 2, 2],
        [1, 1, 1, 3, 3, 3],
    ]
    assert sorted(maker.router.released) == sorted(group.observation_id for group in groups)


def test_a_refused_request_costs_its_response_and_nothing_else():
    scorer = EqualsTarget()
    engine = EchoEngine(refuse(1))
    first, second = produce(make(engine, scorer), dispatch(5), dispatch(6))
    assert first.rewards == [1.0, None, 1.0]
    assert second.rewards == [1.0] * 3
    refused = first.traces[1]
    assert refused.errors == [
        {"where": "harness single_turn", "message": "RequestRefused: max_new_tokens = 0: give at least 1"}
    ]
    assert (refused.nodes, refused.verdicts, refused.stop_condition, refused.is_completed) == ([], {}, "error", False)
    assert ("set:5", ["5 5", "5 5"]) in scorer.asked, "what failed is not judged"


def test_a_harness_that_raises_anything_costs_its_response():
    class Fragile(SingleTurn):
        name = "fragile"

        async def run(self, task, rendered, context):
            if context.sampling.seed == response_seed(ROLLOUT_SEED, "set:5", 0, 2):
                raise KeyError("tool")
            return await super().run(task, rendered, context)

    (group,) = produce(make(EchoEngine(), harness=Fragile()), dispatch(5))
    assert group.rewards == [1.0, 1.0, None]
    assert group.traces[2].errors == [{"where": "harness fragile", "message": "KeyError: 'tool'"}]


def test_a_group_whose_responses_all_failed_is_given_unscored():
    (group,) = produce(make(EchoEngine(refuse(0, 1, 2))), dispatch(5))
    assert group.rewards == [None] * 3
    assert group.scored_rewards == []


@pytest.mark.parametrize(
    "error",
    [EngineError("the engine stopped"), WorkerDied("engine-0", "was killed"), PluginError("no completion")],
    ids=lambda error: type(error).__name__,
)
def test_what_is_no_property_of_one_response_ends_everything(error):
    engine = EchoEngine(fail_with(error), hang={0, 2, 3, 4, 5})
    maker = make(engine)
    with pytest.raises(type(error)) as caught:
        produce(maker, dispatch(5), dispatch(6))
    assert caught.value is error, "raised as itself, not in a group of exceptions"
    assert engine.cancelled == 5, "the rest does not go on in the background"
    assert maker.admission.in_flight == 0
    assert maker.router.in_flight(engine) == 0


def test_a_scorer_whose_plugin_breaks_its_contract_ends_everything():
    class Broken:
        async def score_group(self, task, traces, keys=None):
            raise PluginError("verifier 'v' gave a text")

    with pytest.raises(PluginError, match="verifier 'v' gave a text"):
        produce(make(EchoEngine(), Broken()), dispatch(5), dispatch(6))


def test_an_aborted_completion_is_kept_unscored_with_its_tokens():
    scorer = EqualsTarget()
    engine = EchoEngine(lambda place, request: "abort" if place == 0 else "stop")
    (group,) = produce(make(engine, scorer), dispatch(5))
    aborted = group.traces[0]
    assert group.rewards == [None, 1.0, 1.0]
    assert aborted.errors == [{"where": "engine", "message": "the response ended with abort"}]
    assert (aborted.is_completed, aborted.response_tokens, aborted.verdicts) == (False, 2, {})
    assert scorer.asked == [("set:5", ["5 5", "5 5"])]


def test_a_truncated_completion_is_judged():
    (group,) = produce(make(EchoEngine(lambda place, request: "length")), dispatch(5))
    assert group.rewards == [1.0] * 3
    assert all(trace.truncated and trace.is_completed for trace in group.traces)


FAILED = Verdict(None, state="timeout", detail="over the deadline")


def test_a_verifier_that_failed_excludes_its_response():
    scorer = EqualsTarget([{"v": Verdict(1.0)}, {"v": FAILED}, {"v": Verdict(0.0)}])
    (group,) = produce(make(EchoEngine(), scorer), dispatch(5))
    assert group.rewards == [1.0, None, 0.0]
    assert group.traces[1].rewards == {}
    assert group.traces[1].errors == [{"where": "verifier v", "message": "timeout: over the deadline"}]


def test_a_stated_score_stands_in_for_a_verifier_that_failed_and_not_for_a_missing_answer():
    scorer = EqualsTarget([{"v": FAILED, "w": Verdict(1.0)}, {"v": Verdict(1.0), "w": Verdict(1.0)}])
    weights = {"v": 2.0, "w": 1.0}
    maker = make(EchoEngine(refuse(1)), scorer, failure_policy=-0.5, weights=weights)
    (group,) = produce(maker, dispatch(5))
    assert group.rewards == [2.0 * -0.5 + 1.0, None, 3.0]
    assert group.traces[0].rewards == {"w": 1.0}, "a stated score is no verdict"
    assert group.verifier_weights == weights


@pytest.mark.parametrize(
    ("max_context", "allowed"),
    [(None, 50), (52, 50), (51, 49), (10, 8), (3, 1)],
)
def test_the_context_bounds_the_response(max_context, allowed):
    engine = EchoEngine()
    produce(make(engine), dispatch(5, length=2), of=plan(max_context=max_context, max_new_tokens=50))
    assert {request.sampling.max_new_tokens for request in engine.requests} == {allowed}


def test_each_prompt_leaves_room_of_its_own():
    engine = EchoEngine()
    produce(make(engine), dispatch(5, length=2), dispatch(6, length=7), of=plan(size=2, max_context=10))
    assert [request.sampling.max_new_tokens for request in engine.requests] == [8, 8, 3, 3]


def test_a_closed_gate_keeps_every_request_back():
    engine = EchoEngine()
    maker = make(engine)

    async def main():
        maker.admission.close()
        producing = asyncio.create_task(make_all(maker, [dispatch(5), dispatch(6)], plan()))
        for _ in range(50):
            await asyncio.sleep(0)
        held_back = list(engine.requests)
        maker.admission.open()
        groups = await asyncio.wait_for(producing, 20)
        return held_back, groups

    held_back, groups = asyncio.run(main())
    assert held_back == []
    assert [group.rewards for group in groups] == [[1.0] * 3] * 2


def test_scoring_does_not_hold_the_gate():
    """A publication waits for engines, not for verifiers."""
    maker = make(EchoEngine())
    drained = []

    class WaitsForTheGate(EqualsTarget):
        async def score_group(self, task, traces, keys=None):
            await asyncio.wait_for(maker.admission.drained(), 20)
            drained.append(maker.admission.in_flight)
            return await super().score_group(task, traces)

    maker.scorer = WaitsForTheGate()
    produce(maker, dispatch(5), dispatch(6))
    assert drained == [0, 0]


def node(parent, sampled=True, tokens=2, mask=None, logprobs=None, spans=None):
    flags = [sampled] * tokens if mask is None else mask
    given = ([-1.0] * tokens if sampled else []) if logprobs is None else logprobs
    whole = [VersionSpan(3, 0, tokens)] if sampled and tokens else []
    message = {"role": "assistant", "content": ""}
    return Node(parent, message, sampled, [1] * tokens, flags, given, whole if spans is None else spans)


def trace_of(*nodes):
    return Trace("trace", task(0), list(nodes))


def test_traces_whose_nodes_fit_together_are_taken():
    check_trace(trace_of(), "any")
    check_trace(trace_of(node(None, sampled=False)), "any")
    check_trace(trace_of(node(None, sampled=False), node(0), node(1, sampled=False), node(2), node(0)), "any")
    check_trace(trace_of(node(None, sampled=False), node(0, mask=[True, False])), "any")
    check_trace(trace_of(node(None, sampled=False), node(0, tokens=0)), "any")


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node(None), node(1)], "node 1 has parent 1"),
        ([node(None), node(-1)], "node 1 has parent -1"),
        ([node(2), node(0), node(1)], "node 0 has parent 2"),
        ([node(None, mask=[True])], "node 0 has 1 mask flags for 2 tokens"),
        ([node(None, sampled=False, mask=[])], "node 0 has 0 mask flags for 2 tokens"),
        ([node(None, logprobs=[-1.0])], "node 0 has 1 log-probabilities for 2 tokens"),
        ([node(None, spans=[])], r"node 0 has weight versions \[\] that do not cover its 2 tokens"),
        ([node(None, spans=[VersionSpan(1, 0, 1)])], "node 0 has weight versions .* that do not cover its 2 tokens"),
        (
            [node(None, spans=[VersionSpan(1, 0, 1), VersionSpan(2, 0, 2)])],
            "node 0 has .* that do not cover its 2 tokens",
        ),
        ([node(None), node(0, logprobs=[])], "node 1 has 0 log-probabilities for 2 tokens"),
        ([node(None, sampled=False, mask=[False, True])], "node 0 has loss on tokens that were not sampled"),
    ],
)
def test_a_trace_that_does_not_fit_together_names_harness_node_and_fault(nodes, message):
    with pytest.raises(PluginError, match=rf"harness 'odd' gave a trace whose {message}$"):
        check_trace(trace_of(*nodes), "odd")


def test_a_harness_that_shifts_log_probabilities_ends_everything():
    class Shifted(Harness):
        name = "shifted"

        async def run(self, task, rendered, context):
            trace = await SingleTurn().run(task, rendered, context)
            trace.nodes[-1].logprobs = trace.nodes[-1].logprobs[1:]
            return trace

    with pytest.raises(PluginError, match="'shifted' gave a trace whose node 1 has 1 log-probabilities for 2 tokens"):
        produce(make(EchoEngine(), harness=Shifted()), dispatch(5))


@pytest.mark.parametrize("given", [None, "text"])
def test_a_harness_that_gives_no_trace_is_named(given):
    class Forgetful(Harness):
        name = "forgetful"

        async def run(self, task, rendered, context):
            return given

    with pytest.raises(PluginError, match="forgetful"):
        produce(make(EchoEngine(), harness=Forgetful()), dispatch(5))
