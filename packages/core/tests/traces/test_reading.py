"""Saved rollouts come back as what was saved, and what is not whole is named."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reroll.api import (
    Decision,
    Disposition,
    Group,
    Node,
    RenderedPrompt,
    Task,
    Trace,
    Verdict,
    VerdictState,
    VersionSpan,
)
from reroll.traces.saved import (
    SavedGroup,
    SavedRolloutError,
    mark_complete,
    move_aside,
    read_groups,
    read_traces,
    save_groups,
    step_directory,
    write_traces,
)

TEXT = st.text(st.characters(), max_size=6).filter(lambda text: json.loads(json.dumps(text)) == text)
"""Lone surrogates included; two that make a pair come back as their character."""
NUMBERS = st.floats(allow_nan=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=3,
)
TABLES = st.dictionaries(TEXT, JSON, max_size=2)
TOKENS = st.lists(st.integers(0, 2**40), max_size=4)
VERDICTS = st.builds(
    Verdict,
    st.none() | NUMBERS,
    st.dictionaries(TEXT, NUMBERS, max_size=2),
    st.sampled_from(get_args(VerdictState)),
    TEXT,
)


@st.composite
def nodes(draw):
    tokens, sampled = draw(TOKENS), draw(st.booleans())
    return Node(
        draw(st.none() | st.integers(0, 3)),
        draw(TABLES),
        sampled,
        tokens,
        [draw(st.booleans()) for _ in tokens],
        [draw(NUMBERS) for _ in tokens] if sampled else [],
        [VersionSpan(draw(st.integers(0, 9)), 0, len(tokens))] if sampled else [],
        draw(st.none() | TEXT),
        draw(st.none() | st.integers(0, 2**63)),
        draw(st.none() | st.dictionaries(TEXT, st.integers(), max_size=2)),
    )


@st.composite
def groups(draw, index):
    task = Task(
        draw(st.lists(TABLES, max_size=2) | TEXT), draw(TABLES), draw(TEXT), draw(st.integers(0)), draw(TEXT),
        draw(st.lists(TABLES, max_size=1)), draw(TABLES),
    )  # fmt: skip
    traces = [
        Trace(
            id=draw(TEXT),
            task=task,
            nodes=draw(st.lists(nodes(), max_size=3)),
            rewards=draw(st.dictionaries(TEXT, NUMBERS, max_size=2)),
            verdicts=draw(st.dictionaries(TEXT, VERDICTS, max_size=2)),
            metrics=draw(st.dictionaries(TEXT, NUMBERS, max_size=2)),
            info={key: value for key, value in draw(TABLES).items() if key != "reroll"},
            is_completed=draw(st.booleans()),
            stop_condition=draw(st.none() | TEXT),
            errors=draw(st.lists(st.fixed_dictionaries({"where": TEXT, "message": TEXT}), max_size=2)),
            timing=draw(st.dictionaries(TEXT, NUMBERS, max_size=2)),
        )
        for _ in range(draw(st.integers(1, 3)))
    ]
    group = Group(
        f"observation-{index}",
        index,
        draw(st.integers(0, 5)),
        draw(st.integers(0, 5)),
        task,
        RenderedPrompt(draw(TEXT), tuple(draw(TOKENS)), draw(TEXT), draw(TEXT)),
        traces,
        [draw(st.integers(0, 2**63)) for _ in traces],
        draw(st.dictionaries(TEXT, NUMBERS, max_size=2)),
        [draw(st.none() | NUMBERS) for _ in traces],
        draw(st.sampled_from(["train", "eval"])),
    )
    decision = Decision(draw(st.sampled_from(["passed", "filtered", "aborted"])), draw(TEXT))
    return SavedGroup(group, decision, draw(st.none() | st.sampled_from(get_args(Disposition))))


SAVED = st.lists(st.integers(0, 20), unique=True, max_size=3).flatmap(
    lambda indices: st.tuples(*(groups(index) for index in indices))
)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(SAVED)
def test_what_was_saved_comes_back(saved):
    with TemporaryDirectory() as folder:
        output = Path(folder)
        mark_complete(output, 3, save_groups(output, 3, saved)) if saved else None
        read = read_groups(step_directory(output, 3)) if saved else []
    assert read == sorted(saved, key=lambda item: item.group.group_index)


def task(**changes):
    return Task(**{"prompt": "q", "targets": {"v": "1"}, "source_dataset": "set", "source_row": 3,
                   "prepared_sample_id": "p3"} | changes)  # fmt: skip


def saved_group(index=0, size=2, of=None):
    of = of or task()
    prompt = Node(None, {"role": "user", "content": "ü"}, False, [1, 2], [False] * 2)
    answer = Node(
        0, {"role": "assistant", "content": "a"}, True, [5], [True], [-0.5], [VersionSpan(4, 0, 1)], "stop", 9
    )
    traces = [Trace(f"{index}-{number}", of, [prompt, answer], is_completed=True) for number in range(size)]
    rewards = [float(number) for number in range(size)]
    group = Group(
        f"o{index}",
        index,
        0,
        7,
        of,
        RenderedPrompt("q", (1, 2), "t", "k"),
        traces,
        list(range(size)),
        {"v": 1.0},
        rewards,
    )
    return SavedGroup(group, Decision("passed"), "consumed")


def saved_step(output, *saved, step=0):
    saved = saved or (saved_group(1), saved_group(0))
    mark_complete(output, step, save_groups(output, step, saved))
    return step_directory(output, step)


def test_groups_come_in_order_whatever_the_order_of_the_lines(tmp_path):
    folder = saved_step(tmp_path)
    path = folder / "train_rollouts.jsonl"
    path.write_bytes(b"".join(reversed(path.read_bytes().splitlines(keepends=True))))
    read = read_groups(folder)
    assert read == [saved_group(0), saved_group(1)]
    assert [trace.id for trace in read[1].group.traces] == ["1-0", "1-1"]
    assert read[0].group.traces[0].task is read[0].group.task
    assert isinstance(read[0].group.traces[0].nodes[1].weight_versions[0], VersionSpan)


def test_numbers_that_are_not_finite_are_numbers_again_where_one_is_meant(tmp_path):
    saved = saved_group()
    saved.group.traces[0].nodes[1].logprobs = [float("-inf")]
    saved.group.rewards[1] = float("inf")
    saved.group.traces[1].metrics = {"m": float("nan")}
    (read,) = read_groups(saved_step(tmp_path, saved))
    assert read.group.traces[0].nodes[1].logprobs == [float("-inf")]
    assert read.group.rewards == [0.0, float("inf")]
    assert read.group.traces[1].metrics["m"] != read.group.traces[1].metrics["m"]


def test_tables_of_any_kind_come_back_as_tables(tmp_path):
    frozen = saved_group(of=task(targets=MappingProxyType({"v": "1"}), metadata=MappingProxyType({"a": [1]})))
    (read,) = read_groups(saved_step(tmp_path, frozen))
    assert (read.group.task.targets, read.group.task.metadata) == ({"v": "1"}, {"a": [1]})


def changed(path, number, *keys, value=None):
    """Rewrites one value of one line; without `value` the key is left out."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    table = lines[number]
    for key in keys[:-1]:
        table = table[key]
    if value is None:
        del table[keys[-1]]
    else:
        table[keys[-1]] = value
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


STAMP = ("info", "reroll")


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        ((*STAMP, "verifier_weights"), None, r":2: info.reroll.verifier_weights: field required"),
        (STAMP, None, r":2: info.reroll: None: "),
        (("nodes", 1, "token_ids"), [1, "2"], r":2: nodes\[1\].token_ids\[1\]: '2': "),
        (("nodes", 1, "mask"), [1], r":2: nodes\[1\].mask\[0\]: 1: "),
        (("nodes", 1, "weight_versions"), [[1, 2]], r":2: nodes\[1\].weight_versions\[0\]: \[1, 2\]: "),
        (("nodes", 1, "logprobs"), ["low"], r":2: nodes\[1\].logprobs\[0\]: 'low': "),
        (("task", "source_row"), "3", r":2: task.source_row: '3': "),
        (("errors",), ["x"], r":2: errors\[0\]: 'x': input should be a table"),
        (("id",), 7, r":2: id: 7: input should be text"),
        ((*STAMP, "disposition"), "lost", r":2: info.reroll.disposition: 'lost'"),
        ((*STAMP, "filter_decision"), "kept", r":2: info.reroll.filter_decision: 'kept'"),
        ((*STAMP, "verdicts"), {"v": {"score": 1}}, r":2: info.reroll.verdicts.v.components: field required"),
        ((*STAMP, "group_attempt"), 4, r":2: info.reroll.group_attempt: 4, but its group has 0 in line 1"),
        ((*STAMP, "sibling"), 0, r":1: info.reroll.sibling: group 1 has the siblings \[0, 0\], and 2 were saved"),
        ((*STAMP, "group_id"), "x", r":1: info.reroll.sibling: group 1 has the siblings \[0\], and 2 were saved"),
    ],
)
def test_a_field_that_is_not_what_was_written_is_named(tmp_path, keys, value, message):
    folder = saved_step(tmp_path)
    changed(folder / "train_rollouts.jsonl", 1, *keys, value=value)
    with pytest.raises(SavedRolloutError, match=r"train_rollouts\.jsonl" + message):
        read_groups(folder)


def test_the_first_sibling_needs_the_prompt(tmp_path):
    folder = saved_step(tmp_path)
    changed(folder / "train_rollouts.jsonl", 0, *STAMP, "prompt", value={"text": "q"})
    with pytest.raises(SavedRolloutError, match=r":1: info.reroll.prompt.token_ids: field required"):
        read_groups(folder)


@given(st.integers(1, 1000))
def test_a_torn_last_line_is_named(cut):
    with TemporaryDirectory() as name:
        folder = saved_step(Path(name))
        path = folder / "train_rollouts.jsonl"
        *whole, last = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(whole) + last[: max(1, len(last) - 1 - cut)])
        with pytest.raises(SavedRolloutError, match=r"train_rollouts\.jsonl:4: the line is torn"):
            read_groups(folder)


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        (None, "train_rollouts.done is missing: the step was not trained on to its end"),
        ('{"schema": 1, "traces": 5}', "holds 4 traces, and train_rollouts.done says 5"),
        ('{"schema": 2, "traces": 4}', "train_rollouts.done: schema 2; this version reads 1"),
        ('{"schema": 1}', "train_rollouts.done cannot be read: KeyError"),
        ("", "train_rollouts.done cannot be read: JSONDecodeError"),
        ("[1]", "train_rollouts.done cannot be read: TypeError"),
    ],
)
def test_a_marker_that_does_not_fit_is_named(tmp_path, marker, message):
    folder = saved_step(tmp_path)
    (folder / "train_rollouts.done").unlink()
    if marker is not None:
        (folder / "train_rollouts.done").write_text(marker)
    with pytest.raises(SavedRolloutError, match=message):
        read_groups(folder)


def test_a_marker_without_its_file_is_named(tmp_path):
    folder = saved_step(tmp_path)
    (folder / "train_rollouts.jsonl").unlink()
    with pytest.raises(SavedRolloutError, match=r"train_rollouts\.jsonl is missing"):
        read_groups(folder)


@given(st.integers(0, 3), st.binary(min_size=1, max_size=6), st.integers(0, 2000))
def test_no_damage_fails_in_another_way_than_by_name(line, damage, at):
    with TemporaryDirectory() as name:
        folder = saved_step(Path(name))
        path = folder / "train_rollouts.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        at = min(at, len(lines[line]))
        lines[line] = lines[line][:at] + damage + lines[line][at + len(damage) :]
        path.write_bytes(b"".join(lines))
        try:
            read_groups(folder)
        except SavedRolloutError as error:
            assert "train_rollouts" in str(error)


def output_with_steps(output, steps):
    for step in steps:
        saved_step(output, saved_group(step), step=step)
    write_traces(output / "rollouts" / "unused_rollouts.jsonl", [saved_group(99)])


def names(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_steps_beyond_a_checkpoint_are_moved_aside(tmp_path):
    output_with_steps(tmp_path, [0, 1, 2, 10])
    (tmp_path / "rollouts" / "step_3.mine").mkdir()
    moved = move_aside(tmp_path, 2, 0, 1)
    folder = tmp_path / "rollouts" / "superseded" / "attempt_1"
    assert moved == [folder / "step_2", folder / "step_10", folder / "unused_rollouts.jsonl"]
    assert names(tmp_path / "rollouts") == ["step_0", "step_1", "step_3.mine", "superseded"]
    assert read_groups(folder / "step_10") == [saved_group(10)]
    assert read_traces(folder / "unused_rollouts.jsonl") == [saved_group(99)]
    assert move_aside(tmp_path, 2, 0, 1) == move_aside(tmp_path, 2, 0, 2) == []
    assert names(tmp_path / "rollouts" / "superseded") == ["attempt_1"]


def test_a_run_without_rollouts_has_nothing_to_move(tmp_path):
    assert move_aside(tmp_path, 0, -1, 1) == []
    assert names(tmp_path) == []


@pytest.mark.parametrize("stop", range(4))
def test_a_move_that_was_killed_is_finished_by_the_next(tmp_path, monkeypatch, stop):
    output_with_steps(tmp_path, [0, 1, 2])
    rename, done = Path.rename, []

    def dies(path, target):
        if len(done) == stop:
            raise KeyboardInterrupt
        done.append(target)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", dies)
    if stop < 3:
        with pytest.raises(KeyboardInterrupt):
            move_aside(tmp_path, 1, 0, 4)
    monkeypatch.undo()
    move_aside(tmp_path, 1, 0, 4)
    assert names(tmp_path / "rollouts") == ["step_0", "superseded"]
    assert names(tmp_path / "rollouts" / "superseded" / "attempt_4") == ["step_1", "step_2", "unused_rollouts.jsonl"]


def test_nothing_that_was_moved_aside_before_is_written_over(tmp_path):
    for number in range(2):
        saved_step(tmp_path, saved_group(number), step=1)
        write_traces(tmp_path / "rollouts" / "unused_rollouts.jsonl", [saved_group(50 + number)])
        move_aside(tmp_path, 0, -1, 1)
    folder = tmp_path / "rollouts" / "superseded" / "attempt_1"
    assert read_groups(folder / "step_1") == [saved_group(0)]
    assert read_groups(folder / "step_1-2") == [saved_group(1)]
    assert read_traces(folder / "unused_rollouts-2.jsonl") == [saved_group(51)]
