"""Caches of compilers: where they are, what is removed, and that a second process reads what a first one made."""

import asyncio
import fcntl
import os
import sys
import venv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "planning"))

from plan_cases import SGLANG, run_of

from reroll.api import RunFileError, WorkerSpec
from reroll.caches.compilers import LOCK, VARIABLES, build_name, cache_environment, held_cache, remove_expired
from reroll.caches.config import CompilerCacheSection, unusable
from reroll.models.files import converted_directory
from reroll.placement.local import LocalPlacement
from reroll.placement.with_environment import WithEnvironment
from reroll.serving.environment import engine_environment
from reroll.training.environment import trainer_environment

DAY = 86400.0
NOW = 1_900_000_000.0
BUILD = "0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def no_caches_of_the_shell(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def section(root, **options):
    return CompilerCacheSection(root=Path(root), **options)


def entry(folder, age, *names):
    """Files that were last used so many days ago."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or ("kernel.so",):
        (folder / name).write_text("compiled")
        os.utime(folder / name, (NOW - age * DAY, NOW - age * DAY))
    return folder


def left(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.name != LOCK)


def in_workers(root, count, method):
    async def work():
        placement = LocalPlacement()
        with_cache = WithEnvironment(placement, cache_environment(section(root)))
        try:
            found = []
            for number in range(count):
                spec = WorkerSpec(f"compiling-{number}", "compiling_worker:Compiling", environment=PATHS)
                worker = await with_cache.start(spec)
                found.append(await worker.call(method))
                await worker.close()
            return found
        finally:
            await placement.close()

    return asyncio.run(work())


PATHS = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.slow
def test_a_second_process_reads_what_the_first_has_compiled(tmp_path):
    (first, *counts), (second, *later) = in_workers(tmp_path / "cache", 2, "compile")
    assert first == second
    assert (counts, later) == ([0, 1], [1, 0])
    (build,) = (tmp_path / "cache").iterdir()
    assert build.name == build_name(sys.executable)
    assert {path.suffix for path in (build / "inductor").rglob("*")} >= {".so", ".cpp"}


def test_workers_have_the_variables_and_nothing_is_made_for_them(tmp_path):
    ((environment),) = in_workers(tmp_path / "cache", 1, "environment")
    build = tmp_path / "cache" / build_name(sys.executable)
    assert {name: environment[name] for name in VARIABLES} == {
        "TRITON_CACHE_DIR": str(build / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(build / "inductor"),
    }
    assert not (tmp_path / "cache").exists()


def test_builds_have_folders_of_their_own(tmp_path):
    venv.create(tmp_path / "other", symlinks=True)
    other = str(tmp_path / "other" / "bin" / "python")
    before = build_name(other)
    assert before != build_name(sys.executable)
    packages = next((tmp_path / "other").glob("lib*/python3*/site-packages"))
    build_name.cache_clear()
    assert build_name(other) == before
    (packages / "triton-3.0.0.dist-info").mkdir()
    build_name.cache_clear()
    assert build_name(other) != before


def test_what_the_user_has_set_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    found = cache_environment(section(tmp_path))
    assert found["TRITON_CACHE_DIR"] == "/mine" and found["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tmp_path))
    run = run_of(tmp_path, 'trainer.env_vars={ TORCHINDUCTOR_CACHE_DIR = "/yours" }')
    assert trainer_environment(run)["TORCHINDUCTOR_CACHE_DIR"] == "/yours"


def test_switched_off_nothing_is_set(tmp_path):
    run = run_of(tmp_path, "compiler_cache.enabled=false")
    assert (trainer_environment(run), engine_environment(run)) == ({}, {})


def test_servers_of_another_environment_have_another_folder(tmp_path):
    run = run_of(tmp_path, *SGLANG, 'serving.python="/opt/other/bin/python"')
    assert engine_environment(run)["TRITON_CACHE_DIR"] != trainer_environment(run)["TRITON_CACHE_DIR"]
    attached = run_of(tmp_path, *SGLANG, 'serving.urls=["http://one:1"]')
    assert engine_environment(attached) == {}


@pytest.mark.parametrize(
    ("own", "given", "expected"),
    [
        ("", "/x", "/x/reroll"),
        ("", "x", "/home/me/.cache/reroll"),
        ("", "", "/home/me/.cache/reroll"),
        ("", "~/x", "/home/me/x/reroll"),
        ("/y", "/x", "/y"),
        ("~/y", "", "/home/me/y"),
        ("y", "/x", f"{Path.cwd()}/y"),
    ],
)
def test_models_and_compilers_have_one_cache_folder(tmp_path, monkeypatch, own, given, expected):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("REROLL_CACHE", own)
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    assert CompilerCacheSection().folder() == Path(expected) / "compiler-cache"
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert converted_directory(tmp_path / "model.gguf").parent == Path(expected) / "gguf"


def test_only_what_nothing_has_used_is_removed(tmp_path):
    entry(tmp_path / BUILD / "triton" / "old", 8)
    entry(tmp_path / BUILD / "triton" / "young", 6)
    half = entry(tmp_path / BUILD / "triton" / "half", 8)
    entry(half, 1, "read.json")
    read = entry(tmp_path / BUILD / "triton" / "read", 8)
    os.utime(read / "kernel.so", (NOW - DAY, NOW - 30 * DAY))
    entry(tmp_path / "somebody-elses", 100)
    entry(tmp_path, 100, "file")
    remove_expired(tmp_path, 7 * DAY, NOW)
    assert left(tmp_path) == [
        f"{BUILD}/triton/half/kernel.so", f"{BUILD}/triton/half/read.json", f"{BUILD}/triton/read/kernel.so",
        f"{BUILD}/triton/young/kernel.so", "file", "somebody-elses/kernel.so",
    ]  # fmt: skip


def test_a_build_that_a_run_uses_is_left_alone(tmp_path):
    environment = cache_environment(section(tmp_path))
    build = Path(environment["TRITON_CACHE_DIR"]).parent
    entry(build / "triton" / "old", 8000)
    with held_cache(section(tmp_path, expiry_days=100000.0), [environment]) as removed:
        assert removed == []
        assert remove_expired(tmp_path, DAY, NOW) == []
        with held_cache(section(tmp_path), [environment]) as again:
            assert again == []
    assert remove_expired(tmp_path, DAY, NOW) == [build / "triton" / "old"]


def test_a_run_that_begins_removes_what_has_expired_and_says_so_in_its_log(tmp_path, caplog):
    entry(tmp_path / BUILD / "inductor" / "ab", 365 * 40)
    for expected in ([tmp_path / BUILD / "inductor" / "ab"], []):
        with caplog.at_level("INFO", "reroll"), held_cache(section(tmp_path, expiry_days=0.5), []) as removed:
            assert removed == expected
    (told,) = caplog.messages
    assert told.startswith(f"compiler cache {tmp_path}: removed the files of 1 folder")
    assert told.endswith(f"used for 0.5 days: {BUILD}/inductor/ab")


def test_many_that_go_are_counted(tmp_path, caplog):
    for number in range(25):
        entry(tmp_path / BUILD / "triton" / f"{number:02}", 365 * 40)
    with caplog.at_level("INFO", "reroll"), held_cache(section(tmp_path), []):
        assert left(tmp_path) == []
    assert "25 folders" in caplog.text and f"{BUILD}/triton/19 and 5 more" in caplog.text


def test_the_builds_of_all_workers_are_held_at_once(tmp_path):
    builds = [entry(tmp_path / (digit * 24) / "triton" / "old", 8000).parent for digit in "abc"]
    environments = [{"TRITON_CACHE_DIR": str(build), "OTHER": "/x/y"} for build in builds[:2]]
    with held_cache(section(tmp_path, expiry_days=100000.0), environments):
        assert remove_expired(tmp_path, DAY, NOW) == [builds[2] / "old"]


def test_links_are_not_followed(tmp_path):
    outside, root = tmp_path / "outside", tmp_path / "root"
    entry(outside / BUILD, 100)
    entry(root / BUILD / "triton" / "old", 100)
    (root / BUILD / "triton" / "link").symlink_to(outside, target_is_directory=True)
    (root / BUILD / "triton" / "old" / "file").symlink_to(outside / BUILD / "kernel.so")
    (root / f"{BUILD[:-1]}f").symlink_to(outside / BUILD, target_is_directory=True)
    remove_expired(root, DAY, NOW + 10**9)
    assert left(outside) == [f"{BUILD}/kernel.so"]
    assert not (root / BUILD / "triton" / "old" / "kernel.so").exists()


def test_a_lock_that_is_a_link_locks_nothing_outside(tmp_path):
    outside = tmp_path / "precious"
    entry(tmp_path / "root" / BUILD / "triton", 100)
    (tmp_path / "root" / BUILD / LOCK).symlink_to(outside)
    assert remove_expired(tmp_path / "root", DAY, NOW) == []
    assert not outside.exists()


def test_an_empty_build_goes_and_no_cache_is_made(tmp_path):
    (tmp_path / BUILD).mkdir()
    remove_expired(tmp_path, DAY, NOW)
    assert list(tmp_path.iterdir()) == []
    with held_cache(section(tmp_path / "none"), []) as removed:
        assert removed == [] and not (tmp_path / "none").exists()


@given(st.dictionaries(st.text("ab/", min_size=1, max_size=5), st.integers(0, 20), max_size=6), st.integers(1, 15))
def test_nothing_young_is_ever_removed(tmp_path_factory, entries, days):
    root = tmp_path_factory.mktemp("cache")
    for name, age in entries.items():
        entry(root / BUILD / "triton" / name.replace("/", "x"), age)
    remove_expired(root, days * DAY, NOW)
    kept = {path.split("/")[2] for path in left(root)}
    ages = {}
    for name, age in entries.items():
        ages[name.replace("/", "x")] = age  # as the files: what is written last counts
    assert kept == {name for name, age in ages.items() if age <= days}


def test_a_lock_of_another_process_is_seen(tmp_path):
    entry(tmp_path / BUILD / "triton" / "old", 100)
    with (tmp_path / BUILD / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert remove_expired(tmp_path, DAY, NOW) == []


def refused(run):
    return [problem.message for problem in run.get(CompilerCacheSection).validate_files(run, False)]


def test_the_root_is_checked_before_a_run(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert "is no folder" in unusable(file)
    assert "cannot be made" in unusable(file / "inside")
    assert "every user of the machine" in unusable(shared)
    assert "every user of the machine" in unusable(shared / "deep" / "inside")
    shared.chmod(0o1777)
    assert unusable(shared) is None
    assert unusable(tmp_path / "new" / "deep") is None and not (tmp_path / "new").exists()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    monkeypatch.setattr(Path, "stat", lambda path, **_: os.stat_result((0o40755, 0, 0, 1, 54321, 0, 0, 0, 0, 0)))
    assert "belongs to another user" in unusable(tmp_path)


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "cannot be written to" in unusable(tmp_path)
    assert "cannot be made" in unusable(tmp_path / "new")


def test_faults_name_the_key(tmp_path):
    run = run_of(tmp_path, f'compiler_cache.root="{tmp_path / "run.toml"}"')
    assert ["is no folder" in message for message in refused(run)] == [True]
    with pytest.raises(RunFileError, match="compiler_cache.root: 'relative' is not absolute"):
        run_of(tmp_path, 'compiler_cache.root="relative"')
    with pytest.raises(RunFileError, match="compiler_cache.expiry_days: does nothing"):
        run_of(tmp_path, "compiler_cache.enabled=false", "compiler_cache.expiry_days=3.0")
