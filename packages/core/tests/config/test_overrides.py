"""`--set` and `--option`: TOML values, before anything is checked."""

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from reroll.api import RerollError, RunFileError
from reroll.config import load_run_file
from reroll.config.toml import apply_override, parse_option, parse_override
from reroll.plan import size_problems
from reroll.plugins import load_plugins

RUN = """
[model]
path = "builtin:tiny-math"
[data]
task_set = { name = "addition", verifier = "exact_match" }
verifiers = ["exact_match"]
[[eval.sets]]
name = "first"
task_set = "addition"
[[eval.sets]]
name = "second"
task_set = "addition"
"""
PLUGINS = load_plugins()


def loaded(folder, *overrides, text=RUN):
    path = folder / "run.toml"
    path.write_text(text, "utf-8")
    return load_run_file(path, list(overrides), PLUGINS, [size_problems])


def refused(folder, *overrides, text=RUN):
    with pytest.raises(RunFileError) as caught:
        loaded(folder, *overrides, text=text)
    return str(caught.value)


def test_the_last_value_of_a_repeated_key_counts(tmp_path):
    run = loaded(tmp_path, "trainer.lr=1e-3", "trainer.lr=1e-4", "run.seed=3", "trainer.lr=1e-5")
    assert (run.value("trainer.lr"), run.value("run.seed")) == (1e-5, 3)


def test_a_wrong_value_that_is_overridden_is_never_checked(tmp_path):
    assert loaded(tmp_path, "trainer.lr=-1.0", "trainer.lr=1e-4").value("trainer.lr") == 1e-4


def test_strings_need_quotes(tmp_path):
    assert loaded(tmp_path, 'run.name="gsm8k-comparison"').value("run.name") == "gsm8k-comparison"
    assert loaded(tmp_path, "rollout.stop=['it is \"so\"']").value("rollout.stop") == ['it is "so"']
    message = refused(tmp_path, "run.name=gsm8k")
    assert "'gsm8k' is not a TOML value" in message and """--set 'run.name="gsm8k"'""" in message


@pytest.mark.parametrize("text", ["$HOME/x", "${USER}", "~", "%TEMP%", "`id`"])
def test_nothing_of_the_environment_is_put_into_a_value(tmp_path, text, monkeypatch):
    monkeypatch.setenv("HOME", "/elsewhere")
    monkeypatch.setenv("USER", "somebody")
    assert loaded(tmp_path, f'rollout.stop=["{text}"]').value("rollout.stop") == [text]
    assert str(loaded(tmp_path, f'output.dir="{text}"').value("output.dir")) == text


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("output.export_hf=true", "output.export_hf", True),
        ("data.shuffle=false", "data.shuffle", False),
        ('rollout.stop=["a", "b"]', "rollout.stop", ["a", "b"]),
        ("rollout.stop_token_ids=[1, 2]", "rollout.stop_token_ids", [1, 2]),
        ("data.verifier_weights={ exact_match = 0.5 }", "data.verifier_weights", {"exact_match": 0.5}),
        ("rollout.scoring.workers=5", "rollout.scoring.workers", 5),
        ("trainer.lr = 1e-3", "trainer.lr", 1e-3),
    ],
)
def test_values_are_toml(tmp_path, override, key, value):
    found = loaded(tmp_path, override).value(key)
    assert (list(found) if isinstance(found, tuple) else found) == value


def test_a_component_takes_options_that_the_file_does_not_give(tmp_path):
    run = loaded(tmp_path, "serving.engine.threads=2", "data.task_set.high=12", 'placement.backend.name="ray"')
    assert run.value("serving.engine").model_dump() == {"name": "local", "options": {"threads": 2}}
    assert run.value("data.task_set").options == {"high": 12, "verifier": "exact_match"}
    assert run.value("placement.backend").name == "ray"


def test_a_component_that_has_no_default_must_be_named(tmp_path):
    assert "objective.correction" in refused(tmp_path, "objective.correction.tis_clip=3.0")


def test_options_join_a_component_that_is_selected_by_name_alone(tmp_path):
    run = loaded(tmp_path, "serving.engine.threads=2", text=RUN + '[serving]\nengine = "local"\n')
    assert run.value("serving.engine").options == {"threads": 2}


def test_an_item_of_a_list_is_reached_by_its_number(tmp_path):
    run = loaded(tmp_path, "eval.sets[1].temperature=0.5", "eval.sets[0].task_set.high=7")
    first, second = run.value("eval.sets")
    assert (first.temperature, second.temperature) == (0.0, 0.5)
    assert (first.task_set.options, second.task_set.options) == ({"high": 7}, {})


def test_a_list_is_replaced_as_a_whole(tmp_path):
    run = loaded(tmp_path, 'eval.sets=[{ name = "only", task_set = "addition" }]')
    assert [item.name for item in run.value("eval.sets")] == ["only"]


def test_an_item_that_is_not_there_is_refused_with_the_number_of_items(tmp_path):
    message = refused(tmp_path, "eval.sets[2].temperature=0.5")
    assert "--set eval.sets[2].temperature: eval.sets has 2 items" in message
    assert "run.name is 'x', not a list" in refused(tmp_path, 'run.name="x"', 'run.name[0]="y"')


def test_a_fault_of_an_item_names_the_override(tmp_path):
    assert "--set eval.sets[1].temperature" in refused(tmp_path, "eval.sets[1].temperature=-1.0")


@pytest.mark.parametrize("text", ["lr=1", "trainer.lr", "trainer..lr=1", "trainer.lr[x]=1", "=1", "trainer.lr=1\nx=2"])
def test_what_is_no_override_is_refused(tmp_path, text):
    assert "--set" in refused(tmp_path, text)


NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.one_of(st.integers(), st.booleans(), st.text("xy", max_size=2), st.lists(st.integers(), max_size=2))


@given(st.lists(st.tuples(st.lists(NAMES, min_size=2, max_size=4), VALUES), max_size=6))
def test_what_was_set_last_is_there_or_the_override_was_refused(settings):
    table = {}
    for path, value in settings:
        try:
            apply_override(table, path, value)
        except RunFileError:
            continue
        found = table
        for part in path:
            found = found[part]
        assert found == value


@given(st.text(max_size=12))
def test_any_text_is_an_override_or_an_error(text):
    try:
        path, _ = parse_override(text)
        assert len(path) >= 2
    except RunFileError:
        pass


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("limit", "--option limit: is not of the form KEY=VALUE"),
        ("=3", "--option =3: is not of the form KEY=VALUE"),
        ("a b=3", "--option a b=3: is not of the form KEY=VALUE"),
        ("name=x", """--option name: 'x' is not a TOML value; strings need TOML quotes .*: --option 'name="x"'"""),
        ("name=", "--option name: '' is not a TOML value"),
        ("limit=3\nother=4", "is not a TOML value"),
        ("deep=" + "[" * 100_000, "--option deep: .* is not a TOML value"),
        ("api_key=abcdefgh12", r"--option api_key: '\(hidden\)' is not a TOML value"),
    ],
)
def test_an_option_that_is_none_is_told_with_its_value_and_a_remedy(text, told):
    with pytest.raises(RerollError, match=told) as caught:
        parse_option(text)
    assert "abcdefgh12" not in str(caught.value)


@given(st.text("abc_-", min_size=1, max_size=5), st.integers() | st.booleans() | st.text("xyz = \"'", max_size=9))
def test_an_option_has_the_value_that_toml_writes(key, value):
    written = tomli_w.dumps({"value": value}).partition("=")[2].strip()
    assert parse_option(f" {key} = {written}") == (key, value)
