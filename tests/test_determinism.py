"""One seed, one run: token ids, gradients and weights to the bit."""

import pytest
from driving import run_and_watch


def test_one_seed_gives_equal_bits_and_two_seeds_differ(run_file, tmp_path):
    path, warm = run_file(), "rollout.temperature=2.0"
    first = run_and_watch(path, tmp_path / "first", warm)
    again = run_and_watch(path, tmp_path / "again", warm)
    other = run_and_watch(path, tmp_path / "other", warm, "run.seed=1")
    assert first.token_ids == again.token_ids
    assert first.gradients == again.gradients
    assert first.weights == again.weights
    assert first.token_ids[0] != other.token_ids[0]
    assert first.gradients[0] != other.gradients[0]
    assert first.weights[0] != other.weights[0]
    assert first.digest == again.digest != other.digest
    for collection in first.token_ids:
        prompts = {tuple(ids[:10]) for ids in collection}
        assert len({tuple(ids) for ids in collection}) > 2 * len(prompts), "the members of a group differ"


@pytest.mark.slow
def test_a_changed_learning_rate_changes_weights_but_not_the_first_tokens(run_file, tmp_path):
    """The mutated control: what is compared above does see a difference."""
    path = run_file()
    first = run_and_watch(path, tmp_path / "first", "rollout.num_rollout=1")
    other = run_and_watch(path, tmp_path / "other", "rollout.num_rollout=1", "trainer.lr=1.001e-3")
    assert first.token_ids == other.token_ids
    assert first.gradients == other.gradients
    assert first.weights != other.weights
