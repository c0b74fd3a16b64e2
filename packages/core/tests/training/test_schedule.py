"""Learning rates by hand, and what holds of every schedule."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from reroll.training.config import TrainerSection
from reroll.training.schedule import learning_rate


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.775, 0.55, 0.1]),
        ("cosine", [0.5, 1.0, 1.0, 0.868198, 0.55, 0.1]),
    ],
)
def test_schedules(style, expected):
    steps = [0, 1, 2, 3, 4, 60]
    rates = [learning_rate(step, 1.0, 0.1, style, warmup_steps=2, decay_steps=6) for step in steps]
    assert rates == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("shape", "falling"), [("linear", [1.0, 0.775, 0.55, 0.325]), ("cosine", [1.0, 0.868198, 0.55, 0.231802])]
)
def test_wsd_is_stable_until_its_last_steps(shape, falling):
    rates = [learning_rate(step, 1.0, 0.1, "wsd", 2, 10, 0.0, 4, shape) for step in range(12)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 1.0, 1.0, 1.0, *falling, 0.1, 0.1], abs=1e-6)


def test_warm_up_starts_from_its_initial_rate():
    rates = [learning_rate(step, 1.0, 0.0, "constant", 4, 10, warmup_init=0.2) for step in range(6)]
    assert rates == pytest.approx([0.4, 0.6, 0.8, 1.0, 1.0, 1.0])


@st.composite
def schedules(draw):
    warmup, decay = draw(st.integers(0, 20)), draw(st.integers(1, 40))
    peak = draw(st.floats(1e-6, 1.0))
    return {
        "peak": peak,
        "minimum": peak * draw(st.floats(0, 1)),
        "style": draw(st.sampled_from(["constant", "linear", "cosine", "wsd"])),
        "warmup_steps": warmup,
        "decay_steps": warmup + decay,
        "warmup_init": peak * draw(st.floats(0, 1)),
        "wsd_decay_steps": draw(st.integers(1, decay)),
        "wsd_decay_style": draw(st.sampled_from(["linear", "cosine"])),
    }


@given(schedules())
def test_of_every_schedule(given_schedule):
    """It rises, then never rises again; it stays within its bounds, ends at the lower one, and jumps nowhere by more
    than its steepest slope."""
    peak, minimum = given_schedule["peak"], given_schedule["minimum"]
    warmup, end, style = (given_schedule[key] for key in ("warmup_steps", "decay_steps", "style"))
    rates = [learning_rate(step, **given_schedule) for step in range(end + 5)]
    tiny = 1e-12 * peak
    rising, falling = rates[:warmup], rates[warmup:]
    assert all(b >= a - tiny for a, b in itertools.pairwise(rising))
    assert all(b <= a + tiny for a, b in itertools.pairwise(falling))
    assert all(rate <= peak + tiny for rate in rates)
    assert all(rate >= minimum - tiny for rate in falling)
    assert falling[0] == pytest.approx(peak)
    assert not warmup or rising[-1] == pytest.approx(peak)
    assert rates[end:] == pytest.approx([peak if style == "constant" else minimum] * 5)
    length = given_schedule["wsd_decay_steps"] if style == "wsd" else end - warmup
    steepest = (peak - minimum) * 1.6 / length  # a cosine falls by π/2 of the straight line's slope
    assert all(a - b <= steepest + tiny for a, b in itertools.pairwise(falling))
    if style == "wsd":
        assert rates[warmup : end - length + 1] == pytest.approx([peak] * (end - length + 1 - warmup))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr_decay_style": "wsd"}, "needs lr_wsd_decay_iters"),
        ({"lr_wsd_decay_iters": 3}, 'lr_wsd_decay_iters does nothing with lr_decay_style = "constant"'),
        ({"lr_decay_style": "cosine", "lr_wsd_decay_style": "cosine"}, "lr_wsd_decay_style does nothing"),
        ({"lr_warmup_init": 1e-8}, "lr_warmup_init = 1e-08 does nothing without a warm-up"),
        ({"lr_warmup_init": 1e-8, "lr_warmup_iters": 0}, "does nothing without a warm-up"),
        ({"lr_warmup_init": 1.0, "lr_warmup_iters": 2}, "is above lr = 1e-06"),
    ],
)
def test_options_that_would_do_nothing_are_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        TrainerSection(**options)


def test_wsd_may_have_a_lower_end_and_a_shape():
    options = {"lr_decay_style": "wsd", "lr_wsd_decay_iters": 3, "lr_wsd_decay_style": "cosine", "min_lr": 1e-7}
    assert TrainerSection(**options, lr_decay_iters=9, lr_warmup_fraction=0.2, lr_warmup_init=1e-8)
