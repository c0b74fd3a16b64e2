"""A training run whose answers a model behind a service judges."""

import json
import re
import sys
from pathlib import Path

from driving import run_and_watch

from reroll.traces.saved import read_rollouts, step_directory

sys.path.insert(0, str(Path(__file__).parents[1] / "packages" / "core" / "tests" / "rollouts"))

from chat_server import ChatServer

KEY = "sk-of-a-judge-0123456789"


def test_a_run_is_judged_by_a_service(run_file, tmp_path, monkeypatch):
    """One verdict in five is unusable, one request in seven fails at first."""
    monkeypatch.setenv("JUDGE_KEY", KEY)

    def answer(body, number):
        shown = body["messages"][0]["content"]
        target, said = re.search(r"<reference>\n(.*?)\n</reference>.*<answer>\n(.*?)\n</answer>", shown, re.S).groups()
        if number % 7 == 3:
            return 429, "later", {"Retry-After": "0"}
        if sum(map(ord, said)) % 5 == 0:
            return "I cannot say."
        return "Verdict: correct" if f"{{{target}}}" in said else "Verdict: incorrect"

    with ChatServer(answer) as server:
        judge = f'{{name="judge", base_url="{server.url}", model="m", api_key_env="JUDGE_KEY", concurrency=4}}'
        overrides = [f"data.verifiers=[{judge}]", 'data.task_set={name="addition", high=40, verifier="judge"}']
        seen = run_and_watch(run_file(), tmp_path / "out", *overrides, "rollout.num_rollout=2")
    assert 0 < server.most <= 4
    states = set()
    for step in range(2):
        for record in read_rollouts(step_directory(tmp_path / "out", step)):
            verdict = record["info"]["reroll"]["verdicts"]["judge"]
            states.add(verdict["state"])
            said = record["nodes"][-1]["message"]["content"]
            right = float(f"{{{record['task']['targets']['judge']}}}" in said)
            assert verdict["score"] == (None if sum(map(ord, said)) % 5 == 0 else right)
            assert record["rewards"] == ({} if verdict["score"] is None else {"judge": right})
    assert states == {"ok", "judge_error"} == set(seen.summary.verdicts)
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert any(path.name == "train_rollouts.jsonl" for path in written)
    assert not [path for path in written if KEY.encode() in path.read_bytes()]
    summary = json.loads((tmp_path / "out" / "context.json").read_text())
    assert summary["protocol"]["verifiers"]["judge"]["options"]["api_key_env"] == "JUDGE_KEY"
