import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reroll.serving.local.sampling import (
    Settings,
    inverse_cdf,
    log_probabilities,
    sample,
    seed_key,
    truncated,
    uniforms,
)


def rows(count, temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0):
    return Settings(np.full(count, temperature), np.full(count, top_p), np.full(count, top_k), np.full(count, min_p))


def test_random_numbers_depend_on_seed_and_position_alone():
    keys = np.array([seed_key(seed) for seed in (3, 5, 3)], np.uint64)
    found = uniforms(keys, np.array([7, 7, 7]))
    assert found[0] == found[2] != found[1]
    assert uniforms(keys[1:2], np.array([7]))[0] == found[1]
    assert uniforms(keys[1:2], np.array([8]))[0] != found[1]


def test_random_numbers_are_uniform_and_uncorrelated():
    keys = np.array([seed_key(seed) for seed in range(400)], np.uint64)
    found = np.stack([uniforms(keys, np.full(400, position)) for position in range(100)])
    assert found.min() >= 0 and found.max() < 1
    assert abs(found.mean() - 0.5) < 0.01
    for first, second in ((found[:-1], found[1:]), (found[:, :-1], found[:, 1:])):
        assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.02


def test_seeds_one_increment_apart_are_not_shifted_copies():
    step = 0x9E3779B97F4A7C15
    first, second = (np.array([seed_key(seed)], np.uint64) for seed in (1, 1 + step))
    assert uniforms(first, np.array([1]))[0] != uniforms(second, np.array([0]))[0]


def test_seeds_of_any_size_are_taken():
    assert len({seed_key(seed) for seed in (-1, 0, 2**63, 2**64 + 1, 2**200 + 7)}) == 5


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from([0.0, 1e-30, 1e-3, 0.5]), min_size=1, max_size=8).filter(any),
    st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2**-53])),
)
def test_no_token_of_probability_zero_is_drawn(probabilities, uniform):
    token = inverse_cdf(torch.tensor([probabilities]), np.array([uniform]))[0]
    assert probabilities[token] > 0


def test_draws_follow_the_distribution():
    probs = torch.tensor([0.1, 0.0, 0.6, 0.3])
    keys = np.array([seed_key(seed) for seed in range(20000)], np.uint64)
    found = inverse_cdf(probs.expand(20000, 4), uniforms(keys, np.zeros(20000, int)))
    counts = torch.bincount(found, minlength=4) / 20000
    assert torch.allclose(counts, probs, atol=0.015)
    assert not torch.allclose(counts, torch.tensor([0.3, 0.0, 0.6, 0.1]), atol=0.015)


PROBS = torch.tensor([[0.05, 0.4, 0.15, 0.3, 0.1]])


@pytest.mark.parametrize(
    ("top_p", "top_k", "min_p", "kept"),
    [
        (1.0, -1, 0.0, {0, 1, 2, 3, 4}),
        (1.0, 2, 0.0, {1, 3}),
        (0.7, -1, 0.0, {1, 3}),
        (0.71, -1, 0.0, {1, 2, 3}),
        (0.01, -1, 0.0, {1}),
        (1.0, -1, 0.3, {1, 2, 3}),
        (0.99, 3, 0.5, {1, 3}),
        (1.0, 99, 1.0, {1}),
    ],
)
def test_truncation_keeps_these_tokens(top_p, top_k, min_p, kept):
    cut = truncated(PROBS.double(), np.array([top_p]), np.array([top_k]), np.array([min_p]))
    assert set(torch.nonzero(cut[0]).flatten().tolist()) == kept
    assert torch.equal(cut[cut > 0], PROBS.double()[cut > 0])


def test_logprobs_are_scaled_and_not_truncated():
    logits, keys = torch.randn(4, 50, generator=torch.Generator().manual_seed(0)), np.arange(4, dtype=np.uint64)
    drawn = sample(logits, rows(4, temperature=0.7, top_k=3), uniforms(keys, np.zeros(4, int)))
    expected = torch.log_softmax(logits / 0.7, -1)[torch.arange(4), torch.from_numpy(drawn.tokens_R)]
    assert torch.allclose(torch.from_numpy(drawn.logprobs_R), expected, atol=1e-6)
    unscaled = torch.log_softmax(logits, -1)[torch.arange(4), torch.from_numpy(drawn.tokens_R)]
    assert not torch.allclose(torch.from_numpy(drawn.logprobs_R), unscaled, atol=1e-3)


def test_temperature_zero_takes_the_largest_logit_unscaled():
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 1.0]])
    drawn = sample(logits, rows(2, temperature=0.0), np.array([0.99, 0.0]))
    assert drawn.tokens_R.tolist() == [1, 0]
    assert drawn.logprobs_R.tolist() == pytest.approx(torch.log_softmax(logits, -1).max(-1).values.tolist())


def test_a_row_does_not_depend_on_its_neighbours_settings():
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(1))
    alone = [sample(logits[row : row + 1], rows(1), np.array([0.3 * row])) for row in range(3)]
    mixed = Settings(np.array([1.0, 0.0, 1.0]), np.array([1.0, 1.0, 0.5]), np.array([-1, -1, 4]), np.zeros(3))
    together = sample(logits, mixed, np.array([0.0, 0.3, 0.6]))
    assert together.tokens_R[0] == alone[0].tokens_R[0]
    assert together.logprobs_R[0] == alone[0].logprobs_R[0]
    other = sample(logits, rows(3), np.array([0.9, 0.3, 0.6]))
    assert other.tokens_R[0] != alone[0].tokens_R[0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_an_error(bad, temperature):
    logits = torch.zeros(2, 5)
    logits[1, 2] = bad
    with pytest.raises(FloatingPointError, match="1 of 2 rows"):
        sample(logits, rows(2, temperature=temperature), np.array([0.1, 0.99]))


def test_minus_infinity_forbids_a_token():
    logits = torch.tensor([[0.0, -torch.inf, 0.0]]).repeat(50, 1)
    drawn = sample(logits, rows(50), np.linspace(0, 0.999, 50))
    assert set(drawn.tokens_R.tolist()) == {0, 2}


def test_low_precision_logits_are_normalised_in_float32():
    found = log_probabilities(torch.randn(2, 9).bfloat16(), np.array([1.0, 1.0]))
    assert found.dtype == torch.float32
