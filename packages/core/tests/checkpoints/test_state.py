"""What the controller saves, and which changes a run may not go on with."""

import json
import os
import random
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.api import CheckpointError, Seeds, Task, TaskSet
from reroll.checkpoints.state import (
    Identity,
    RunState,
    changed_settings,
    data_identity,
    identity_problems,
    model_identity,
    read_state,
)
from reroll.models.files import ModelFiles, sampled_sha256
from reroll.tasks.file import FileConfig, FileTaskSet

TEXT = st.text(st.characters(), max_size=5).filter(lambda text: json.loads(json.dumps(text)) == text)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
TABLES = st.dictionaries(TEXT, JSON, max_size=2)
IDENTITIES = st.builds(
    Identity, run_id=TEXT, seeds=st.just(asdict(Seeds(1, 2, 2**63))), data=TABLES, model=st.dictionaries(TEXT, TABLES)
)
STATES = st.builds(
    RunState,
    version=st.integers(0),
    engine_version=st.integers(0),
    collection=st.integers(0),
    attempt=TEXT,
    identity=IDENTITIES,
    settings=TABLES,
    cursor=TABLES,
    events=TABLES,
    summary=TABLES,
    evaluations=TABLES,
)


@given(STATES)
def test_a_state_comes_back_as_it_was(state):
    with TemporaryDirectory() as folder:
        path = state.write(Path(folder))
        assert os.listdir(folder) == [path.name] == ["controller.json"]
        assert read_state(Path(folder)) == state


def state(**changes):
    empty = {name: {} for name in ("settings", "cursor", "events", "summary", "evaluations")}
    identity = Identity(run_id="r", seeds={"run": 0}, data={}, model={})
    return RunState(
        **{"version": 3, "engine_version": 3, "collection": 2, "attempt": "a", "identity": identity} | empty | changes
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 9}, r"controller.json: schema 9; this version reads 1"),
        ({"version": -1}, r"controller.json: version: -1: .*greater than or equal to 0; use another checkpoint"),
        ({"version": "3"}, r"controller.json: version: '3': input should be a valid integer"),
        ({"cursor": []}, r"controller.json: cursor: \[\]: input should be a table"),
        ({"identity": {"run_id": "r"}}, r"controller.json: identity.seeds: field required"),
    ],
)
def test_a_field_that_is_no_such_thing_is_named(tmp_path, changes, message):
    path = state().write(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(CheckpointError, match=message):
        read_state(tmp_path)


@pytest.mark.parametrize("text", [None, "", "{", "[]", "null"])
def test_a_file_that_is_no_state_is_named(tmp_path, text):
    if text is not None:
        (tmp_path / "controller.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"controller\.json"):
        read_state(tmp_path)


def model(folder, weights=b"w" * 5000, **files):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"a": 1}')
    (folder / "model.safetensors").write_bytes(weights)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return model_identity(ModelFiles(folder))


def prompts(path, *questions, **config):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"prompt": q, "targets": {"v": "1"}}) + "\n" for q in questions))
    return data_of(FileTaskSet(FileConfig(path=path)), name="file", path=str(path), **config)


def data_of(task_set, shuffle=True, **selection):
    return data_identity({"data": {"task_set": selection, "shuffle": shuffle}}, {"only": task_set})


def identity(**changes):
    return Identity(**{"run_id": "r", "seeds": {"run": 0, "data": 0, "rollout": 0}, "data": {}, "model": {}} | changes)


def test_the_same_run_in_other_folders_has_no_problems(tmp_path):
    first = identity(data=prompts(tmp_path / "a" / "q.jsonl", "x"), model=model(tmp_path / "m"))
    again = identity(
        run_id="another", data=prompts(tmp_path / "b" / "q.jsonl", "x"), model=model(tmp_path / "n", README__md="new")
    )
    os.utime(tmp_path / "n" / "model.safetensors", (1, 1))
    assert identity_problems(first, again) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": {"run": 0, "data": 7, "rollout": 0}}, "seeds.data: 0 in the checkpoint, 7 now"),
        ({"seeds": {"run": 0, "data": 0}}, "seeds.rollout: 0 in the checkpoint, unset now"),
    ],
)
def test_another_seed_is_a_problem(changes, message):
    assert identity_problems(identity(), identity(**changes)) == [message]


def test_other_data_is_a_problem(tmp_path):
    path = tmp_path / "a" / "q.jsonl"
    first = identity(data=prompts(path, "x", "y"))
    (problem,) = identity_problems(first, identity(data=prompts(path, "x", "z")))
    assert problem.startswith("data.fingerprint: '")
    (problem,) = identity_problems(first, identity(data=prompts(path, "x", "y", input_key="q")))
    assert problem == "data.task_set.input_key: unset in the checkpoint, 'q' now"
    (problem,) = identity_problems(first, identity(data=prompts(tmp_path / "a" / "other.jsonl", "x", "y")))
    assert problem.startswith("data.task_set.path: ")
    (problem,) = identity_problems(first, identity(data=prompts(path, "x", "y", shuffle=False)))
    assert problem == "data.shuffle: True in the checkpoint, False now"


class Stream(TaskSet):
    name = "stream"

    def task(self, index):
        return Task("q", {"v": "1"}, "stream", index, str(index))


def test_a_stream_is_known_by_its_settings(tmp_path):
    first = identity(data=data_of(Stream(), name="stream", url=str(tmp_path / "a" / "x")))
    assert first.data["fingerprint"] is None
    (problem,) = identity_problems(
        first, identity(data=data_of(Stream(), name="stream", url=str(tmp_path / "b" / "x")))
    )
    assert problem.startswith("data.task_set.url: ")


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"config__json": '{"a": 2}'}, "model.config.json.sha256"),
        ({"weights": b"w" * 4999 + b"v"}, "model.model.safetensors.sha256"),
        ({"weights": b"w" * 5001}, "model.model.safetensors.s"),
        ({"chat_template__jinja": "{{ x }}"}, "model.chat_template.jinja: unset in the checkpoint, {"),
    ],
)
def test_another_model_is_a_problem(tmp_path, files, problem):
    problems = identity_problems(identity(model=model(tmp_path / "m")), identity(model=model(tmp_path / "n", **files)))
    assert problems
    assert all(found.startswith(problem) for found in problems)


def test_changed_settings_are_told_and_where_a_run_is_kept_is_not():
    saved = {
        "trainer": {"lr": 1e-6, "threads": 1, "off": True},
        "data": {"task_set": {"name": "addition", "high": 9}},
        "output": {"dir": "a"},
        "launch": {"max_retries": 1},
        "checkpoint": {"keep_last": 1},
        "trackers": {"names": []},
    }
    now = {
        "trainer": {"lr": 1e-5, "off": 1, "clip_grad": 0.5},
        "data": {"task_set": {"name": "addition", "high": 10}},
        "output": {"dir": "b"},
        "launch": {},
        "checkpoint": {"keep_last": 2},
        "service": {"api_key": "secret"},
    }
    assert changed_settings(saved, now) == [
        "data.task_set.high: 9 → 10",
        "service.api_key: unset → (hidden)",
        "trainer.clip_grad: unset → 0.5",
        "trainer.lr: 1e-06 → 1e-05",
        "trainer.off: True → 1",
        "trainer.threads: 1 → unset",
    ]
    assert changed_settings(saved, saved) == []


MIB = 1 << 20


@pytest.mark.parametrize("size", [0, 1, MIB, 6 * MIB, 6 * MIB + 1, 9 * MIB])
def test_a_sampled_digest_sees_size_and_both_ends(tmp_path, size):
    path = tmp_path / "weights"
    data = bytearray(random.Random(0).randbytes(size))
    path.write_bytes(data)
    first = sampled_sha256(path)
    assert sampled_sha256(path) == first
    for place in {0, size - 1, min(size, MIB) - 1, max(size - MIB, 0)} - {-1}:
        if 0 <= place < size:
            data[place] ^= 1
            path.write_bytes(data)
            assert sampled_sha256(path) != first
            data[place] ^= 1
    path.write_bytes(data + b"\0")
    assert sampled_sha256(path) != first


def test_a_sampled_digest_reads_64_blocks_spread_over_the_rest(tmp_path):
    path = tmp_path / "weights"
    size = 40 * MIB
    with path.open("wb") as file:
        file.truncate(size)
    first, seen = sampled_sha256(path), 0
    places = range(MIB, size - MIB, 1 << 16)
    for place in places[::8]:
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"\1" * (1 << 16))
            seen += sampled_sha256(path) != first
            file.seek(place)
            file.write(b"\0" * (1 << 16))
    assert 0.1 < seen / len(places[::8]) < 0.6
    for number in (0, 63):  # the first and the last block lie against the ends
        with path.open("r+b") as file:
            place = MIB if number == 0 else size - MIB - 1
            file.seek(place)
            file.write(b"\1")
            file.flush()
            assert sampled_sha256(path) != first
            file.seek(place)
            file.write(b"\0")
