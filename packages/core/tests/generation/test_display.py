"""What is shown of a generation, on a terminal and elsewhere."""

import io
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from reroll.generation.display import MOST_ROWS, GenerationDisplay, duration, harmless
from reroll.generation.time_left import TimeLeft
from reroll.reporting.display import Display
from reroll.reporting.lines import MOST_WARNINGS


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def make(total=20, finished=None, terminal=False, width=80, concurrency=4, term="xterm"):
    clock, file = Clock(), io.StringIO()
    console = Console(
        file=file, force_terminal=terminal, width=width, height=40, color_system=None, _environ={"TERM": term}
    )
    return GenerationDisplay(total, TimeLeft(1000, concurrency), finished or {}, console, clock), clock, file


def picture(display, width=80):
    """What a terminal shows now."""
    console = Console(file=io.StringIO(), force_terminal=False, width=width, color_system=None)
    console.print(display._drawn())
    return console.file.getvalue().splitlines()


def run_one(display, clock, trial, outcome="passed", seconds=5.0, tokens=100):
    display.started(trial, f"task-{trial}", 0)
    clock.now += seconds
    display.generated(trial, tokens)
    display.finished(trial, outcome)


def test_elsewhere_a_line_comes_no_sooner_than_half_a_minute_after_the_last_and_one_at_the_end():
    display, clock, file = make(total=20, finished={"passed": 2, "failed": 1})
    display.begin()
    for trial in range(17):
        run_one(display, clock, trial, "failed" if trial % 2 else "passed")
    display.close()
    display.close()
    lines = file.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["trials 8/20", "trials 14/20", "trials 20/20"]
    # 12 wait, each five seconds long, and four could go on at a time
    assert [line.split("  ")[1:] for line in lines] == [
        ["passed 5", "failed 3", "20 tokens/s", "15 s left"],
        ["passed 8", "failed 6", "20 tokens/s", "8 s left"],
        ["passed 11", "failed 9"],
    ]


def test_before_trials_begin_and_after_the_end_there_are_no_lines():
    display, clock, file = make()
    clock.now += 1000
    run_one(display, clock, 1)
    display.close()
    assert file.getvalue() == ""


def test_errors_and_skipped_ones_are_named_where_there_are_any():
    display, clock, file = make(total=5)
    display.begin()
    display.started(1, "a", 0)
    display.finished(1, "error")
    display.finished(2, "skipped")
    clock.now += 31
    display.started(3, "b", 0)
    assert file.getvalue() == "trials 2/5  passed 0  failed 0  errors 1  skipped 1  0 tokens/s  time left unknown\n"


def test_time_left_follows_the_trials_that_are_shown():
    display, clock, _ = make(total=100, concurrency=2)
    for trial in range(10):
        run_one(display, clock, trial, seconds=10.0, tokens=200)
    display.started("now", "a", 0)
    facts = display._facts(clock.now)
    assert facts[:3] == ["passed 10", "failed 0", "20 tokens/s"]
    # 89 that wait and one that has just begun, two at a time, ten seconds each
    assert display._time_left.estimate(89, clock.now) == pytest.approx(450, rel=0.05)
    assert facts[3] == f"{duration(display._time_left.estimate(89, clock.now))} left"


def test_a_terminal_shows_the_bar_and_the_longest_running_trials():
    display, clock, _ = make(total=2000, finished={"passed": 300, "failed": 200}, terminal=True)
    for trial in range(10):
        display.started(trial, f"set:{trial}", trial % 4)
        clock.now += 1
    display.generated(0, 50)
    lines = picture(display)
    assert lines[0].endswith("trials 500/2,000") and "━" in lines[0]
    # 50 tokens in ten seconds a stream, of which there were more each second, and late ones count more
    assert "passed 300  failed 200  29 tokens/s  " in lines[1]
    assert [line.split() for line in lines[2:4]] == [
        ["task", "trial", "seconds", "state"],
        ["set:0", "0", "10", "scoring"],
    ]
    assert lines[4].split() == ["set:1", "1", "9", "generating"]
    assert len(lines) == 3 + MOST_ROWS + 1 and lines[-1] == "and 2 more"
    for trial in range(10):
        display.finished(trial, "passed")
    assert len(picture(display)) == 2


def test_a_terminal_is_drawn_on_and_lines_stay_above():
    display, _, file = make(terminal=True)
    display.begin()
    display.started("a", "set:7", 1)
    display.line("[bold]a line that stays[/bold]")
    display.close()
    display.close()
    shown = file.getvalue()
    assert "[bold]a line that stays[/bold]\n" in shown
    assert "set:7" in shown and "trials 0/20" in shown
    assert shown.index("stays") < shown.rindex("trials 0/20")


def test_a_terminal_that_cannot_go_back_gets_lines():
    display, clock, file = make(terminal=True, term="dumb")
    display.begin()
    run_one(display, clock, 1, seconds=31.0)
    assert file.getvalue().startswith("trials 0/20  passed 0  failed 0")
    display.close()


def test_task_keys_are_data():
    display, _, _ = make(terminal=True)
    display.started(1, "[red]x[/red] [/]\none\r\x1b[2Jtwo", 0)
    display.started(2, "y" * 5000, 0)
    lines = picture(display, 60)
    assert lines[3].startswith(r"[red]x[/red] [/] one \x1b[2Jtwo ")
    assert lines[4].startswith("yyyy") and "…" in lines[4] and len(lines) == 5
    assert all(len(line) <= 60 for line in lines)


@given(st.text(), st.integers(20, 200))
def test_any_key_takes_one_line_of_the_width(key, width):
    display, _, _ = make(terminal=True)
    display.started(1, key, 0)
    assert harmless(key).plain.isprintable()
    assert len(picture(display, width)) == 4


def test_warnings_go_to_the_log_and_few_of_them_here(caplog):
    display, _, file = make()
    with caplog.at_level(logging.WARNING, "reroll"):
        for number in range(MOST_WARNINGS + 5):
            display.warn(f"w{number}")
    assert [record.message for record in caplog.records] == [f"w{number}" for number in range(MOST_WARNINGS + 5)]
    lines = file.getvalue().splitlines()
    assert len(lines) == MOST_WARNINGS and lines[0] == "warning: w0"
    assert lines[-1] == "warning: w9; further warnings are in the log"


def test_the_display_of_a_training_names_its_own_log():
    file = io.StringIO()
    display = Display(1, Console(file=file, force_terminal=False, width=200))
    for _ in range(MOST_WARNINGS):
        display.warn("w")
    assert file.getvalue().splitlines()[-1] == "warning: w; further warnings are in run.log"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (99.4, "99 s"),
        (99.6, "2 min"),
        (5999, "1 h 40 min"),
        (12_000, "3 h 20 min"),
        (86_399, "1 d 0 h"),
        (190_000, "2 d 5 h"),
    ],
)
def test_durations_are_as_exact_as_estimates_are(seconds, shown):
    assert duration(seconds) == shown


def test_a_terminal_that_never_began_is_closed_without_a_picture():
    display, _, file = make(terminal=True)
    display.close()
    assert file.getvalue() == ""
