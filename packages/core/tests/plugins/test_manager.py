"""Plugins: loaded one by one, named when they are broken, refused when two give one name."""

import types
from importlib.metadata import EntryPoint

import pytest

from reroll.api import PluginError, Verdict, Verifier, hookimpl
from reroll.plugins import PluginManager, load_plugins


class Fixed(Verifier):
    name = "fixed"

    def score(self, task, trace):
        return Verdict(1.0)


def module(name="stranger", **hooks):
    made = types.ModuleType(name)
    for hook, function in hooks.items():
        setattr(made, hook, hookimpl(function))
    return made


def test_built_ins_come_through_the_hooks():
    manager = load_plugins()
    assert manager.get("verifiers", "regex").distribution == "reroll"
    assert {"addition", "multiplication", "calculations", "file"} <= set(manager.names("task_sets"))
    assert all(record.error is None for record in manager.ask_all() if record.distribution == "reroll")


def test_a_stranger_is_found_by_name():
    manager = PluginManager()
    record = manager.register(module(reroll_verifiers=lambda: [Fixed]), "stranger", "reroll-stranger", "1.2")
    assert manager.get("verifiers", "fixed").cls is Fixed
    assert (record.hooks, record.error) == ({"verifiers": ["fixed"]}, None)


def test_import_failure_is_listed_and_stops_only_what_selects_it(tmp_path, monkeypatch):
    (tmp_path / "broken_plugin.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    manager = load_plugins([EntryPoint("broken", "broken_plugin", "reroll")])
    (record,) = manager.ask_all()
    assert "No module named 'not_there_at_all'" in record.error
    with pytest.raises(PluginError, match=r"no verifier is named 'broken'.*failed to load: .*not_there_at_all"):
        manager.get("verifiers", "broken")


def test_two_plugins_with_one_name_are_an_error_naming_both():
    manager = PluginManager()
    manager.register(module("one", reroll_verifiers=lambda: [Fixed]), "one", "reroll-one")
    manager.register(module("two", reroll_verifiers=lambda: [type("Other", (Fixed,), {})]), "two", "reroll-two")
    with pytest.raises(PluginError, match="reroll-one .* and reroll-two"):
        manager.get("verifiers", "fixed")
    (conflict,) = manager.conflicts()
    assert "'fixed' is given twice" in conflict


def test_unknown_hook_is_refused_with_the_nearest():
    with pytest.raises(PluginError, match=r"reroll_verifier, which is no hook.*did you mean reroll_verifiers"):
        PluginManager().register(module(reroll_verifier=lambda: []), "typo", "reroll-typo")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: [42], "42, which is no subclass"),
        (lambda: [type("Nameless", (Verifier,), {})], "has no `name`"),
        (lambda: [type("Old", (Fixed,), {"contract_version": 0})], "contract version 0"),
        (lambda: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_hook_that_gives_nonsense_is_the_plugins_error(given, message):
    manager = PluginManager()
    record = manager.register(module(reroll_verifiers=given), "odd", "reroll-odd")
    assert manager.names("verifiers") == []
    assert message in record.error


def test_missing_names_say_what_to_install_or_correct():
    manager = PluginManager()
    manager.register(module(reroll_verifiers=lambda: [Fixed]), "stranger", "reroll-stranger")
    assert manager.missing("task_sets", "recheck").endswith("pip install reroll-replay-recheck")
    assert "did you mean 'fixed'" in manager.missing("verifiers", "fixt")
    assert "there are: fixed" in manager.missing("verifiers", "zzz")


def test_a_plugin_that_exits_at_import_is_listed(tmp_path, monkeypatch, capsys):
    (tmp_path / "exiting_plugin.py").write_text("print('hello'); raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (record,) = load_plugins([EntryPoint("exiting", "exiting_plugin", "reroll")]).ask_all()
    assert "SystemExit: 3" in record.error
    assert capsys.readouterr().out == "", "what a plugin prints must not mix with what programs read"


def test_a_command_that_is_no_application_is_the_plugins_error():
    manager = PluginManager()
    record = manager.register(module(reroll_commands=lambda: [("hello", 42)]), "odd", "reroll-odd")
    assert manager.names("commands") == []
    assert "no Typer application" in record.error
