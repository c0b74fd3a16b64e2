r"""The verifier `math` beside math-verify, in one scoring pool: who is right, how fast, and what hostile answers cost.

    python benchmarks/verifiers.py [--cases FILE] [--misses] [--deadline S] [--json FILE]

Cases are JSON lines with `gold`, `answer`, `expected`, `kind` and `basis`: `fact` where mathematics decides, `policy`
where a convention does, which counts for neither. Ratios are math-verify's figure over that of `math`, of one run; an
answer without a verdict is not a right one. The default cases are those that the tests hold `math` to: they measure
time, and what math-verify makes of them; for the accuracy of `math` give a file that nothing was fitted to.

- cases: every case is judged by both, one after the other in a worker that has loaded both, the order alternating;
- inline: microseconds of a call in this process, without a pool, of answers that no call has seen before;
- mixture: 8 hostile answers and 200 ordinary ones at once, two workers, for either verifier. The time of a hostile one
  is that of its work; memory is that of this process and all below it, above what it was when the workers were warm;
- cheap: 400 answers at once, two workers, a deadline of one second.

math-verify looks for a boxed answer first and reads a bare gold as the formula that it is: as it stands it would be
read as text, which costs math-verify a tenth of the cases. Its own time limits are off; they are signals, and the pool
has a deadline.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from reroll.api import Node, Task, Trace, Verdict, Verifier
from reroll.rollouts.scoring.lane import Judged
from reroll.rollouts.scoring.pool import ScoringPool
from reroll.rollouts.scoring.worker import VerifierSpec
from reroll_verifiers_math.verifier import MathVerifier

CASES = Path(__file__).parents[1] / "packages" / "verifiers-math" / "tests" / "cases.jsonl"
OURS, THEIRS = "math", "math-verify"


class MathVerify(Verifier):
    """math-verify as it is, with the configuration that finds a boxed answer first."""

    name = THEIRS

    def warm_up(self) -> None:
        from math_verify import ExprExtractionConfig, LatexExtractionConfig

        self._config = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
        self._equal("\\frac{x}{2}", "it is \\boxed{0.5x}")

    def score(self, task: Task, trace: Trace) -> Verdict:
        return Verdict(float(self._equal(str(task.targets[self.name]), trace.completion)))

    def _equal(self, gold: str, answer: str) -> bool:
        from math_verify import parse, verify

        gold = gold if "$" in gold or "\\boxed" in gold else f"${gold}$"
        read = [parse(text, self._config, parsing_timeout=None) for text in (gold, answer)]
        return bool(verify(*read, timeout_seconds=None))


SPECS = {
    OURS: VerifierSpec("reroll_verifiers_math.verifier:MathVerifier", {}, "reroll-verifiers-math"),
    THEIRS: VerifierSpec("verifiers:MathVerify", {}, "math-verify"),
}
HOSTILE: Mapping[str, tuple[str, str]] = {
    "equals signs": ("5", "=" * 100_000),
    "open braces": ("5", "{" * 100_000),
    "bare fractions": ("5", "\\frac" * 20_000),
    "megabytes of digits": ("5", "9" * 3_000_000),
    "a tower of powers": ("5", "9^{9^{9^{9}}}"),
    "nested roots": ("5", "\\sqrt{(" * 3_000 + "2" + ")}" * 3_000),
    "a tower of factorials": ("5", "((((20!)!)!)!)"),
    "an expansion": ("(x+y+z+w+2)^{90}", "(x+y+z+w+1)^{45}(w+z+y+x+2)^{45}"),
}
"""Name → gold, and what stands in the box; none is right."""


def rollout(gold: Any, answer: str) -> tuple[Task, Trace]:
    task = Task("", {OURS: gold, THEIRS: gold}, "benchmark", 0, "0")
    return task, Trace("0", task, [Node(None, {"role": "assistant", "content": answer}, True, [], [])])


def ordinary(count: int) -> Iterator[tuple[str, str, bool]]:
    """Golds, answers, and whether these are right: every second one. No two are alike."""
    for number in range(count):
        a, b, right = 3 * number + 7, number + 2, number % 2 == 0
        wrong = 0 if right else 1
        gold, answer = [
            (str(a), f"{a + wrong}"),
            (f"\\frac{{{a}}}{{{4 * b}}}", f"{a + wrong}/{4 * b}"),
            (f"{a}.25", f"\\frac{{{4 * a + 1 + wrong}}}{{4}}"),
            (f"x^2+{2 * b}x+{b * b}", f"(x+{b + wrong})^2"),
            (f"{a}\\sqrt{{2}}", f"\\sqrt{{{2 * a * a + wrong}}}"),
        ][number // 2 % 5]
        yield gold, f"Adding up, the result is \\boxed{{{answer}}}.", right


async def warm(pool: ScoringPool, names: Sequence[str]) -> None:
    """Has every worker load the verifiers: calls at once are shared out among the workers that there are."""
    task, trace = rollout("7", "\\boxed{7}")
    await asyncio.gather(*(pool.judge(name, task, [trace]) for name in names))
    while len(pool.pids) < pool.workers:
        await asyncio.sleep(0.01)
    for name in names:
        await asyncio.gather(*(pool.judge(name, task, [trace]) for _ in range(64)))


def said(judged: Judged) -> bool | None:
    """Whether the answer was found right; None without a score."""
    verdict = judged.verdicts[0]
    return verdict.score is not None and verdict.score >= 0.5 if verdict.scored else None


async def judge_cases(cases: Sequence[Mapping[str, Any]], deadline: float) -> dict[str, list[Judged]]:
    found: dict[str, list[Judged]] = {name: [] for name in SPECS}
    async with ScoringPool(SPECS, workers=1, deadline_seconds=deadline) as pool:
        await warm(pool, list(SPECS))
        for number, case in enumerate(cases):
            task, trace = rollout(case["gold"], case["answer"])
            for name in list(SPECS)[:: 1 if number % 2 else -1]:
                found[name].append(await pool.judge(name, task, [trace]))
    return found


def summary(cases: Sequence[Mapping[str, Any]], judged: Sequence[Judged]) -> dict[str, Any]:
    found = [(case["basis"], case["expected"], said(item)) for case, item in zip(cases, judged, strict=True)]
    facts = [(expected, verdict) for basis, expected, verdict in found if basis == "fact"]
    policies = [expected is verdict for basis, expected, verdict in found if basis != "fact"]
    times = sorted(item.seconds for item in judged)
    return {
        "facts": len(facts),
        "accuracy": sum(expected is verdict for expected, verdict in facts) / max(len(facts), 1),
        "false_positives": sum(verdict is True and not expected for expected, verdict in facts),
        "false_negatives": sum(verdict is False and expected for expected, verdict in facts),
        "without_verdict": sum(verdict is None for _, verdict in facts),
        "policies": len(policies),
        "policies_agreed": sum(policies),
        "timeouts": sum(item.verdicts[0].state == "timeout" for item in judged),
        "median": median(times),
        **{f"p{share}": times[min(len(times) - 1, len(times) * share // 100)] for share in (90, 99)},
        "max": times[-1],
    }


def inline(count: int, rounds: int = 5) -> dict[str, dict[str, float]]:
    """Verifier → kind of answer → microseconds of a call; the median over rounds, in turns."""
    verifiers: dict[str, Any] = {OURS: MathVerifier(), THEIRS: MathVerify()}
    for verifier in verifiers.values():
        verifier.warm_up()
    found: dict[str, dict[str, list[float]]] = {name: {"integer": [], "fraction": []} for name in verifiers}
    for turn in range(rounds):
        numbers = range(1000 + turn * count, 1000 + (turn + 1) * count)
        asked = {
            "integer": [rollout(f"{n}", f"It is \\boxed{{{n}}}.") for n in numbers],
            "fraction": [rollout(f"\\frac{{{n}}}{{7}}", f"It is \\boxed{{{n}/7}}.") for n in numbers],
        }
        for kind, pairs in asked.items():
            for name, verifier in list(verifiers.items())[:: 1 if turn % 2 else -1]:
                began = time.perf_counter()
                right = sum(verifier.score(task, trace).score for task, trace in pairs)
                found[name][kind].append((time.perf_counter() - began) / count * 1e6)
                if right != count:
                    raise SystemExit(f"{name} finds {right:g} of {count} right {kind} answers right")
    return {name: {kind: median(values) for kind, values in kinds.items()} for name, kinds in found.items()}


class Tree:
    """This process and all below it."""

    def __init__(self) -> None:
        self.seen: set[psutil.Process] = set()

    def memory(self) -> int:
        """Resident bytes now."""
        total = 0
        me = psutil.Process()
        below = me.children(recursive=True)
        self.seen.update(below)
        for process in (me, *below):
            try:
                total += process.memory_info().rss
            except psutil.Error:
                continue  # it has ended meanwhile
        return total

    def left(self) -> int:
        """Processes that were seen below this one and run still."""
        return len(psutil.wait_procs(self.seen, timeout=2)[1])

    @contextmanager
    def watched(self) -> Iterator[list[int]]:
        """Memory above that at the beginning, every 20 ms."""
        start, samples, over = self.memory(), [0], threading.Event()

        def watch() -> None:
            while not over.wait(0.02):
                samples.append(self.memory() - start)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield samples
        finally:
            over.set()
            thread.join()


async def mixture(name: str, deadline: float, ordinaries: int) -> dict[str, Any]:
    tree = Tree()
    asked = list(ordinary(ordinaries))
    async with ScoringPool({name: SPECS[name]}, workers=2, deadline_seconds=deadline) as pool:
        await warm(pool, [name])

        async def timed(gold: str, answer: str) -> tuple[Judged, float]:
            began = time.monotonic()
            task, trace = rollout(gold, answer)
            return await pool.judge(name, task, [trace]), time.monotonic() - began

        with tree.watched() as samples:
            # The hostile ones come between the others, so that each has some behind it.
            calls = [timed(gold, answer) for gold, answer, _ in asked]
            step = max(1, ordinaries // len(HOSTILE))
            for number, (gold, text) in enumerate(HOSTILE.values()):
                calls.insert(number * (step + 1), timed(gold, f"It is \\boxed{{{text}}}"))
            answers = await asyncio.gather(*calls)
    at = [number * (step + 1) for number in range(len(HOSTILE))]
    hostile = {
        kind: {
            "state": (verdict := answers[place][0].verdicts[0]).state,
            "score": verdict.score,
            "of_deadline": answers[place][0].seconds / deadline,
            "waited": answers[place][1],
        }
        for kind, place in zip(HOSTILE, at, strict=True)
    }
    others = [answer for place, answer in enumerate(answers) if place not in at]
    right = sum(said(judged) is wanted for (judged, _), (*_, wanted) in zip(others, asked, strict=True))
    return {
        "ordinary": ordinaries,
        "ordinary_right": right,
        "ordinary_states": Counter(judged.verdicts[0].state for judged, _ in others),
        "hostile": hostile,
        "memory_bytes": max(samples),
        "orphans": tree.left(),
        "seconds": max(waited for _, waited in answers),
    }


async def cheap(name: str, count: int) -> int:
    """Time-outs of answers that take next to nothing, all given at once."""
    async with ScoringPool({name: SPECS[name]}, workers=2, deadline_seconds=1.0) as pool:
        pairs = [rollout(f"{number}", f"It is \\boxed{{{number}}}.") for number in range(count)]
        judged = await asyncio.gather(*(pool.judge(name, task, [trace]) for task, trace in pairs))
    return sum(item.verdicts[0].state == "timeout" for item in judged)


def show(results: Mapping[str, Any]) -> None:
    for name, item in results["cases"].items():
        print(
            f"{name}: {item['accuracy']:.1%} of {item['facts']} facts; false positives {item['false_positives']}, "
            f"false negatives {item['false_negatives']}, without a verdict {item['without_verdict']}; "
            f"{item['policies_agreed']} of {item['policies']} conventions; time-outs {item['timeouts']} of all"
        )
        times = ", ".join(f"{key} {item[key] * 1e3:.3g}" for key in ("median", "p90", "p99", "max"))
        print(f"    milliseconds of a call: {times}")
    listed = ", ".join(f"{key} {value:.2f}x" for key, value in results["ratios"].items())
    print(f"{THEIRS} / {OURS}: {listed}")
    for name, kinds in results["inline"].items():
        print(f"inline, {name}: " + ", ".join(f"{kind} {value:.1f} µs" for kind, value in kinds.items()))
    for name, item in results["mixture"].items():
        print(
            f"mixture, {name}: {item['ordinary_right']} of {item['ordinary']} ordinary verdicts right, "
            f"{item['memory_bytes'] / 2**20:.0f} MiB above the start, {item['orphans']} orphans, "
            f"{item['seconds']:.2f} s in all"
        )
        for kind, one in item["hostile"].items():
            times = f"{one['of_deadline']:.3f} deadlines of work, after {one['waited']:.2f} s"
            print(f"    {kind}: {one['state']} {one['score']}, {times}")
    print("cheap, time-outs: " + ", ".join(f"{name} {count}" for name, count in results["cheap"].items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, default=CASES)
    parser.add_argument("--misses", action="store_true", help=f"list the facts that {OURS} gets wrong")
    parser.add_argument("--deadline", type=float, default=5.0, help="seconds, of cases and the mixture")
    parser.add_argument("--ordinary", type=int, default=200, help="ordinary answers of the mixture")
    parser.add_argument("--cheap", type=int, default=400, help="answers at once with the deadline of one second")
    parser.add_argument("--calls", type=int, default=400, help="inline calls a round")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    # Workers import math-verify's verifier from this file.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.getenv("PYTHONPATH")])])
    if not options.cases.is_file():
        parser.error(f"--cases {options.cases}: no such file")
    cases = [json.loads(line) for line in options.cases.read_text("utf-8").splitlines()]
    judged = asyncio.run(judge_cases(cases, options.deadline))
    tables = {name: summary(cases, items) for name, items in judged.items()}
    results = {
        "cases": tables,
        "ratios": {key: tables[THEIRS][key] / tables[OURS][key] for key in ("accuracy", "median", "p90", "p99", "max")},
        "inline": inline(options.calls),
        "mixture": {name: asyncio.run(mixture(name, options.deadline, options.ordinary)) for name in SPECS},
        "cheap": {name: asyncio.run(cheap(name, options.cheap)) for name in SPECS},
    }
    for kind in ("integer", "fraction"):
        results["ratios"][f"inline {kind}"] = results["inline"][THEIRS][kind] / results["inline"][OURS][kind]
    show(results)
    if options.misses:
        for case, item in zip(cases, judged[OURS], strict=True):
            if case["basis"] == "fact" and said(item) is not case["expected"]:
                what = f"{case['kind']}: {case['gold']!r:.70} against {case['answer']!r:.90}"
                print(f"miss: {what}: expected {case['expected']}, {item.verdicts[0].state} {said(item)}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
