"""Task directories are read without Harbor; what cannot be read, or is not run, is named."""

import os
import socket
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.api import TaskError

sys.path.insert(0, str(Path(__file__).parent))

from task_cases import CONFIG, tasks_in, write_task

from reroll_harbor.bash import SCHEMA
from reroll_harbor.layout import CONFIG as FILE
from reroll_harbor.layout import digest_of, find_tasks, read_task

TEST = "echo 1 > /logs/verifier/reward.txt\n"


def config_with(*lines):
    return CONFIG + "\n".join(lines) + "\n"


def test_a_directory_of_tasks_gives_one_task_each_in_order_of_their_names(tmp_path):
    for name in ("b", "a", "group/d", "group/c", ".hidden/e"):
        write_task(tmp_path / "set" / name, instruction=f"Do {name}.\n")
    (tmp_path / "set" / "notes.txt").write_text("no task")
    (tmp_path / "set" / "docs").mkdir()
    tasks = list(tasks_in(tmp_path / "set"))
    assert [task.prepared_sample_id for task in tasks] == ["a", "b", "c", "d"]
    assert [task.source_row for task in tasks] == [0, 1, 2, 3]
    assert {task.source_dataset for task in tasks} == {"set"}
    assert tasks[2].prompt == [{"role": "user", "content": "Do group/c.\n"}]
    assert tasks[0].tools == [SCHEMA]
    assert tasks[0].targets == {
        "harbor": {"path": str(tmp_path / "set" / "a"), "digest": digest_of(tmp_path / "set" / "a")}
    }
    assert tasks[0].metadata == {"agent_timeout": 60.0, "verifier_timeout": 60.0}
    with pytest.raises(IndexError):
        tasks_in(tmp_path / "set").task(4)


def test_one_task_directory_is_a_set_as_well(tmp_path):
    config = CONFIG + '[task]\nname = "people/greet"\n'
    (task,) = tasks_in(write_task(tmp_path / "set" / "greet", config=config), system_prompt="You have a shell.")
    assert (task.source_dataset, task.prepared_sample_id) == ("set", "people/greet")
    assert task.prompt[0] == {"role": "system", "content": "You have a shell."}
    assert task.prompt[1]["role"] == "user"


def test_the_data_set_that_a_task_names_is_its_source(tmp_path):
    write_task(tmp_path / "greet", config='source = "people/greetings"\n' + CONFIG)
    assert tasks_in(tmp_path / "greet").task(0).source_dataset == "people/greetings"


def test_limits_that_are_not_given_are_harbors(tmp_path):
    write_task(tmp_path / "greet", config="")
    assert tasks_in(tmp_path / "greet").task(0).metadata == {"agent_timeout": None, "verifier_timeout": None}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("<!-- benchmark canary 26b5 -->\n# Canary GUID 1\n\nDo it.\n", "Do it.\n"),
        ("\n\n# harbor-canary: x\nDo it.\n<!-- canary -->\n", "Do it.\n<!-- canary -->\n"),
        ("# Greetings\n\nDo it.\n", "# Greetings\n\nDo it.\n"),
        ("Mind the canary.\n", "Mind the canary.\n"),
        ("<!-- canary,\nover two lines -->\nDo it.", "<!-- canary,\nover two lines -->\nDo it."),
    ],
)
def test_comments_that_mark_a_benchmark_are_not_shown(tmp_path, written, said):
    assert read_task(write_task(tmp_path / "greet", instruction=written)).instruction == said


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"config": None}, "task.toml does not exist"),
        ({"config": "[agent\n"}, "task.toml: "),
        ({"config": "a = " + "[" * 5000}, "task.toml: "),
        ({"config": "agent = 3\n"}, "agent = 3 is no table: write [agent]"),
        ({"config": "[agent]\ntimeout_sec = 0\n"}, "[agent] timeout_sec = 0 is no number of seconds above 0"),
        (
            {"config": "[verifier]\ntimeout_sec = '60'\n"},
            "[verifier] timeout_sec = '60' is no number",
        ),
        ({"config": "[verifier]\ntimeout_sec = inf\n"}, "[verifier] timeout_sec = inf"),
        ({"config": "[agent]\ntimeout_sec = true\n"}, "[agent] timeout_sec = True"),
        ({"config": "[task]\nname = 3\n"}, "[task] name = 3 is no name"),
        ({"instruction": None}, "instruction.md does not exist"),
        ({"instruction": " \n# canary\n"}, "instruction.md: says nothing"),
        ({"test": None}, "has no tests/test.sh"),
        ({"config": config_with("[[steps]]", "name = 'one'")}, "has [[steps]] (a task of several steps)"),
        ({"config": config_with("os = 'Windows'")}, "has [environment] os = 'Windows'"),
        ({"config": config_with("os = 3")}, "has [environment] os = 3"),
        ({"config": config_with("skills_dir = '/skills'")}, "has [environment] skills_dir"),
        (
            {"config": config_with("[[environment.mcp_servers]]", "name = 'files'")},
            "has [environment] mcp_servers",
        ),
    ],
)
def test_what_is_wrong_with_a_task_is_named(tmp_path, parts, words):
    write_task(tmp_path / "set" / "fine")
    folder = write_task(tmp_path / "set" / "greet", **parts)
    tasks = tasks_in(tmp_path / "set")
    assert len(tasks) == 2
    assert tasks.task(0).prepared_sample_id == "fine"
    with pytest.raises(TaskError) as caught:
        tasks.task(1)
    assert words in str(caught.value)
    assert str(folder) in str(caught.value)


def test_what_is_not_run_says_what_to_do(tmp_path):
    (write_task(tmp_path / "greet") / "trajectory.json").write_text("{}")
    with pytest.raises(TaskError, match="which the harness 'harbor' does not run; leave the task out"):
        read_task(tmp_path / "greet")


def test_a_task_needs_an_environment_or_an_image(tmp_path):
    folder = write_task(tmp_path / "greet")
    (folder / "environment" / "Dockerfile").unlink()
    (folder / "environment").rmdir()
    with pytest.raises(TaskError, match="neither a directory environment nor"):
        read_task(folder)
    (folder / FILE).write_text(CONFIG + 'docker_image = "debian:12"\n')
    assert read_task(folder).name == "greet"


@pytest.mark.parametrize(
    "verifier", ["environment_mode = 'separate'", "[verifier.environment]\ndocker_image = 'judge:1'"]
)
def test_tests_may_be_in_an_image_of_the_verifiers_own(tmp_path, verifier):
    folder = write_task(tmp_path / "greet", config=f"[verifier]\n{verifier}\n", test=None)
    if "separate" in verifier:
        with pytest.raises(TaskError, match=r"has no tests/test\.sh"):
            read_task(folder)
        (folder / "tests").mkdir()
        (folder / "tests" / "Dockerfile").write_text("FROM scratch\n")
    assert read_task(folder).name == "greet"


@pytest.mark.parametrize("name", ["task.toml", "instruction.md"])
@pytest.mark.parametrize("fault", ["bytes", "directory"])
def test_files_that_are_no_texts_are_named(tmp_path, name, fault):
    folder = write_task(tmp_path / "greet")
    (folder / name).unlink()
    if fault == "bytes":
        (folder / name).write_bytes(b"\xff\xfe")
    else:
        (folder / name).mkdir()
    with pytest.raises(TaskError, match=f"{name} is no "):
        tasks_in(tmp_path / "greet").task(0)


def refuse(*arguments, **options):
    raise PermissionError(13, "Permission denied")  # root, who may run these tests, is refused nothing


@pytest.mark.parametrize("reader", ["read_text", "open"])
def test_files_that_may_not_be_read_are_named(tmp_path, monkeypatch, reader):
    folder = write_task(tmp_path / "greet")
    monkeypatch.setattr(Path, reader, refuse)
    with pytest.raises(TaskError, match="cannot be read: .*Permission denied") as caught:
        tasks_in(folder).task(0)
    assert str(folder) in str(caught.value)


def test_a_directory_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(TaskError, match="cannot be read: .*Permission denied") as caught:
        find_tasks(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_two_tasks_of_one_name_are_refused(tmp_path):
    for name in ("a", "b"):
        write_task(tmp_path / "set" / name, config=CONFIG + '[task]\nname = "people/greet"\n')
    tasks = tasks_in(tmp_path / "set")
    assert tasks.task(0).prepared_sample_id == "people/greet"
    with pytest.raises(TaskError, match=r"/b: is named 'people/greet', as .*/a is"):
        tasks.task(1)


@pytest.mark.parametrize(
    ("made", "words"), [(None, "does not exist"), ("file", "is no directory"), ("empty", "holds no directory with a")]
)
def test_a_path_without_tasks_is_named(tmp_path, made, words):
    path = tmp_path / "set"
    if made == "file":
        path.write_text("")
    elif made == "empty":
        (path / "deep" / "deeper").mkdir(parents=True)
        write_task(path / "deep" / "deeper" / "greet")
    with pytest.raises(TaskError, match=words) as caught:
        len(tasks_in(path))
    assert str(path) in str(caught.value)


def test_a_link_to_a_directory_above_does_not_go_on_for_ever(tmp_path):
    write_task(tmp_path / "set" / "greet")
    (tmp_path / "set" / "again").symlink_to(tmp_path / "set", target_is_directory=True)
    with pytest.raises(TaskError, match="again is a link to a directory above it"):
        find_tasks(tmp_path / "set")


def test_a_linked_task_is_a_task(tmp_path):
    write_task(tmp_path / "kept" / "greet")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "hello").symlink_to(tmp_path / "kept" / "greet", target_is_directory=True)
    (task,) = tasks_in(tmp_path / "set")
    assert task.targets["harbor"]["path"] == str(tmp_path / "kept" / "greet")


def link_in_a_circle(folder):
    (folder / "tests" / "one").symlink_to(folder / "tests" / "two")
    (folder / "tests" / "two").symlink_to(folder / "tests" / "one")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (link_in_a_circle, "is a link that leads nowhere"),
        (lambda folder: (folder / "tests" / "data").symlink_to(folder / "gone"), "is a link that leads nowhere"),
        (lambda folder: (folder / "tests" / "data").symlink_to("/etc"), "is a link out of the task"),
        (lambda folder: (folder / "tests" / "data").symlink_to(folder), "is a link to a directory above it"),
        (lambda folder: os.mkfifo(folder / "tests" / "data"), "is neither a file nor a directory nor a link"),
    ],
)
def test_what_can_be_no_part_of_a_task_is_named(tmp_path, spoil, words):
    folder = write_task(tmp_path / "greet")
    spoil(folder)
    with pytest.raises(TaskError, match=words):
        tasks_in(folder).task(0)


def test_a_link_within_the_task_is_a_part_of_it(tmp_path):
    folder = write_task(tmp_path / "greet")
    before = digest_of(folder)
    (folder / "tests" / "same").symlink_to("test.sh")
    assert digest_of(folder) != before


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "tests" / "test.sh").write_text("true\n"),
        lambda folder: (folder / "tests" / "test.sh").chmod(0o755),
        lambda folder: (folder / "tests" / "more.sh").write_text(""),
        lambda folder: (folder / "environment" / "Dockerfile").rename(folder / "environment" / "Containerfile"),
        lambda folder: (folder / "task.toml").write_text(CONFIG + "cpus = 2\n"),
    ],
)
def test_every_change_of_a_file_changes_digest_and_fingerprint(tmp_path, change):
    folder = write_task(tmp_path / "set" / "greet")
    before = digest_of(folder), tasks_in(tmp_path / "set").fingerprint()
    assert before == (digest_of(folder), tasks_in(tmp_path / "set").fingerprint())
    change(folder)
    assert digest_of(folder) != before[0]
    assert tasks_in(tmp_path / "set").fingerprint() != before[1]


def test_the_fingerprint_is_that_of_the_files_wherever_they_are(tmp_path):
    for place in ("here", "there"):
        write_task(tmp_path / place / "set" / "greet")
    here, there = (tasks_in(tmp_path / place / "set") for place in ("here", "there"))
    assert here.fingerprint() == there.fingerprint()
    assert here.fingerprint() != tasks_in(tmp_path / "here" / "set", system_prompt="Be brief.").fingerprint()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
KEYS = st.sampled_from(["timeout_sec", "os", "docker_image", "mcp_servers", "name", "environment", "skills_dir"])
TABLES = st.dictionaries(
    st.sampled_from(["agent", "verifier", "environment", "task", "steps", "source", "metadata"]),
    VALUES | st.dictionaries(KEYS, VALUES, max_size=3),
    max_size=4,
)


def toml(value):
    """A value as TOML, inline; None, which it does not have, is left out."""
    if isinstance(value, dict):
        inner = ", ".join(f"{toml(key)} = {toml(item)}" for key, item in value.items() if item is not None)
        return f"{{ {inner} }}"
    if isinstance(value, list):
        return f"[{', '.join(toml(item) for item in value if item is not None)}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(character):08X}" for character in value) + '"'
    return repr(value)


@given(config=TABLES)
def test_any_configuration_is_read_or_refused_with_its_file(tmp_path_factory, config):
    folder = write_task(tmp_path_factory.mktemp("any") / "greet")
    text = "".join(f"{key} = {toml(value)}\n" for key, value in config.items() if value is not None)
    tomllib.loads(text)
    (folder / FILE).write_text(text, "utf-8")
    try:
        read = read_task(folder)
    except TaskError as error:
        assert str(folder) in str(error)
    else:
        assert read.name
        assert read.agent_timeout is None or read.agent_timeout > 0
        assert read.verifier_timeout is None or read.verifier_timeout > 0


@given(text=st.text(max_size=80) | st.binary(max_size=80))
def test_any_file_is_read_or_refused(tmp_path_factory, text):
    folder = write_task(tmp_path_factory.mktemp("any") / "greet")
    (folder / FILE).write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    try:
        read_task(folder)
    except TaskError as error:
        assert FILE in str(error)


def test_a_socket_is_no_part_of_a_task(tmp_path, monkeypatch):
    folder = write_task(tmp_path / "greet")
    monkeypatch.chdir(folder)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("tests/ear")
        with pytest.raises(TaskError, match="is neither a file"):
            digest_of(folder)
