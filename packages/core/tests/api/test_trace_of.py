"""A trace of a text that no engine of a run generated."""

from reroll import Task, Trace


def test_a_text_becomes_a_finished_answer():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    for prompt, said in [(messages, messages), ("2 + 2?", messages[1:]), ([], [])]:
        task = Task(prompt, {}, "mine", 0, "7")
        trace = Trace.of(task, "4")
        assert trace.messages == [*said, {"role": "assistant", "content": "4"}]
        assert (trace.id, trace.task, trace.completion) == ("7", task, "4")
        assert (trace.is_completed, trace.stop_condition, trace.truncated) == (True, "stop", False)
        assert trace.response_tokens == 0 and [node.sampled for node in trace.nodes] == [False] * len(said) + [True]
