"""Verifiers that do what verifiers should not, for the tests beside."""

from reroll import Task, Trace, Verdict, Verifier, hookimpl


class AlwaysRight(Verifier):
    name = "always_right"

    def score(self, task: Task, trace: Trace) -> Verdict:
        return Verdict(1.0)


class Texts(Verifier):
    name = "texts"

    def score(self, task, trace):
        return "very good"


class NotANumber(Verifier):
    name = "not_a_number"

    def score(self, task, trace):
        return Verdict(float("nan"))


class Nothing(Verifier):
    name = "nothing"

    def score(self, task, trace):
        return None


class RaisesSometimes(Verifier):
    """Fails on about one trace in ten, by the trace's identity, so that it does not matter which process judges."""

    name = "raises_sometimes"

    def score(self, task, trace):
        if int(trace.id, 16) % 10 == 0:
            raise RuntimeError("the tenth trace")
        return Verdict(float(int(trace.id, 16) % 2))


class Puzzled(Verifier):
    """Cannot judge tasks whose target is even; of the others every second answer is right."""

    name = "puzzled"

    def score_group(self, task, traces):
        if int(task.targets["puzzled"]) % 2 == 0:
            return [Verdict(None, state="unknown", detail=f"the target {task.targets['puzzled']} is even")] * len(
                traces
            )
        return [Verdict(float(number % 2)) for number in range(len(traces))]


class Parts(Verifier):
    """Two parts of a score, which differ between responses."""

    name = "parts"

    def score(self, task, trace):
        low, high = int(trace.id[-1], 16) / 15, int(trace.id[-2], 16) / 15
        return Verdict((low + high) / 2, {"low": low, "high": high})


@hookimpl
def reroll_verifiers():
    return [AlwaysRight, Texts, NotANumber, Nothing, RaisesSometimes, Puzzled, Parts]
