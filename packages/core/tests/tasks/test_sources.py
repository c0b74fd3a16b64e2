"""`[[data.sources]]`: what may be written, and what it resolves to."""

import types

import pytest

from reroll.api import RunFileError, hookimpl
from reroll.cli.validate import file_problems
from reroll.config import load_run_file
from reroll.plan import size_problems, source_limits
from reroll.planning.report import make_plan
from reroll.plugins import load_plugins
from reroll.tasks.arithmetic import Addition
from reroll.tasks.config import DataSection

BASE = """
[model]
path = "builtin:tiny-math"
[data]
verifiers = ["exact_match"]
"""
SUMS = '{ name = "addition", verifier = "exact_match" }'


@pytest.fixture(scope="module")
def plugins():
    return load_plugins()


def load(tmp_path, plugins, *sources, more=""):
    path = tmp_path / "run.toml"
    listed = "".join(f"[[data.sources]]\n{source}\n" for source in sources)
    path.write_text(BASE + listed + more)
    return load_run_file(path, [], plugins, [size_problems])


def source(name="a", **more):
    fields = {"name": f'"{name}"', "task_set": SUMS, **more}
    return "\n".join(f"{key} = {value}" for key, value in fields.items())


def faults(tmp_path, plugins, *sources, more=""):
    with pytest.raises(RunFileError) as caught:
        load(tmp_path, plugins, *sources, more=more)
    return {problem.key: str(problem) for problem in caught.value.problems}


def limits(tmp_path, plugins, given, more=""):
    run = load(tmp_path, plugins, given, more=more)
    return source_limits(run, run.get(DataSection).sources[0])


def test_without_sources_the_task_set_is_the_only_one_under_its_own_name(tmp_path, plugins):
    run = load(tmp_path, plugins)
    (only,) = run.get(DataSection).all_sources()
    assert (only.name, only.task_set.name) == ("addition", "addition")
    assert source_limits(run, only) == (512, 128, 640)


def test_ratios_are_all_or_none(tmp_path, plugins):
    load(tmp_path, plugins, source("a", ratio=1), source("b", ratio=0.5))
    load(tmp_path, plugins, source("a"), source("b"))
    found = faults(tmp_path, plugins, source("a", ratio=1), source("b"))
    assert "b has no ratio" in found["data.sources"]


def test_two_sources_of_one_name_are_refused(tmp_path, plugins):
    assert "another source" in faults(tmp_path, plugins, source("a"), source("a"))["data.sources[1].name"]


def test_a_task_set_beside_sources_is_refused(tmp_path, plugins):
    path = tmp_path / "run.toml"
    path.write_text(BASE + 'task_set = "addition"\n[[data.sources]]\n' + source("a"))
    with pytest.raises(RunFileError, match="is given beside data.sources"):
        load_run_file(path, [], plugins, [size_problems])


@pytest.mark.parametrize("ratio", ["0", "-1.0", "nan", "inf", "1e-320", "1e300", "true", '"1"'])
def test_a_ratio_is_a_positive_number(tmp_path, plugins, ratio):
    assert "data.sources[0].ratio" in faults(tmp_path, plugins, source("a", ratio=ratio))


def test_the_token_budget_is_by_default_the_trainers_sequence_length(tmp_path, plugins):
    assert limits(tmp_path, plugins, source()).max_context == 640
    trained = "[trainer]\nmax_sequence_length = 900\n"
    assert limits(tmp_path, plugins, source(), trained).max_context == 900


def test_a_given_token_budget_is_respected_and_so_is_none(tmp_path, plugins):
    trained = "[trainer]\nmax_sequence_length = 900\n"
    assert limits(tmp_path, plugins, source(max_total_tokens=700), trained).max_context == 700
    assert limits(tmp_path, plugins, source(max_total_tokens='"None"'), trained).max_context is None


def test_a_budget_beyond_what_is_trained_on_is_refused_with_what_to_do(tmp_path, plugins):
    trained = "[trainer]\nmax_sequence_length = 900\n"
    found = faults(tmp_path, plugins, source(max_total_tokens=901), more=trained)
    assert '"None"' in found["data.sources[0].max_total_tokens"]


@pytest.mark.parametrize("budget", ['"none"', "1", "0", "true", '""'])
def test_a_budget_is_a_number_of_tokens_or_none(tmp_path, plugins, budget):
    assert "data.sources[0].max_total_tokens" in faults(tmp_path, plugins, source(max_total_tokens=budget))


def test_lengths_that_leave_no_room_for_an_answer_are_refused(tmp_path, plugins):
    assert "leaves no room" in faults(tmp_path, plugins, source(max_prompt_len=640))["data.sources[0].max_prompt_len"]
    assert "data.sources[0].max_total_tokens" in faults(tmp_path, plugins, source(max_total_tokens=100))


def test_limits_of_a_source_are_its_own(tmp_path, plugins):
    found = limits(tmp_path, plugins, source(max_prompt_len=20, max_response_len=30, max_total_tokens=45))
    assert found == (20, 30, 45)


def test_evaluation_is_untouched_by_budgets(tmp_path, plugins):
    more = f'[trainer]\nmax_sequence_length = 900\n[[eval.sets]]\nname = "e"\ntask_set = {SUMS}\n'
    run = load(tmp_path, plugins, source(max_total_tokens=600), more=more)
    (item,) = run.to_toml()["eval"]["sets"]
    assert "max_total_tokens" not in item


def test_the_plan_says_what_every_source_resolves_to(tmp_path, plugins):
    run = load(tmp_path, plugins, source("a", ratio=3), source("b", ratio=1, max_prompt_len=30))
    sources = make_plan(run)["data"]["sources"]
    assert (sources["a"]["max_prompt_len"], sources["b"]["max_prompt_len"]) == (512, 30)
    assert (sources["a"]["ratio"], sources["a"]["task_set"]["name"]) == (3.0, "addition")


def test_the_resolved_file_loads_to_the_same_sources(tmp_path, plugins):
    import tomli_w

    run = load(tmp_path, plugins, source("a", ratio=3), source("b", ratio=1, max_total_tokens='"None"'))
    resolved = tmp_path / "resolved.toml"
    resolved.write_text(tomli_w.dumps(run.to_toml()))
    assert load_run_file(resolved, [], plugins, [size_problems]).to_toml() == run.to_toml()


def test_tools_are_looked_up_like_any_component(tmp_path, plugins):
    path = tmp_path / "run.toml"
    path.write_text(BASE + 'tools = ["abacus"]\n')
    with pytest.raises(RunFileError, match="no tool is named 'abacus'"):
        load_run_file(path, [], plugins, [size_problems])


def test_a_set_is_checked_with_the_seed_that_it_is_used_with(tmp_path):
    seen = []

    class Seeded(Addition):
        name = "seeded"

        def open(self, run, output, seed):
            seen.append(seed)

    @hookimpl
    def reroll_task_sets():
        return [Seeded]

    stranger, with_it = types.ModuleType("stranger"), load_plugins()
    stranger.reroll_task_sets = reroll_task_sets
    with_it.register(stranger, "stranger", "reroll-stranger")
    seeded = source(task_set='{ name = "seeded", verifier = "exact_match", size = 10 }')
    for settings in ("[run]\nseed = 7\n", "[run]\nseed = 3\n"):
        run = load(tmp_path, with_it, seeded, more=settings)
        assert list(file_problems(run, thorough=False)) == []
    assert set(seen) == {7, 3} and seen[0] == 7
