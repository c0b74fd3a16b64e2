"""Checkpoint folders: only a whole one is ever taken for one, and deleting never costs the newest of them."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reroll.api import CheckpointError
from reroll.checkpoints.store import CheckpointStore, find_checkpoint
from reroll.models.files import sha256_file


def write(folder, text="weights"):
    (folder / "trainer").mkdir()
    (folder / "trainer" / "rank0.bin").write_text(text * 100)
    (folder / "controller.json").write_text(f'{{"text": "{text}"}}')


def save(store, step, text="weights", collection=None):
    write(store.begin(step), text)
    return store.complete(step, step + 1 if collection is None else collection, {"ranks": 1})


def steps(store):
    return [folder.name for folder in store.folders()]


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "out" / "checkpoints")


def test_a_manifest_says_what_the_folder_holds(store):
    assert store.whole() == (None, [])
    manifest = save(store, 4, collection=2)
    folder = store.folder(4)
    assert (manifest.step, manifest.collection, manifest.facts) == (4, 2, {"ranks": 1})
    assert {name: (file.size, file.sha256) for name, file in manifest.files.items()} == {
        name: ((folder / name).stat().st_size, sha256_file(folder / name))
        for name in ("trainer/rank0.bin", "controller.json")
    }
    assert json.loads((folder / "manifest.json").read_text())["schema"] == 1
    assert CheckpointStore(store.root).whole() == ((folder, manifest), [])
    assert sorted(os.listdir(folder)) == ["controller.json", "manifest.json", "trainer"]


def test_an_interrupted_save_leaves_nothing_in_the_next(store):
    (store.begin(3) / "stale").write_text("left")
    assert list(store.begin(3).iterdir()) == []
    with pytest.raises(CheckpointError, match=r"step_3 holds no files"):
        store.complete(3, 0, {})


TRAINER = "trainer/rank0.bin"


def truncate(folder):
    os.truncate(folder / TRAINER, 5)


def flip(folder):
    data = bytearray((folder / TRAINER).read_bytes())
    data[3] ^= 1
    (folder / TRAINER).write_bytes(data)


def manifest_with(**changes):
    def damage(folder):
        path = folder / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return damage


DAMAGE = {
    "manifest missing": (
        lambda folder: (folder / "manifest.json").unlink(),
        r"step_8 is not whole: manifest.json is missing, its save did not come to its end; use an older",
    ),
    "truncated": (truncate, r"step_8 is not whole: trainer/rank0.bin has 5 bytes and had 700; copy it again"),
    "changed": (flip, r"step_8 is not whole: trainer/rank0.bin is not what was written \(SHA-256 "),
    "file missing": (
        lambda folder: (folder / TRAINER).unlink(),
        r"step_8 is not whole: trainer/rank0.bin is missing: .*; use an older checkpoint",
    ),
    "torn manifest": (
        lambda folder: os.truncate(folder / "manifest.json", 40),
        r"step_8 is not whole: manifest.json cannot be read: ",
    ),
    "empty manifest": (lambda folder: os.truncate(folder / "manifest.json", 0), r"manifest.json cannot be read"),
    "other schema": (manifest_with(schema=2), r"manifest.json: schema 2; this version reads 1"),
    "other step": (manifest_with(step=7), r"its manifest.json is of step 7; the folder was renamed"),
    "no files": (manifest_with(files=None), r"manifest.json: files: None: "),
    "outside": (manifest_with(files={"../x": {"size": 1, "sha256": ""}}), r"names '../x', which is outside of it"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over_and_said(store, name):
    damage, message = DAMAGE[name]
    for step in (4, 8):
        save(store, step)
    damage(store.folder(8))
    found, passed_over = CheckpointStore(store.root).whole()
    assert found.manifest.step == 4
    (reason,) = passed_over
    with pytest.raises(CheckpointError, match=message) as caught:
        store.check(store.folder(8))
    assert str(caught.value) == reason


@pytest.mark.parametrize("name", DAMAGE)
def test_the_newest_whole_one_stays_however_the_newer_are_damaged(store, name):
    for step in (2, 4, 8):
        save(store, step)
    DAMAGE[name][0](store.folder(8))
    assert store.prune(keep_last=1) == [store.folder(2)]
    assert steps(store) == ["step_8", "step_4"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    ),
    st.sampled_from([None, "schema", "step", "collection", "files", "facts", "created", "file"]),
)
def test_no_manifest_fails_in_another_way_than_by_name(value, key):
    with TemporaryDirectory() as name:
        store = CheckpointStore(Path(name))
        save(store, 1)
        path = store.folder(1) / "manifest.json"
        found = json.loads(path.read_text())
        if key == "file":
            found["files"][value if isinstance(value, str) else "x"] = value
        elif key:
            found[key] = value
        path.write_text(json.dumps(found if key else value))
        try:
            store.check(store.folder(1))
        except CheckpointError as error:
            assert str(store.folder(1)) in str(error)


def test_which_checkpoints_stay(store):
    for step in range(0, 22, 2):
        save(store, step)
    store.begin(22)  # is being written
    assert [folder.name for folder in store.prune(keep_last=2, keep_every=8)] == [
        f"step_{step}" for step in (14, 12, 10, 6, 4, 2)
    ]
    assert steps(store) == [f"step_{step}" for step in (22, 20, 18, 16, 8, 0)]
    assert store.prune(keep_last=2, keep_every=8) == []
    assert len(store.prune(keep_last=1)) == 4
    assert steps(store) == ["step_22", "step_20"]


def test_what_interrupted_saves_left_behind_the_newest_goes(store):
    (store.begin(2) / "x").write_text("x")
    save(store, 4)
    assert store.prune(keep_last=5, keep_every=2) == [store.folder(2)]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("files", range(4))
def test_a_deletion_that_was_killed_leaves_no_checkpoint_behind(store, monkeypatch, files):
    for step in (2, 4):
        save(store, step)

    def dies(folder, ignore_errors):
        for path in sorted(path for path in folder.rglob("*") if path.is_file())[:files]:
            path.unlink()
        raise Killed

    monkeypatch.setattr(shutil, "rmtree", dies)
    with pytest.raises(Killed):
        store.prune(keep_last=1)
    monkeypatch.undo()
    again = CheckpointStore(store.root)
    assert steps(again) == ["step_4"]
    assert again.whole().passed_over == []
    assert len(os.listdir(store.root)) == 2
    again.prune(keep_last=1)
    assert os.listdir(store.root) == ["step_4"]


def test_what_cannot_be_deleted_is_said(store, monkeypatch):
    for step in (2, 4):
        save(store, step)
    monkeypatch.setattr(shutil, "rmtree", lambda folder, ignore_errors: None)
    with pytest.raises(CheckpointError, match=r"\.deleting-step_2-\w+ cannot be deleted; delete it by hand"):
        store.prune(keep_last=1)
    assert store.whole().found.manifest.step == 4


def test_a_checkpoint_of_the_same_step_stays_until_the_new_one_is_whole(store):
    save(store, 4, "old", collection=2)
    folder = store.begin(4)
    assert store.whole().found.manifest.collection == 2
    write(folder, "half")
    for _ in range(2):  # killed, begun again, killed
        store = CheckpointStore(store.root)
        assert store.whole().found.manifest.collection == 2
        write(store.begin(4), "new")
    store.complete(4, 3, {})
    assert store.whole().found.manifest.collection == 3
    assert os.listdir(store.root) == ["step_4"]


def test_a_damaged_checkpoint_of_the_same_step_is_replaced(store):
    save(store, 4, "old")
    truncate(store.folder(4))
    save(store, 4, "new")
    assert os.listdir(store.root) == ["step_4"]
    assert "new" in (store.folder(4) / TRAINER).read_text()


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(["save", "begin", "damage", "prune", "reopen"]), st.integers(0, 9)), max_size=14)
)
def test_the_newest_whole_one_is_always_found(operations):
    """Against a list of what is whole."""
    with TemporaryDirectory() as name:
        store, whole = CheckpointStore(Path(name)), set()
        for operation, value in operations:
            if operation == "save":
                save(store, value)
                whole.add(value)
            elif operation == "begin":
                (store.begin(value) / "x").write_text("x")
            elif operation == "damage" and value in whole and (store.folder(value) / TRAINER).exists():
                [truncate, flip][value % 2](store.folder(value))
                if not store.folder(value).with_name(f"step_{value}.previous").exists():
                    whole.discard(value)
            elif operation == "reopen":
                store = CheckpointStore(Path(name))
            elif operation == "prune":
                store.prune(keep_last=1 + value % 3)
                newest = max(whole, default=None)
                whole = {found for found in whole if (Path(name) / f"step_{found}").exists() or found == newest}
            found = store.whole().found
            assert (found and found.manifest.step) == max(whole, default=None)
        assert not [name for name in os.listdir(name) if name.startswith(".")]


SAVES = """
import sys
from pathlib import Path
from reroll.checkpoints.store import CheckpointStore
store = CheckpointStore(Path(sys.argv[1]))
for step in range(1, 100000):
    folder = store.begin(step)
    for number in range(4):
        (folder / f"rank{number}.bin").write_bytes(bytes([step % 251]) * 50_000)
    store.complete(step, step, {})
    print(step, flush=True)
    store.prune(keep_last=2)
"""


@pytest.mark.parametrize("seed", range(3))
def test_a_process_that_is_killed_leaves_its_last_checkpoint(tmp_path, seed):
    process = subprocess.Popen([sys.executable, "-c", SAVES, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    time.sleep(random.Random(seed).uniform(0.05, 0.4))
    process.send_signal(signal.SIGKILL)
    told = [1, *map(int, process.stdout.read().split())]
    process.wait()
    process.stdout.close()
    store = CheckpointStore(tmp_path)
    found = store.whole().found
    assert found.manifest.step in (told[-1], told[-1] + 1)
    assert len(steps(store)) <= 4
    save(store, found.manifest.step + 1)
    store.prune(keep_last=1)
    assert os.listdir(tmp_path) == [f"step_{found.manifest.step + 1}"]


def test_a_checkpoint_is_found_by_what_a_user_names(store):
    output = store.root.parent
    for step in (4, 8, 12):
        save(store, step)
    truncate(store.folder(12))
    for path in (output, store.root):
        assert find_checkpoint(path).folder == store.folder(8)
        assert find_checkpoint(path, step=4).folder == store.folder(4)
    assert find_checkpoint(store.folder(4)).manifest.step == 4
    shutil.copytree(store.folder(4), output / "best")
    assert find_checkpoint(output / "best").manifest.step == 4


@pytest.mark.parametrize(
    ("path", "step", "message"),
    [
        ("nothing", None, r"nothing is no folder: give a run's folder"),
        ("empty", None, r"empty holds no checkpoints: a run makes them with checkpoint.save_interval"),
        ("", 5, r"checkpoints holds no checkpoint of step 5; there are: step_8, step_4"),
        ("", 8, r"holds no whole checkpoint of step 8:\n.*step_8 is not whole: trainer/rank0.bin has 5 bytes"),
        ("checkpoints/step_8", None, r"step_8 is not whole: trainer/rank0.bin has 5 bytes"),
        ("checkpoints/step_4", 8, r"step_4 is of step 4, not of 8: give the run's folder"),
    ],
)
def test_what_is_there_instead_is_said(store, path, step, message):
    for number in (4, 8):
        save(store, number)
    truncate(store.folder(8))
    (store.root.parent / "empty").mkdir()
    with pytest.raises(CheckpointError, match=message):
        find_checkpoint(store.root.parent / path, step)


def test_sizes_alone_can_be_asked_for(store):
    save(store, 4)
    flip(store.folder(4))
    assert find_checkpoint(store.folder(4), thorough=False).manifest.step == 4
    with pytest.raises(CheckpointError, match="is not what was written"):
        find_checkpoint(store.folder(4))


def test_a_disk_that_is_full_is_named(store, monkeypatch):
    write(store.begin(4))

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"step_4 cannot be completed: .*No space left.*; free space"):
        store.complete(4, 1, {})
    monkeypatch.undo()
    assert store.whole().found is None
