from reroll.plugins import load_plugins


def test_package_is_listed_without_error_and_gives_nothing_yet():
    (record,) = [record for record in load_plugins().ask_all() if record.distribution == "reroll-replay-continue"]
    assert record.error is None
    assert {hook: names for hook, names in record.hooks.items() if names} == {}
