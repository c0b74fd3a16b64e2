"""What differs between two run files."""

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from hypothesis import given
from hypothesis import strategies as st
from plan_cases import RUN, SGLANG, run_of

from reroll.planning.comparison import Setting, compare


def test_settings_that_differ_say_who_gives_them(tmp_path):
    here = run_of(tmp_path, "trainer.lr=1e-4", "trainer.global_batch_size=64")
    there = run_of(tmp_path, "trainer.lr=1e-5", "trainer.clip_grad=1.0")
    found = {item.key: item for item in compare(here, there).settings}
    assert set(found) == {"trainer.lr", "trainer.global_batch_size"}
    assert found["trainer.lr"][1:] == (Setting(1e-4, True), Setting(1e-5, True))
    assert found["trainer.global_batch_size"][1:] == (Setting(64, True), Setting(None, False))


def test_figures_that_follow_differ_as_well(tmp_path):
    here = run_of(tmp_path, "trainer.global_batch_size=64", "serving.engine.kv_cache_mb=1")
    derived = {item.key: item[1:] for item in compare(here, run_of(tmp_path)).derived}
    assert derived["sizes.updates_per_collection"] == (2, 1)
    assert derived["scoring_pass.runs"] == ("standalone", "skipped")
    assert derived["memory.engine_device.kv_cache"] == (2**20, 2**31)
    assert derived["servers.worker.kv_cache_mb"] == (1, 2048)
    assert not any(key.startswith("lengths") for key in derived)


def test_another_component_has_other_options(tmp_path):
    comparison = compare(run_of(tmp_path, *SGLANG, "sglang.tp_size=2"), run_of(tmp_path, 'trainer.device="cpu"'))
    found = {item.key: item for item in comparison.settings}
    assert found["serving.engine.kv_cache_mb"].here is None
    assert found["serving.engine.kv_cache_mb"].there == Setting(2048, False)
    assert (found["sglang.tp_size"].here, found["sglang.tp_size"].there) == (Setting(2, True), None)
    derived = {item.key: item for item in comparison.derived}
    assert "--tp-size=2" in derived["servers.told"].here and derived["servers.told"].there == []
    assert derived["placement.gpus"][1:] == (2, 0)


@given(st.lists(st.sampled_from(["trainer.lr=1e-3", "run.seed=3", "rollout.stop=['x']", "serving.num_engines=2"])))
def test_a_run_file_does_not_differ_from_itself_and_sides_swap(tmp_path_factory, overrides):
    folder = tmp_path_factory.mktemp("diff")
    here, plain = run_of(folder, *overrides), run_of(folder)
    assert compare(here, here) == ([], [])
    one, other = compare(here, plain), compare(plain, here)
    assert [(item.key, item.there, item.here) for item in one.settings] == other.settings
    assert {(item.key, str(item.there), str(item.here)) for item in one.derived} == {
        (item.key, str(item.here), str(item.there)) for item in other.derived
    }


def command(folder, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "reroll", "plan", "run.toml", *arguments], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_overrides_apply_to_the_first_file_alone(tmp_path):
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "other.toml").write_text(RUN)
    both = ("--diff", "other.toml", "--set", "trainer.lr=1e-3")
    found = json.loads(command(tmp_path, *both, "--json"))
    assert found == {
        "settings": [
            {"key": "trainer.lr", "here": {"value": 1e-3, "given": True}, "there": {"value": 1e-6, "given": False}}
        ],
        "derived": [],
    }
    assert command(tmp_path, *both).splitlines() == ["trainer.lr", "  here   0.001", "  there  1e-06  (default)"]
    assert command(tmp_path, "--diff", "other.toml") == "nothing differs\n"


def test_an_option_of_a_listed_component_differs_where_one_side_has_it_by_default(tmp_path):
    here = run_of(tmp_path, "data.verifiers=[{ name = 'regex', pattern = '(x)' }]")
    same = run_of(tmp_path, "data.verifiers=[{ name = 'regex', pattern = '(x)', which = 'last' }]")
    other = run_of(tmp_path, "data.verifiers=[{ name = 'regex', pattern = '(x)', which = 'first' }]")
    assert compare(here, same).settings == []
    (found,) = compare(here, other).settings
    assert [side.value[0]["which"] for side in found[1:]] == ["last", "first"]


def test_a_translation_is_not_compared(tmp_path):
    (tmp_path / "miles.toml").write_text("[miles]\nlr = 1e-6\n")
    (tmp_path / "run.toml").write_text(RUN)
    arguments = ["plan", "miles.toml", "--from-miles", "--diff", "run.toml"]
    done = subprocess.run([sys.executable, "-m", "reroll", *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "--diff run.toml" in done.stderr and "--from-miles" in done.stderr
