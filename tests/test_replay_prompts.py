"""What every derivation must hold to, for any rollout."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from replay_forests import fault_in, forests, record_of, unchanged

from reroll.replay import check, usable
from reroll_replay_continue.derivation import Continue, ContinueConfig
from reroll_replay_judge.derivation import JudgeTranscript
from reroll_replay_recheck.derivation import Recheck

DERIVATIONS = {
    "compaction": Continue(),
    "tool-call": Continue(ContinueConfig(anchor="tool-call")),
    "recheck": Recheck(),
    "judge": JudgeTranscript(),
}


@pytest.mark.parametrize("name", DERIVATIONS)
@given(forests(), st.integers(0, 2**63 - 1))
def test_no_prompt_has_half_a_call_and_no_record_changes(name, nodes, seed):
    derivation, record = DERIVATIONS[name], record_of(nodes)
    assume(usable(record))
    for anchor in unchanged(record, lambda record: derivation.anchors(record, seed)):
        prompt = unchanged(record, lambda record, at=anchor: derivation.prompt(record, at))
        assert fault_in(prompt) is None
        if name in ("recheck", "judge", "tool-call"):
            assert check(prompt) is None
