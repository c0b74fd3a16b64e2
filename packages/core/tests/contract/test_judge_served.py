"""The verifier `judge` asks a model that `reroll serve` serves."""

import asyncio

from contract_servers import start_reroll

from reroll.api import Node, Task, Trace
from reroll.rollouts.judge import JudgeConfig, JudgeVerifier
from reroll.rollouts.scoring.scorer import Scorer, SelectedVerifier


def test_a_served_model_judges(tmp_path, monkeypatch):
    server = start_reroll(tmp_path)
    try:
        monkeypatch.setenv("SERVED_KEY", server.key)
        options = {"base_url": f"{server.url}/v1", "model": "tiny", "api_key_env": "SERVED_KEY", "max_tokens": 16}
        reads = {"prompt": "{answer}", "pattern": r"\\boxed\{(\d+)\}", "scale": (0.0, 100.0)}

        async def main(**more):
            task = Task("", {"judge": "any"}, "test", 0, "0")
            trace = Trace(
                "t", task, [Node(None, {"role": "assistant", "content": "What is 17 + 25?"}, True, [1], [True])]
            )
            selected = SelectedVerifier(JudgeVerifier(JudgeConfig(**options, **reads, **more)), "reroll")
            async with Scorer({"judge": selected}) as scorer:
                return (await scorer.score(task, trace))["judge"]

        asked = {"messages": [{"role": "user", "content": "What is 17 + 25?"}], "max_tokens": 16, "temperature": 0}
        said = server.post("/v1/chat/completions", asked)["choices"][0]["message"]["content"]
        verdict = asyncio.run(main())
        assert (verdict.state, verdict.detail) == ("ok", repr(" ".join(said.split())))
        assert said.endswith(f"\\boxed{{{round(100 * verdict.score)}}}")
        monkeypatch.setenv("SERVED_KEY", "another")
        refused = asyncio.run(main())
        assert refused.state == "service_error" and "refuses the key (401); set SERVED_KEY" in refused.detail
    finally:
        server.stop()
