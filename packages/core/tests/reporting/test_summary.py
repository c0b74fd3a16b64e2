"""The summary: the gain and its two parts, before and after, the file, the closing lines."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.api import Group, RenderedPrompt, Task, Trace, Verdict
from reroll.reporting.summary import LISTED_TASKS, Summary, closing_lines, split_gain

shares = st.floats(0, 1)


def record(step, accuracy, name="held-out", parse_rate=None, accuracy_parsed=None):
    return {
        "name": name,
        "step": step,
        "accuracy": accuracy,
        "parse_rate": parse_rate,
        "accuracy_parsed": accuracy_parsed,
        "responses": 40,
        "failed": 0,
        "skipped": 0,
    }


def parsed_record(step, parse_rate, accuracy_parsed, name="held-out"):
    return record(step, parse_rate * accuracy_parsed, name, parse_rate, accuracy_parsed)


def summary(*evaluations, output=Path("out"), **values):
    return Summary(name="run", output=output, evaluations=list(evaluations), **values)


@given(shares, shares, shares, shares)
def test_the_parts_of_a_gain_add_up_to_it(parsed_before, right_before, parsed_after, right_after):
    gain = split_gain(parsed_record(0, parsed_before, right_before), parsed_record(9, parsed_after, right_after))
    assert gain["parse_rate"] + gain["correctness"] == pytest.approx(gain["accuracy"], abs=1e-9)


def test_each_part_of_a_gain_is_what_its_own_factor_gave():
    gain = split_gain(parsed_record(0, 0.5, 0.8), parsed_record(9, 1.0, 0.8))
    assert gain == pytest.approx({"accuracy": 40.0, "parse_rate": 40.0, "correctness": 0.0})
    gain = split_gain(parsed_record(0, 0.5, 0.8), parsed_record(9, 0.5, 0.4))
    assert gain == pytest.approx({"accuracy": -20.0, "parse_rate": 0.0, "correctness": -20.0})


@pytest.mark.parametrize("missing", ["before", "after"])
@pytest.mark.parametrize("rate", ["parse_rate", "accuracy_parsed"])
def test_a_gain_has_no_parts_without_every_rate(missing, rate):
    records = {"before": parsed_record(0, 0.5, 0.5), "after": parsed_record(9, 0.5, 1.0)}
    records[missing] |= {rate: None}
    assert split_gain(**records) == pytest.approx({"accuracy": 25.0})


def test_a_rate_of_zero_is_a_rate():
    gain = split_gain(parsed_record(0, 0.0, 0.0), parsed_record(9, 1.0, 1.0))
    assert gain == pytest.approx({"accuracy": 100.0, "parse_rate": 50.0, "correctness": 50.0})


def test_before_is_step_0_alone_and_after_is_the_last_of_each_set():
    told = summary(
        record(0, 0.1), record(0, 0.3, "other"), record(5, 0.4), record(9, 0.6), record(9, 0.9, "late"), output=Path()
    )
    assert told.at(first=True) == {
        "all": {"accuracy": pytest.approx(0.2)},
        "sets": {"held-out": record(0, 0.1), "other": record(0, 0.3, "other")},
    }
    after = told.at(first=False)
    assert {name: (item["step"], item["accuracy"]) for name, item in after["sets"].items()} == {
        "held-out": (9, 0.6),
        "other": (0, 0.3),
        "late": (9, 0.9),
    }
    assert after["all"]["accuracy"] == pytest.approx(0.6)


def test_without_an_evaluation_of_the_start_nothing_was_before():
    told = summary(record(5, 0.4), record(9, 0.6))
    assert told.at(first=True) is None
    assert told.at(first=False)["all"] == {"accuracy": 0.6}
    assert told.gains() == {}


def test_without_any_evaluation_there_is_neither_before_nor_after():
    assert summary().at(first=True) is None
    assert summary().at(first=False) is None
    assert summary().gains() == {}


def test_gains_are_of_sets_evaluated_before_and_after_training():
    told = summary(
        record(0, 0.25),
        record(0, 0.5, "only before"),
        record(9, 0.75),
        record(9, 1.0, "only after"),
        record(0, 0.0, "x"),
    )
    assert told.gains() == {"held-out": {"accuracy": pytest.approx(50.0)}}


def test_the_json_is_the_same_after_writing_and_reading():
    told = summary(
        parsed_record(0, 0.5, 0.5),
        parsed_record(9, 0.75, 1.0),
        steps=9,
        generated_tokens=300,
        generation_seconds=2.0,
        trained_tokens=100,
        ledger={"dispatched": 4},
        filtered={"zero_variance_1": 2},
        model=Path("out/model"),
    )
    values = told.to_json()
    assert json.loads(json.dumps(values)) == values
    assert (values["schema"], values["output"], values["model"]) == (1, "out", "out/model")
    assert values["generated_tokens_per_second"] == 150.0
    assert values["trained_tokens_per_second"] == 0.0, "nothing was trained for a time, which is no division by zero"
    assert values["eval"]["before"]["sets"]["held-out"]["accuracy"] == 0.25
    assert values["eval"]["after"]["sets"]["held-out"]["accuracy"] == 0.75
    assert [item["step"] for item in values["eval"]["all"]] == [0, 9]
    assert values["gain"]["held-out"]["accuracy"] == pytest.approx(50.0)
    assert "evaluations" not in values


def test_without_a_model_the_json_says_so():
    assert summary().to_json()["model"] is None


def test_writing_leaves_the_file_alone_and_no_partial_one(tmp_path):
    told = summary(record(0, 0.5), output=tmp_path)
    path = told.write()
    assert path == tmp_path / "summary.json"
    assert list(tmp_path.iterdir()) == [path]
    assert json.loads(path.read_text("utf-8")) == told.to_json()


def test_writing_again_replaces_what_was_there(tmp_path):
    told = summary(output=tmp_path)
    told.write()
    told.ended = "completed"
    path = told.write()
    assert json.loads(path.read_text("utf-8"))["ended"] == "completed"
    assert list(tmp_path.iterdir()) == [path]


def test_a_summary_that_cannot_be_written_leaves_the_earlier_one_whole(tmp_path):
    path = summary(output=tmp_path, ended="completed").write()
    before = path.read_text("utf-8")
    with pytest.raises(TypeError):
        summary(record(0, object()), output=tmp_path).write()
    assert path.read_text("utf-8") == before
    assert list(tmp_path.iterdir()) == [path]


def test_closing_lines_tell_the_gain_its_parts_and_where_everything_is(tmp_path):
    (tmp_path / "metrics.jsonl").touch()
    told = summary(
        parsed_record(0, 0.5, 0.5),
        parsed_record(9, 0.75, 1.0),
        output=tmp_path,
        steps=9,
        trained_samples=72,
        generated_tokens=3000,
        generation_seconds=2.0,
        trainer_waiting_seconds=0.5,
        producer_blocked_seconds=1.2,
        training_wall_seconds=3.0,
        wall_seconds=5.0,
        model=tmp_path / "model",
    )
    lines = closing_lines(told)
    assert lines[0] == "held-out: accuracy 25.0% → 75.0% (+50.0 points) on 40 held-out responses after 9 steps"
    assert "parse rate 50.0% → 75.0% (+18.8 points)" in lines[1]
    assert "accuracy among parseable answers 50.0% → 100.0% (+31.2 points)" in lines[1]
    assert "9 steps on 72 samples in 3.0 s (5.0 s with start and evaluations)" in lines[2]
    assert "1,500 tokens/s generated, 0 tokens/s trained" in lines[2]
    assert lines[3] == "the trainer waited 0.5 s for rollouts, generation 1.2 s for the trainer"
    assert lines[4:] == [
        f"rollouts: {tmp_path / 'rollouts'}",
        f"metrics:  {tmp_path / 'metrics.jsonl'}, summary: {tmp_path / 'summary.json'}",
        f"model:    {tmp_path / 'model'}",
    ]


def test_closing_lines_name_no_metrics_and_no_model_that_are_not_there(tmp_path):
    lines = closing_lines(summary(output=tmp_path))
    assert len(lines) == 4
    assert lines[-1] == f"summary: {tmp_path / 'summary.json'}"
    assert not any("metrics" in line or "model" in line or "accuracy" in line for line in lines)


def test_closing_lines_of_a_set_whose_verifiers_say_nothing_about_parsing_have_no_parts(tmp_path):
    lines = closing_lines(summary(record(0, 0.5), record(9, 0.25), output=tmp_path))
    assert "(-25.0 points)" in lines[0]
    assert not any("parse rate" in line for line in lines)


def test_closing_lines_have_a_gain_for_each_set(tmp_path):
    records = [record(step, share, name) for step, share in ((0, 0.5), (9, 1.0)) for name in ("first", "second")]
    lines = closing_lines(summary(*records, output=tmp_path))
    assert [line.split(":")[0] for line in lines[:2]] == ["first", "second"]
    assert len(lines) == 6


def test_closing_lines_say_what_is_missing_from_the_numbers(tmp_path):
    whole = closing_lines(summary(record(0, 0.5), record(9, 0.25), output=tmp_path))
    after = record(9, 0.25) | {"failed": 3, "skipped": 2}
    told = closing_lines(summary(record(0, 0.5), after, output=tmp_path, skipped={"too_long": 7}))
    assert "3 could not be scored" in told[0]
    assert "2 prompts are too long" in told[0]
    assert any("too_long: 7" in line for line in told)
    assert not any("scored" in line or "too" in line.split(str(tmp_path))[0] for line in whole)


def judged_group(*states, task="t"):
    of = Task("", {"v": 1}, "set", 0, task)
    traces = [Trace(str(number), of, verdicts={"v": Verdict(None, state=state)}) for number, state in enumerate(states)]
    return Group("o", 0, 0, 0, of, RenderedPrompt("", (), "", ""), traces, [0] * len(traces), {"v": 1.0})


def test_verdicts_are_counted_and_what_could_not_be_judged_is_named():
    found = summary()
    found.judged([judged_group("ok", "rejected")])
    assert not any("verdict" in line or "judged" in line for line in closing_lines(found))
    found.judged([judged_group("unknown", "timeout", task=str(number % 5)) for number in range(7)])
    assert (found.verdicts, found.groups_unknown) == ({"ok": 1, "rejected": 1, "unknown": 7, "timeout": 7}, 7)
    assert found.unknown_tasks == ["set:0", "set:1", "set:2", "set:3", "set:4"]
    text = "\n".join(closing_lines(found))
    assert "verdicts without a score: 7 timeout, 7 unknown, of 16" in text
    assert "7 groups hold responses that could not be judged" in text and "set:0, set:1, set:2, …;" in text
    again = summary()
    again.restore(json.loads(json.dumps(found.state())))
    assert (again.verdicts, again.unknown_tasks) == (found.verdicts, found.unknown_tasks)


def test_the_list_of_tasks_has_a_bound():
    found = summary()
    found.judged([judged_group("unknown", task=str(number)) for number in range(LISTED_TASKS + 5)])
    assert (found.groups_unknown, len(found.unknown_tasks)) == (LISTED_TASKS + 5, LISTED_TASKS)
