"""Controls of MILES as a run file: each rule, and that nothing is lost without a word."""

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reroll.api import RunFileError
from reroll.config import load_run_file
from reroll.dials.table import dials
from reroll.miles.check import origin, refusals
from reroll.miles.translate import translate
from reroll.miles.written import run_file
from reroll.plan import size_problems
from reroll.plugins import load_plugins

EXAMPLE = """[miles]
hf_checkpoint = "/data/hf"
global_batch_size = 16
rollout_batch_size = 4
n_samples_per_prompt = 4
eval_prompt_data = ["gsm8k", "/data/gsm8k-heldout.jsonl"]
sglang_cuda_graph_config = { decode = { backend = "full", max_bs = 4 }, prefill = { backend = "disabled" } }
"""
BY_HAND = {"data": {"verifiers": [{"name": "regex", "pattern": "(x)"}]}}
SILENT = {
    "miles.optimizer",  # told where it is not AdamW
    "miles.use_fault_tolerance",  # true is what happens here
}


def miles(**controls):
    return translate({name if "." in name else f"miles.{name}": value for name, value in controls.items()})


def told(made, kind=None):
    return {note.about: note.text for note in made.notes if kind in (None, note.kind)}


def written(made):
    return run_file(made.table, made.comments, made.notes)


def load(tmp_path, table):
    import tomli_w

    path = tmp_path / "translated.toml"
    path.write_text(tomli_w.dumps(table))
    return load_run_file(path, [], load_plugins(), [size_problems])


def given_in(text):
    return {f"{section}.{key}": value for section, keys in tomllib.loads(text).items() for key, value in keys.items()}


def test_the_example_translates_to_a_run_file_that_loads(tmp_path):
    made = translate(given_in(EXAMPLE))
    assert not made.faults
    assert made.table["model"] == {"path": "/data/hf"}
    assert made.table["eval"]["sets"][0]["task_set"]["path"] == "/data/gsm8k-heldout.jsonl"
    assert set(told(made, "by_hand")) == {"data.task_set", "data.verifiers"}
    with pytest.raises(RunFileError) as caught:
        load(tmp_path, tomllib.loads(written(made)))
    assert {problem.key for problem in caught.value.problems} == {"data.verifiers"}
    run = load(tmp_path, made.table | BY_HAND)
    assert run.value("serving.engine.name") == "sglang"
    assert run.value("trainer.global_batch_size") == 16


def test_a_whole_asynchronous_run_translates_to_one_that_loads(tmp_path):
    table = {
        "miles.hf_checkpoint": "/data/hf",
        "miles.prompt_data": "/data/train.jsonl",
        "miles.label_key": "answer",
        "miles.rm_type": "math",
        "miles.actor_num_nodes": 2,
        "miles.actor_num_gpus_per_node": 4,
        "miles.rollout_num_gpus": 8,
        "miles.rollout_num_gpus_per_engine": 2,
        "miles.fully_async": True,
        "core.max_policy_lag": 3,
        "miles.async_data_buffer_capacity_factor": 2.0,
        "miles.use_tis": True,
        "miles.tis_clip": 3.0,
        "miles.lr": 2e-6,
        "miles.lr_decay_style": "cosine",
        "miles.min_lr": 1e-7,
        "miles.use_kl_loss": True,
        "miles.kl_loss_coef": 0.01,
        "miles.save": "/runs/one",
        "miles.save_interval": 5,
        "core.checkpoint_keep_last": 4,
        "launch.max_retries": 3,
        "miles.update_weight_buffer_size": 2**29,
        "core.weight_sync_mode": "per_tensor",
    }
    made = translate(table)
    assert not made.faults and {note.kind for note in made.notes} == {"default"}
    run = load(tmp_path, made.table)
    assert (run.value("trainer.num_ranks"), run.value("serving.num_engines")) == (8, 4)
    assert run.value("placement.backend.name") == "ray"
    assert run.value("objective.correction").options == {"tis_clip": 3.0}
    assert run.value("serving.transport").options["weight_sync_mode"] == "per_tensor"
    assert made.table["sglang"] == {"tp_size": 2}
    assert made.table["data"]["task_set"]["verifier"] == "math"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"core.max_policy_lag": 1}, {"async.max_weight_staleness": 2}),
        ({"miles.max_weight_staleness": 1}, {"core.max_policy_lag": 2}),
        ({"miles.warmup_ratio": 0.1}, {"miles.lr_warmup_fraction": 0.2}),
        ({"miles.gradient_checkpointing": True}, {"core.activation_checkpointing": False}),
    ],
)
def test_aliases_that_disagree_are_a_fault_that_names_both(first, second):
    (fault,) = translate({"miles.fully_async": True, **first, **second}).faults
    for name, value in (first | second).items():
        assert name in str(fault) and repr(value) in str(fault)
    agreeing = dict.fromkeys([*first, *second], next(iter(first.values())))
    assert not translate({"miles.fully_async": True, **agreeing}).faults


@pytest.mark.parametrize(
    ("controls", "key", "value"),
    [
        ({"rollout_num_gpus": 4}, "serving.num_engines", 4),
        ({"colocate": True, "actor_num_gpus_per_node": 8, "rollout_num_gpus_per_engine": 4}, "serving.num_engines", 2),
        ({"sglang_server_concurrency": 64}, "serving.engine", {"name": "sglang", "max_concurrent_requests": 64}),
        ({"sglang_page_size": 4}, "sglang.page_size", 4),
        ({"sglang_disable_radix_cache": True}, "sglang.disable_radix_cache", True),
        ({"max_tokens_per_gpu": 9216, "micro_batch_size": 1}, "trainer.max_tokens_per_micro_batch", 9216),
        ({"micro_batch_size": 1}, "trainer.micro_batch_size", 1),
        (
            {"num_steps_per_rollout": 2, "rollout_batch_size": 8, "n_samples_per_prompt": 4},
            "trainer.global_batch_size",
            16,
        ),
        ({"over_sampling_batch_size": 12, "rollout_batch_size": 8}, "rollout.over_sampling_factor", 1.5),
        ({"rollout_max_context_len": 100, "rollout_max_response_len": 60}, "rollout.rollout_max_prompt_len", 40),
        ({"core.max_sequence_length": 64, "rollout_max_response_len": 16}, "rollout.rollout_max_prompt_len", 48),
        ({"rollout_max_context_len": 100, "rollout_max_prompt_len": 60}, "rollout.rollout_max_response_len", 40),
        ({"recompute_granularity": "full"}, "trainer.activation_checkpointing", True),
        ({"advantage_estimator": "gspo"}, "objective.policy_loss", "gspo"),
        ({"advantage_estimator": "rloo"}, "objective.advantage_estimator", "rloo"),
        ({"disable_grpo_std_normalization": True}, "objective.advantage_estimator", "grpo"),
        ({}, "objective.advantage_estimator", {"name": "grpo", "grpo_std_normalization": True}),
        ({"fully_async": True}, "objective.correction", "none"),
        (
            {"use_tis": True, "tis_clip": 5.0, "custom_tis_function_path": "a.icepop_function"},
            "objective.correction",
            {"name": "icepop", "icepop_high": 5.0},
        ),
        ({"save": "/a", "load": "/a"}, "launch.auto_resume", True),
        ({"use_fault_tolerance": False}, "serving.engine_restarts", 0),
        (
            {"use_wandb": True, "wandb_group": 2024},
            "trackers.names",
            ["jsonl", {"name": "wandb", "wandb_group": "2024"}],
        ),
        ({"train_env_vars": '{"NCCL_DEBUG": "WARN"}'}, "trainer.env_vars", {"NCCL_DEBUG": "WARN"}),
        ({"attention_dropout": 0.1}, "trainer.disable_dropout", False),
        ({"update_weight_buffer_size": 1, "colocate": True}, "serving.transport.name", "shared_memory"),
    ],
)
def test_a_value_is_translated(controls, key, value):
    made = miles(**controls)
    section, name, *option = key.split(".")
    found = made.table[section][name]
    assert (found[option[0]] if option else found) == value
    assert not made.faults


@pytest.mark.parametrize(
    ("controls", "about", "text"),
    [
        ({"max_weight_staleness": 2}, "miles.max_weight_staleness", "without `async.fully_async"),
        ({"min_lr": 1e-7}, "miles.min_lr", "set `trainer.lr_decay_style`"),
        ({"kl_loss_coef": 0.1}, "miles.kl_loss_coef", "without use_kl_loss"),
        ({"use_kl_loss": True, "kl_loss_coef": 0.0}, "miles.use_kl_loss", "without a positive kl_loss_coef"),
        ({"use_tis": True, "use_rollout_logprobs": True}, "miles.use_tis", "does nothing beside"),
        ({"tis_clip": 2.0}, "miles.tis_clip", "without use_tis"),
        ({"eval_interval": 5}, "miles.eval_interval", "without eval_prompt_data"),
        ({"wandb_group": "a"}, "miles.wandb_group", "without use_wandb"),
        ({"async_save": True}, "miles.async_save", "save_interval"),
        ({"tensor_model_parallel_size": 2}, "miles.tensor_model_parallel_size", "is 2"),
        ({"update_weight_transfer_mode": "p2p"}, "miles.update_weight_transfer_mode", "peer-to-peer"),
        ({"optimizer": "muon"}, "miles.optimizer", "AdamW"),
        ({"advantage_estimator": "ppo"}, "miles.advantage_estimator", "dr_grpo"),
        ({"sglang_pge_size": 4}, "miles.sglang_pge_size", "'page_size'"),
        ({"sglang_page_size": "four"}, "miles.sglang_page_size", "whole number"),
        ({"sglang_port": 30000}, "miles.sglang_port", "free port"),
        ({"num_rolout": 4}, "miles.num_rolout", "'num_rollout'"),
        ({"rollout_max_context_len": 100}, "rollout.rollout_max_prompt_len", "at most 100 tokens"),
        ({"load": "/elsewhere"}, "checkpoint.load", "checkpoint of reroll"),
        ({"fully_async": True}, "async.max_weight_staleness", "needed"),
        ({"label_key": "answer", "prompt_data": "a.jsonl"}, "data.task_set.verifier", "'answer'"),
        ({"prompt_data": "a.jsonl@[0:100]"}, "miles.prompt_data", "whole file"),
        ({"recompute_granularity": "selective"}, "trainer.activation_checkpointing", "is 'selective'"),
        ({"rollout_function_path": "a.b"}, "rollout.harness", "in place of miles.rollout_function_path"),
        ({"fully_async": True}, "miles.async_unused_samples_handler", "where MILES drops them"),
    ],
)
def test_what_is_not_translated_is_told(controls, about, text):
    assert text in told(miles(**controls))[about]


@pytest.mark.parametrize(
    ("controls", "key"),
    [
        ({"rollout_num_gpus": 5, "rollout_num_gpus_per_engine": 2}, "miles.rollout_num_gpus"),
        ({"rollout_num_gpus": "many"}, "miles.rollout_num_gpus"),
        ({"eval_prompt_data": ["one"]}, "miles.eval_prompt_data"),
        ({"train_env_vars": 3}, "miles.train_env_vars"),
        ({"use_tis": "yes"}, "miles.use_tis"),
        ({"grpo_std_normalization": True, "disable_grpo_std_normalization": True}, "miles.grpo_std_normalization"),
    ],
)
def test_values_that_mean_nothing_are_faults(controls, key):
    (fault,) = miles(**controls).faults
    assert fault.key == key and fault.remedy


@pytest.mark.parametrize("table", ['{"SIGNING_KEY": "c2lnbmluZw"}', '{"PROXY": "http://me:c2lnbmluZw@one:1"}'])
def test_a_secret_in_a_json_text_is_a_fault(table):
    made = miles(train_env_vars=table)
    (fault,) = made.faults
    assert fault.key.startswith("miles.train_env_vars.") and "environment that the run is started in" in fault.remedy
    assert "c2lnbmluZw" not in str(fault) + str(made.table)


def test_eval_interval_counts_collections_there_and_optimizer_steps_here():
    sizes = {"rollout_batch_size": 8, "n_samples_per_prompt": 4, "global_batch_size": 16}
    made = miles(eval_prompt_data=["a b", "x.jsonl"], eval_interval=5, eval_top_p=0.5, **sizes)
    assert made.table["eval"]["eval_interval"] == 10
    assert made.table["eval"]["sets"][0]["name"] == "a-b"
    assert made.table["eval"]["sets"][0]["top_p"] == 0.5


@pytest.mark.parametrize(
    ("controls", "sampling"),
    [
        ({}, {"temperature": 1.0}),
        ({"rollout_temperature": 0.7, "rollout_top_p": 0.9}, {"temperature": 0.7, "top_p": 0.9}),
        ({"rollout_temperature": 0.7, "eval_temperature": 0.2}, {"temperature": 0.2}),
    ],
)
def test_evaluation_samples_as_training_does_where_nothing_else_is_said(tmp_path, controls, sampling):
    sets = {"eval_prompt_data": ["a", "a.jsonl"], "n_samples_per_eval_prompt": 2, "rm_type": "math"}
    made = miles(hf_checkpoint="/data/hf", label_key="answer", **sets, **controls)
    (found,) = made.table["eval"]["sets"]
    assert {key: found.get(key) for key in sampling} == sampling
    assert {"top_p", "top_k"} & set(found) <= set(sampling)
    assert not any(note.about == "miles.eval_temperature" for note in made.notes)
    assert "that of training" in made.comments["eval.sets"] or "eval_temperature" in controls
    load(tmp_path, made.table)


@pytest.mark.parametrize(
    ("controls", "kind", "changes"),
    [
        ({"lora_rank": 8}, "refused", True),
        ({"advantage_estimator": "ppo"}, "refused", True),
        ({"use_tis": True, "custom_tis_function_path": "a.b"}, "refused", True),
        ({"sglang_pge_size": 4}, "unknown", True),
        ({"num_rolout": 4}, "unknown", True),
        ({"custom_rm_path": "a.b"}, "by_hand", True),
        ({"prompt_data": "a.jsonl@[0:9]", "rm_type": "math"}, "by_hand", True),
        ({"load": "/elsewhere"}, "by_hand", False),
        ({"balance_data": True}, "not_needed", False),
        ({"tis_clip": 2.0}, "not_needed", False),
        ({"context_parallel_size": 2}, "not_needed", False),
        ({"train_backend": "fsdp"}, "not_needed", False),
        ({"train_backend": "megatron"}, "refused", True),
    ],
)
def test_whether_the_run_is_another_one_is_told_of_what_is_left_out(controls, kind, changes):
    usual = miles()
    made = miles(**controls)
    notes = [note for note in made.notes if note not in usual.notes and note.kind == kind]
    assert notes and any(note.changes_the_run for note in made.notes) is changes
    assert not any(note.changes_the_run for note in usual.notes)


def test_faults_of_plan_name_the_control_that_gave_the_value():
    given = {
        "miles.hf_checkpoint": "/data/hf",
        "miles.num_rollout": True,
        "miles.save_interval": "often",
        "miles.eval_prompt_data": ["a", "a.jsonl"],
        "miles.eval_top_k": "many",
        "miles.use_wandb": True,
        "miles.wandb_mode": "sometimes",
    }
    made = translate(given)
    found = {problem.key: problem for problem in refusals(made, given)}
    assert found["miles.num_rollout"].message.startswith("as `rollout.num_rollout`: True")
    assert "has no value" in found["miles.num_rollout"].remedy
    assert "'often'" in found["miles.save_interval"].message
    assert "`eval.sets[0].top_k`" in found["miles.eval_top_k"].message
    assert "`trackers.names[1].wandb_mode`" in found["miles.wandb_mode"].message
    assert origin("data.verifiers", made, given) is None


def test_a_comment_is_about_the_key_below_it():
    made = miles(colocate=True, actor_num_gpus_per_node=1)
    assert made.comments["trainer.num_ranks"] == "miles.actor_num_gpus_per_node: " + (
        dials()["miles.actor_num_gpus_per_node"].text
    )
    assert made.comments["serving.num_engines"] == (
        "miles.actor_num_gpus_per_node: engines are where the trainer is, on as many GPUs"
    )
    assert made.comments["serving.engine"] == "MILES's engines are SGLang servers"
    apart = miles(rollout_num_gpus=4, rollout_num_gpus_per_engine=2)
    assert "rollout_num_gpus_per_engine`" in apart.comments["serving.num_engines"]
    assert apart.comments["sglang.tp_size"] == "miles.rollout_num_gpus_per_engine"


@pytest.mark.parametrize("line", dials().values(), ids=list(dials()))
def test_no_control_is_passed_over_without_a_word(line):
    """A value that is not the one of doing nothing is put somewhere, told, or a fault."""
    values = {"one": 3, "prompts": "a", "wandb": True, "folders": "/a", "list": ["a"], "correction": 2.0, "layout": 2}
    values |= {"custom_tis_function_path": "a.b", "kl_loss_type": "k1", "skip_eval_before_train": True}
    made = translate({line.name: values.get(line.control, values.get(line.rule, 1))})
    told_of = "\n".join([*(str(note) for note in made.notes), *map(str, made.faults), *made.comments.values()])
    put = {f"{section}.{name}" for section, keys in made.table.items() for name in keys}
    by_hand = {note.about for note in made.notes if note.kind == "by_hand"}
    assert line.name in told_of or {*line.keys} & put or ({*line.keys} & by_hand) or line.name in SILENT


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = st.one_of(st.booleans(), st.integers(-3, 100), st.floats(allow_nan=False, allow_infinity=False), TEXTS)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
)
PLUGINS = load_plugins()
NAMES = st.sampled_from([*dials(), "miles.sglang_page_size", "miles.sglang_nothing", "miles.nothing", "core.lr"])


@given(st.dictionaries(NAMES, VALUES, max_size=12))
def test_any_settings_translate_to_toml_that_parses_back(controls):
    made = translate(controls)
    refused = refusals(made, controls, lambda texts: load_run_file(None, texts, PLUGINS, [size_problems]))
    assert tomllib.loads(run_file(made.table, made.comments, made.notes, refused)) == made.table
    assert all(fault.key in controls and str(fault) for fault in made.faults)


SENSIBLE = {
    "miles.rollout_batch_size": st.just(8),
    "miles.n_samples_per_prompt": st.just(4),
    "miles.global_batch_size": st.sampled_from([8, 16, 32]),
    "miles.num_steps_per_rollout": st.just(1),
    "miles.rollout_max_prompt_len": st.just(64),
    "miles.rollout_max_response_len": st.just(128),
    "miles.rollout_max_context_len": st.sampled_from([150, 192, 400]),
    "miles.lr": st.just(1e-5),
    "miles.lr_decay_style": st.sampled_from(["constant", "linear", "cosine"]),
    "miles.min_lr": st.sampled_from([0.0, 1e-6]),
    "miles.lr_decay_iters": st.just(100),
    "miles.use_kl_loss": st.booleans(),
    "miles.kl_loss_coef": st.sampled_from([0.0, 0.1]),
    "miles.kl_loss_type": st.just("k1"),
    "miles.use_tis": st.booleans(),
    "miles.tis_clip": st.just(3.0),
    "miles.use_rollout_logprobs": st.booleans(),
    "miles.fully_async": st.booleans(),
    "core.max_policy_lag": st.just(100),
    "miles.async_max_concurrent_samples": st.just(64),
    "miles.async_unused_samples_handler": st.just("drop"),
    "miles.micro_batch_size": st.just(1),
    "miles.max_tokens_per_gpu": st.just(4096),
    "miles.advantage_estimator": st.sampled_from(["grpo", "gspo", "rloo"]),
    "miles.save": st.just("/runs/one"),
    "miles.save_interval": st.just(5),
    "miles.async_save": st.booleans(),
    "core.checkpoint_keep_last": st.just(3),
    "miles.eval_prompt_data": st.just(["a", "x.jsonl", "b", "y.jsonl"]),
    "miles.eval_interval": st.just(2),
    "miles.skip_eval_before_train": st.booleans(),
    "miles.sglang_page_size": st.just(1),
    "miles.actor_num_gpus_per_node": st.sampled_from([1, 4]),
    "miles.rollout_num_gpus": st.just(4),
    "miles.rollout_num_gpus_per_engine": st.sampled_from([1, 2]),
    "miles.update_weight_buffer_size": st.just(2**20),
}


@settings(max_examples=30)
@given(st.fixed_dictionaries({"miles.hf_checkpoint": st.just("/data/hf")}, optional=SENSIBLE))
def test_any_sensible_settings_translate_to_a_run_file_that_loads(tmp_path_factory, controls):
    """What does nothing beside the others is left out, so that nothing is left to refuse; which of several optimizer
    steps a bound has to cover is the file's own affair."""
    if "miles.global_batch_size" in controls and "miles.num_steps_per_rollout" in controls:
        controls = controls | {"miles.global_batch_size": 32}
    made = translate(controls)
    assert not made.faults
    path = tmp_path_factory.mktemp("sensible") / "run.toml"
    path.write_text(run_file({**made.table, **BY_HAND}, made.comments, made.notes))
    try:
        load_run_file(path, [], PLUGINS, [size_problems])
    except RunFileError as error:
        told = {problem.key for problem in error.problems}
        assert told <= {note.about for note in made.notes if note.kind == "by_hand"}, error


def test_what_no_control_says_is_said_without_one():
    assert """# MILES's engines are SGLang servers\nengine = "sglang\"""" in written(miles(lr=1e-6))
    limited = written(miles(sglang_server_concurrency=4))
    assert "# miles.sglang_server_concurrency: requests that are sent to one server at once\nengine = {" in limited
