"""Translations of controls that only mean something beside others: sizes of the layout, the recipe, folders."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reroll.api import Problem
from reroll.config.problems import shown
from reroll.dials.table import dials
from reroll.miles.data import evaluation, prompts
from reroll.miles.draft import Draft, says_nothing

ESTIMATORS = ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline")
LEFT = "what the response leaves of it; longer prompts are skipped, and counted"


def layout(draft: Draft) -> None:
    """GPUs of trainer and engines → ranks, engines and their tensor parallelism."""
    nodes, each = draft.whole("miles.actor_num_nodes"), draft.whole("miles.actor_num_gpus_per_node")
    ranks = None
    if each is not None:
        ranks = (nodes or 1) * each
        draft.put("trainer.num_ranks", ranks, "miles.actor_num_gpus_per_node")
    elif nodes is not None:
        draft.tell("by_hand", "trainer.num_ranks", "the GPUs of all nodes; miles.actor_num_gpus_per_node is not given")
    if nodes is not None and nodes > 1:
        draft.put("placement.backend", "ray", "miles.actor_num_nodes", "several nodes are a Ray cluster")
    gpus, per_engine = draft.whole("miles.rollout_num_gpus"), draft.whole("miles.rollout_num_gpus_per_engine")
    control = "miles.rollout_num_gpus"
    if draft.value("placement.colocate") is True:
        gpus, control = ranks, "miles.actor_num_gpus_per_node"  # the engines are where the trainer is
    if gpus is not None:
        text = "engines are where the trainer is, on as many GPUs" if control != "miles.rollout_num_gpus" else None
        _engines(draft, gpus, per_engine or 1, control, text)
    if per_engine is not None and per_engine > 1:
        stages = draft.value("sglang.pp_size")
        stages = stages if isinstance(stages, int) and stages > 0 and per_engine % stages == 0 else 1
        draft.put("sglang.tp_size", per_engine // stages, "miles.rollout_num_gpus_per_engine")


def _engines(draft: Draft, gpus: int, per_engine: int, control: str, comment: str | None) -> None:
    if gpus % per_engine:
        draft.faults.append(
            Problem(
                control,
                f"makes {gpus} GPUs for engines of {per_engine} each (miles.rollout_num_gpus_per_engine)",
                f"give a multiple of {per_engine}",
            )
        )
    else:
        draft.put("serving.num_engines", gpus // per_engine, control, comment)


def serving(draft: Draft) -> None:
    """MILES serves by SGLang, and moves weights by broadcast or over IPC."""
    limit = draft.whole("miles.sglang_server_concurrency")
    engine = "sglang" if limit is None else {"name": "sglang", "max_concurrent_requests": limit}
    control = "" if limit is None else "miles.sglang_server_concurrency"
    draft.put("serving.engine", engine, control, "MILES's engines are SGLang servers" if limit is None else None)
    size, mode = draft.whole("miles.update_weight_buffer_size"), draft.text("core.weight_sync_mode")
    transfer = draft.text("miles.update_weight_transfer_mode")
    if transfer not in (None, "broadcast"):
        line = dials()["miles.update_weight_transfer_mode"]
        draft.refuse(line, f"is {shown(line.name, transfer)}: {line.text}")
    together = draft.value("placement.colocate") is True
    name = "distributed" if not together else "disk" if draft.value("placement.backend") == "ray" else "shared_memory"
    options: dict[str, object] = {} if size is None else {"update_weight_buffer_size": size}
    if mode is not None and name == "distributed":
        options["weight_sync_mode"] = mode
    elif mode is not None:
        draft.tell("not_needed", "core.weight_sync_mode", "engines on the trainer's devices read files")
    if options or transfer == "broadcast":
        control = "miles.update_weight_buffer_size" if size is not None else "core.weight_sync_mode"
        control = "miles.update_weight_transfer_mode" if not options else control
        draft.put("serving.transport", {"name": name, **options} if options else name, control)


def asynchronous(draft: Draft) -> None:
    """Bounds of asynchronous runs; elsewhere they would do nothing, which a run file may not say."""
    lines = [line for line in dials().values() if line.rule == "asynchronous" and line.name in draft.given]
    for line in lines:
        value = draft.given[line.name]
        if line.control == "async_unused_samples_handler" and value not in ("retry", "drop"):
            draft.refuse(line, f'is {shown(line.name, value)}; here there are "retry" and "drop"')
        else:
            draft.put(line.keys[0], value, line.name)
    if draft.value("async.fully_async") is not True:
        for line in lines:
            draft.table.get("async", {}).pop(line.keys[0].partition(".")[2], None)
            draft.idle(line, "does nothing without `async.fully_async = true`")


def micro_batch(draft: Draft) -> None:
    """A step is cut by tokens or by responses, not by both."""
    tokens, dynamic = draft.given.get("miles.max_tokens_per_gpu"), draft.truth("miles.use_dynamic_batch_size")
    if tokens is not None:
        draft.put("trainer.max_tokens_per_micro_batch", tokens, "miles.max_tokens_per_gpu")
    if "miles.micro_batch_size" in draft.given:
        if tokens is not None or dynamic:
            draft.idle(dials()["miles.micro_batch_size"], "a step is cut by tokens already")
        else:
            draft.put("trainer.micro_batch_size", draft.given["miles.micro_batch_size"], "miles.micro_batch_size")


def steps_per_rollout(draft: Draft) -> None:
    control = "miles.num_steps_per_rollout"
    steps = draft.whole(control)
    prompts, samples = draft.whole("miles.rollout_batch_size"), draft.whole("miles.n_samples_per_prompt")
    if steps is None:
        return
    if prompts is None or samples is None or prompts * samples % steps:
        draft.tell("by_hand", "trainer.global_batch_size", f"the responses of a collection, divided by {steps}")
    else:
        draft.put("trainer.global_batch_size", prompts * samples // steps, control)


def over_sampling(draft: Draft) -> None:
    control = "miles.over_sampling_batch_size"
    most, batch = draft.whole(control), draft.whole("miles.rollout_batch_size")
    if most is not None and batch is None:
        draft.tell("by_hand", "rollout.over_sampling_factor", f"{control} is {most}: a multiple of rollout_batch_size")
    elif most is not None and batch is not None and most > batch:
        draft.put("rollout.over_sampling_factor", most / batch, control)


def context(draft: Draft) -> None:
    """Prompt and response together: a bound that can never be reached is none."""
    control, other = "miles.rollout_max_context_len", "miles.rollout_max_prompt_len"
    most, prompt = draft.whole(control), draft.whole(other)
    response = draft.whole("miles.rollout_max_response_len")
    if prompt is not None:
        draft.put("rollout.rollout_max_prompt_len", prompt, other)
    if most is None:
        return _longest(draft, prompt, response)
    if prompt is not None and response is not None:
        if most >= prompt + response:
            draft.idle(dials()[control], f"prompt and response together have at most {prompt + response} tokens")
        else:
            draft.put("rollout.rollout_max_context_len", most, control)
    elif response is not None and most > response:
        draft.put("rollout.rollout_max_prompt_len", most - response, control, LEFT)
    elif prompt is not None and most > prompt:
        draft.put("rollout.rollout_max_response_len", most - prompt, control, "what the prompt leaves of it")
    else:
        text = f"and rollout.rollout_max_response_len: {control} says that both together have at most {most} tokens"
        draft.tell("by_hand", "rollout.rollout_max_prompt_len", text)


def _longest(draft: Draft, prompt: int | None, response: int | None) -> None:
    """MILES bounds prompts by nothing: where only the trainer has a bound, they get what the response leaves of it."""
    control = "core.max_sequence_length"
    most = draft.whole(control)
    if prompt is None and response is not None and most is not None and most > response:
        draft.put("rollout.rollout_max_prompt_len", most - response, control, LEFT)


def decay(draft: Draft) -> None:
    """Ends of a decay; beside a constant rate they would do nothing, which a run file may not say."""
    falls = draft.value("trainer.lr_decay_style") not in (None, "constant")
    for control in ("miles.min_lr", "miles.lr_decay_iters"):
        if control in draft.given:
            line = dials()[control]
            if falls:
                draft.put(line.keys[0], draft.given[control], control)
            elif draft.given[control] != 0:
                draft.idle(line, "does nothing while the rate is constant: set `trainer.lr_decay_style` as well")


def estimator(draft: Draft) -> None:
    """Estimator and its normalisation, which MILES's parser has on."""
    control = "miles.advantage_estimator"
    name = draft.text(control)
    if name == "gspo":
        draft.put("objective.policy_loss", "gspo", control)
    elif name is not None and name not in ESTIMATORS:
        draft.refuse(dials()[control], f"is {shown(control, name)}; here there are {', '.join(ESTIMATORS)}")
        return
    given, off = draft.truth("miles.grpo_std_normalization"), draft.truth("miles.disable_grpo_std_normalization")
    if given is not None and off is not None and given == off:
        problem = f"is {given}, and miles.disable_grpo_std_normalization is {off} as well"
        draft.faults.append(Problem("miles.grpo_std_normalization", problem, "leave one of them out"))
    if name not in (None, "grpo", "gspo"):
        draft.put("objective.advantage_estimator", name, control)
        return
    on = given if given is not None else not off
    text = "on in MILES's own parser, and off by default here" if given is None and off is None else None
    by = "miles.disable_grpo_std_normalization" if off is not None else "miles.grpo_std_normalization"
    chosen = {"name": "grpo", "grpo_std_normalization": True} if on else "grpo"
    draft.put("objective.advantage_estimator", chosen, by, text)


def reference(draft: Draft) -> None:
    """A reference is scored where its penalty counts."""
    coefficient, on = draft.number("miles.kl_loss_coef"), draft.truth("miles.use_kl_loss")
    if on and coefficient:
        for name in ("use_kl_loss", "kl_loss_coef", "kl_loss_type"):
            if f"miles.{name}" in draft.given:
                draft.put(f"objective.{name}", draft.given[f"miles.{name}"], f"miles.{name}")
    elif on:
        draft.idle(dials()["miles.use_kl_loss"], "without a positive kl_loss_coef the reference is not scored")
    else:
        for name in ("kl_loss_coef", "kl_loss_type"):
            if not says_nothing(draft.given.get(f"miles.{name}")) and draft.given[f"miles.{name}"] != 0:
                draft.idle(dials()[f"miles.{name}"], "does nothing without use_kl_loss")
    load = draft.given.get("miles.ref_load")
    if load and load != draft.given.get("miles.hf_checkpoint"):
        draft.leave_out(dials()["miles.ref_load"])


def correction(draft: Draft) -> None:
    """Which off-policy correction: MILES has none without use_tis."""
    on, function = draft.truth("miles.use_tis"), draft.text("miles.custom_tis_function_path")
    high, low = draft.number("miles.tis_clip"), draft.number("miles.tis_clip_low")
    engine = draft.value("objective.use_rollout_logprobs") is True
    if not on:
        for control in ("miles.tis_clip", "miles.tis_clip_low", "miles.custom_tis_function_path"):
            if control in draft.given:
                draft.idle(dials()[control], "does nothing without use_tis")
        if draft.value("async.fully_async") is True and not engine:
            text = 'MILES corrects nothing without it; the default of asynchronous runs here is "tis"'
            draft.put("objective.correction", "none", "miles.use_tis", text)
        return
    if engine:
        draft.idle(dials()["miles.use_tis"], "does nothing beside `objective.use_rollout_logprobs = true`")
        return
    name = "tis"
    if function:
        name = "icepop" if "icepop" in function.rsplit(".", 1)[-1] else ""
    if not name:
        draft.leave_out(dials()["miles.custom_tis_function_path"])
        return
    names = ("icepop_high", "icepop_low") if name == "icepop" else ("tis_clip", "tis_clip_low")
    options = {key: value for key, value in zip(names, (high, low), strict=True) if value is not None}
    draft.put("objective.correction", {"name": name, **options} if options else name, "miles.use_tis", "")


def folders(draft: Draft) -> None:
    """One folder holds a run and its checkpoints."""
    root, save, load = (draft.text(name) for name in ("output.root", "miles.save", "miles.load"))
    if root:
        draft.put("output.dir", root, "output.root")
        if save and save != root:
            draft.leave_out(dials()["miles.save"])
    elif save:
        draft.put("output.dir", save, "miles.save")
    if load and load in (save, root):
        draft.put("launch.auto_resume", True, "miles.load", "goes on with the run in `output.dir`")
    elif load:
        draft.tell("by_hand", "checkpoint.load", "takes a checkpoint of reroll, and not one that MILES has written")


def kept(draft: Draft) -> None:
    """Which checkpoints stay; where none is made they would do nothing, which a run file may not say."""
    for line in dials().values():
        if line.rule == "kept" and line.name in draft.given:
            if draft.has("checkpoint.save_interval"):
                draft.put(line.keys[0], draft.given[line.name], line.name)
            elif not says_nothing(draft.given[line.name]):
                draft.idle(line, "does nothing without `checkpoint.save_interval`")


def trackers(draft: Draft) -> None:
    """Switches that choose trackers, and the options of one."""
    given = {line.control: draft.given.get(line.name) for line in dials().values() if line.rule == "wandb"}
    # A script has no types: a group that is called 2024 is text all the same.
    options = {
        control: value if isinstance(value, bool) else str(value)
        for control, value in given.items()
        if control.startswith("wandb_") and value is not None
    }
    names: list[object] = ["jsonl"]
    if draft.truth("miles.use_wandb"):
        names.append({"name": "wandb", **options} if options else "wandb")
    elif options:
        draft.tell("not_needed", f"miles.{next(iter(options))}", "does nothing without use_wandb")
    if draft.truth("miles.use_tensorboard"):
        names.append("tensorboard")
    if len(names) > 1:
        control = "miles.use_wandb" if draft.given.get("miles.use_wandb") else "miles.use_tensorboard"
        draft.put("trackers.names", names, control, "")


TOGETHER: Sequence[Callable[[Draft], None]] = (
    layout,
    serving,
    asynchronous,
    micro_batch,
    steps_per_rollout,
    over_sampling,
    context,
    prompts,
    evaluation,
    decay,
    estimator,
    reference,
    correction,
    folders,
    kept,
    trackers,
)
"""In this order: some read what an earlier one has put."""
