"""The verifier in its processes, asked from threads and from an event loop."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

from reroll import Node, Task, Trace
from reroll.cli.validate import file_problems
from reroll.config import load_run_file
from reroll.plugins import load_plugins
from reroll.rollouts.scoring.blocking import BlockingScorer
from reroll.rollouts.scoring.config import ScoringConfig
from reroll.rollouts.scoring.scorer import SelectedVerifier
from reroll_verifiers_math.verifier import MathVerifier

RUN = """
[model]
path = "builtin:tiny-math"
[data]
verifiers = ["math"]
task_set = {{ name = "file", path = "{path}", label_key = "answer", verifier = "math" }}
"""

ANSWERS = {"\\boxed{0.5}": 1.0, "so \\boxed{\\frac{2}{4}}": 1.0, "\\boxed{2}": 0.0, "no answer": 0.0}
TASK = Task("", {"math": "\\frac{1}{2}"}, "test", 0, "0")


def traces():
    nodes = [Node(None, {"role": "assistant", "content": text}, True, [1], [True]) for text in ANSWERS]
    return [Trace(str(index), TASK, [node]) for index, node in enumerate(nodes)]


def test_verdicts_are_the_same_from_everywhere():
    async def from_a_loop(scorer):
        return [
            await asyncio.to_thread(scorer.score_group, TASK, traces()),
            await asyncio.wrap_future(scorer.submit(TASK, traces())),
        ]

    verifiers = {"math": SelectedVerifier(MathVerifier(), "reroll-verifiers-math")}
    with BlockingScorer(verifiers, ScoringConfig(workers=1)) as scorer, ThreadPoolExecutor(4) as threads:
        found = [scorer.score_group(TASK, traces())]
        found += [call.result() for call in [threads.submit(scorer.score_group, TASK, traces()) for _ in range(8)]]
        found += asyncio.run(from_a_loop(scorer))
    assert [verdicts["math"].score for verdicts in found[0]] == list(ANSWERS.values())
    assert found == [found[0]] * 11


def test_validate_names_file_row_and_target_of_what_cannot_be_read(tmp_path):
    path, run_file = tmp_path / "prompts.jsonl", tmp_path / "run.toml"
    rows = [{"prompt": "How much?", "answer": answer} for answer in ("1", "", "\\frac{1}{2}")]
    path.write_text("\n".join(map(json.dumps, rows)))
    run_file.write_text(RUN.format(path=path))
    (problem,) = file_problems(load_run_file(run_file, [], load_plugins()), thorough=True)
    assert problem.key == "data.task_set"
    assert problem.message == f"{path}:2: task prompts:1: target of 'math' can never be judged: the target '' is empty"
