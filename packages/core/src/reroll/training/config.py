"""`[objective]` and `[trainer]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from reroll.api import ConfigSection, Hook, Problem, RunFile, Selection
from reroll.config.environment import environment_problems
from reroll.training.schedule import DecayShape, DecayStyle


class ObjectiveSection(ConfigSection):
    section: ClassVar[str] = "objective"

    advantage_estimator: Annotated[Selection, Hook("advantages")] = Selection(name="grpo")
    """Rewards of a group → advantages. `{ name = "grpo", grpo_std_normalization = true }` divides by the group's
    standard deviation; it is off by default."""
    policy_loss: Literal["ppo", "gspo", "cispo"] = "ppo"
    """"ppo" clips the ratio of each token; "gspo" the geometric mean of a response's ratios, which needs much smaller
    bounds (eps_clip = 3e-4, eps_clip_high = 4e-4 in its paper); "cispo" weighs each token's log-probability by its
    clipped ratio, so that a clipped token still teaches."""
    eps_clip: float = Field(0.2, ge=0, lt=1)
    """The policy ratio is clipped below at 1 - eps_clip: larger lets one collection push tokens further down."""
    eps_clip_high: float = Field(0.28, ge=0)
    """The policy ratio is clipped above at 1 + eps_clip_high: larger lets one collection push tokens further up."""
    eps_clip_c: float | None = Field(None, gt=1)
    """Dual clip: a token of negative advantage A loses at most -eps_clip_c·A. Off by default; not for "cispo"."""
    calculate_per_token_loss: bool = False
    """True: every token of the step weighs the same. False: every response does."""
    mask_truncated_completions: bool = False
    """True: responses that were cut off at the length limit are not trained on. Their rewards count in the advantages
    of their group all the same."""
    entropy_coef: float = Field(0.0, ge=0)
    """Weight of the entropy bonus in the loss: more of it keeps the policy from growing certain early."""
    use_kl_loss: bool = False
    """Adds a penalty on the distance to the starting checkpoint, kept as a frozen copy."""
    kl_loss_coef: float = Field(0.0, ge=0)
    """Weight of that penalty: more of it holds the policy nearer to the starting checkpoint. Needs use_kl_loss."""
    kl_loss_type: Literal["k1", "k2", "k3", "low_var_kl"] = "low_var_kl"
    """Estimator of the distance, of d = logπ - logπ_ref at each token: "k1" is d, "k2" d²/2, "k3" e^-d - 1 + d, never
    negative; "low_var_kl" is k3 with d within ±20 and the result at most 10."""
    kl_coef: float = Field(0.0, ge=0)
    """KL penalty in the reward: kl_coef times the response's summed log-ratio to the starting checkpoint (k1, of the
    trainer's log-probabilities before the collection's first step) is taken off its reward before advantages."""
    use_rollout_logprobs: bool = False
    """True: the policy ratio's denominator is the engine's log-probability. False: the trainer's own score at the
    start of the collection."""
    correction: Annotated[Selection | None, Hook("corrections")] = None
    """Off-policy correction between engine and trainer, e.g. "tis" or { name = "tis", tis_clip = 2.0 }. By default
    "tis" with async.fully_async, unless use_rollout_logprobs is set, and none otherwise; "none" switches it off."""

    @property
    def needs_reference(self) -> bool:
        """Whether the starting checkpoint is scored as well."""
        return self.use_kl_loss or self.kl_coef > 0

    def constant_length(self, run: RunFile) -> bool:
        """Whether the advantage estimator wants every response divided by the same length."""
        return bool(getattr(run.component("advantages", self.advantage_estimator.name), "constant_length", False))

    def recipe(self) -> dict[str, Any]:
        """Keyword arguments of `Recipe`, but for the constant length."""
        names = ("policy_loss", "eps_clip", "eps_clip_high", "eps_clip_c", "calculate_per_token_loss", "entropy_coef")
        return {name: getattr(self, name) for name in (*names, "kl_loss_coef", "kl_loss_type")}

    def problems(self, run: RunFile) -> Iterator[Problem]:
        if self.policy_loss == "cispo" and self.eps_clip_c is not None:
            yield Problem(
                "objective.eps_clip_c",
                f'is {self.eps_clip_c}, but policy_loss = "cispo" has no dual clip: its weights are bounded already',
                'leave it out, or set objective.policy_loss to "ppo" or "gspo"',
            )
        if self.use_kl_loss and not self.kl_loss_coef:
            yield Problem(
                "objective.use_kl_loss",
                "is true, but kl_loss_coef is 0: the reference would be scored for nothing",
                "set objective.kl_loss_coef, or leave use_kl_loss out",
            )
        if self.kl_loss_coef and not self.use_kl_loss:
            yield Problem(
                "objective.kl_loss_coef",
                f"is {self.kl_loss_coef}, but use_kl_loss is false: it would do nothing",
                "set objective.use_kl_loss = true",
            )
        if self.correction and self.correction.name != "none" and self.use_rollout_logprobs:
            yield Problem(
                "objective.correction",
                "does nothing beside use_rollout_logprobs = true: the ratio is then taken to the engine already",
                "leave one of the two out",
            )
        # Last: an estimator that does not exist ends the check.
        if self.calculate_per_token_loss and self.constant_length(run):
            yield Problem(
                "objective.calculate_per_token_loss",
                f"is true, but objective.advantage_estimator = {self.advantage_estimator.name!r} divides every "
                "response by one constant length: a loss has one denominator",
                "leave calculate_per_token_loss out, or choose another objective.advantage_estimator",
            )


class TrainerSection(ConfigSection):
    section: ClassVar[str] = "trainer"
    refused: ClassVar[Mapping[str, str]] = {
        "cpu_offload": "parameters and optimizer state stay on the device; more memory comes from more ranks "
        "(trainer.num_ranks), from trainer.activation_checkpointing and from a smaller "
        "trainer.max_tokens_per_micro_batch",
        "offload_train": "the trainer keeps its memory; with placement.colocate the engines give theirs up",
        "gradient_checkpointing": "it is called trainer.activation_checkpointing",
        "max_tokens_per_gpu": "it is called trainer.max_tokens_per_micro_batch",
        "warmup_ratio": "it is called trainer.lr_warmup_fraction",
        "attn_implementation": "the attention follows from device and trainer.packing",
        "optimizer": "the optimizer is AdamW",
    }

    num_ranks: int = Field(1, gt=0)
    """Processes that train together, each with its part of parameters, gradients and optimizer state (FSDP2)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where ranks compute: "auto" takes CUDA devices where torch finds any, one a rank."""
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the forward and backward pass: "auto" is bfloat16 on CUDA and float32 on a CPU. Parameters, optimizer
    state and the reduction of gradients over ranks are float32 in any case."""
    activation_checkpointing: bool | None = None
    """Activations of a layer are computed again in the backward pass instead of being kept: less memory, about a
    third more work. By default on CUDA devices."""
    packing: bool | None = None
    """Sequences lie end to end in a row instead of being padded to the longest one. By default where the device has
    an attention kernel for it (CUDA in bfloat16, with torch 2.10 or newer)."""
    disable_dropout: bool = True
    """False: dropout of the model's configuration acts in training."""
    scoring_pass_required: bool = False
    """True: old log-probabilities come from a forward pass of their own at every collection. By default only where
    the recipe needs it; otherwise from the training forward, at the same weights."""
    scoring_check_interval: int = Field(50, ge=0)
    """Where the pass is not needed: optimizer steps from one comparison of the training forward with it to the next.
    The first step of every process is compared; 0: only that one."""
    scoring_check_tolerance: float = Field(1e-3, gt=0)
    """Largest mean absolute difference of log-probabilities in that comparison."""
    max_train_rollout_logprob_abs_diff: float | None = Field(None, gt=0)
    """The run stops before an optimizer step at which log-probabilities of trainer and engine differ by more than
    this, as the mean absolute difference over the tokens that carry loss."""
    global_batch_size: int | None = Field(None, gt=0)
    """Responses of one optimizer step, fewer where groups did not pass the filters; by default a whole collection."""
    max_tokens_per_micro_batch: int | None = Field(None, gt=0)
    """Tokens of one forward pass of a rank, padded ones included; bounds memory, never changes the gradient. By
    default 16384, unless micro_batch_size is given."""
    micro_batch_size: int | None = Field(None, gt=0)
    """Instead of the token budget: responses of one forward pass of a rank."""
    max_sequence_length: int | None = Field(None, gt=1)
    """Longest prompt with response that is trained on; by default what `rollout` can produce."""
    lr: float = Field(1e-6, gt=0)
    """Peak learning rate: how far one optimizer step goes."""
    min_lr: float = Field(0.0, ge=0)
    """Learning rate at the end of the decay, and from then on."""
    lr_decay_style: DecayStyle = "constant"
    """How the rate falls after warm-up; "wsd" (warm-up, stable, decay) only over the last lr_wsd_decay_iters steps."""
    lr_decay_iters: int | None = Field(None, gt=0)
    """Optimizer steps until min_lr, warm-up included; by default the whole run."""
    lr_warmup_iters: int | None = Field(None, ge=0)
    """Optimizer steps over which the rate rises to `lr`; 0 begins with it."""
    lr_warmup_fraction: float | None = Field(None, ge=0, le=1)
    """The same, as a part of lr_decay_iters, or else of the whole run."""
    lr_warmup_init: float = Field(0.0, ge=0)
    """Learning rate that warm-up starts from, instead of 0."""
    lr_wsd_decay_iters: int | None = Field(None, gt=0)
    """With "wsd": steps before lr_decay_iters, or before the run's last, over which the rate falls to min_lr."""
    lr_wsd_decay_style: DecayShape | None = None
    """With "wsd": the curve along which it falls; by default "linear"."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's decay of matrices; norms and biases are not decayed."""
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    """AdamW: decay of the mean of gradients; nearer to 1, a step follows the gradients of more steps before it."""
    adam_beta2: float = Field(0.98, ge=0, lt=1)
    """AdamW: decay of the mean of squared gradients; nearer to 1, step sizes adapt more slowly."""
    adam_eps: float = Field(1e-8, gt=0)
    """AdamW: added to the root of the mean square; larger, parameters with small gradients move less."""
    clip_grad: float = Field(1.0, ge=0)
    """Largest norm of the whole gradient, which is scaled down to it where it is longer; 0 switches clipping off."""
    threads: int = Field(1, gt=0)
    """Threads of a rank's process: how many cores its arithmetic uses on a CPU."""
    env_vars: dict[str, str] = {}
    """Variables in the environment of the ranks, as in { NCCL_DEBUG = "WARN" }: what libraries read there. Names that
    reroll sets itself are refused, and so are secrets."""

    @model_validator(mode="after")
    def _either(self) -> TrainerSection:
        if self.lr_warmup_iters is not None and self.lr_warmup_fraction is not None:
            raise ValueError("lr_warmup_iters and lr_warmup_fraction are two names of one thing: give one")
        if self.min_lr > self.lr:
            raise ValueError(f"min_lr = {self.min_lr} is above lr = {self.lr}")
        if self.micro_batch_size is not None and self.max_tokens_per_micro_batch is not None:
            raise ValueError("micro_batch_size and max_tokens_per_micro_batch are two ways to cut a step: give one")
        if self.lr_decay_style == "constant" and self.lr_decay_iters is not None:
            raise ValueError('lr_decay_iters does nothing with lr_decay_style = "constant"')
        if self.lr_decay_style == "constant" and self.min_lr:
            raise ValueError('min_lr does nothing with lr_decay_style = "constant"')
        if (self.lr_warmup_iters or 0) > (self.lr_decay_iters or float("inf")):
            raise ValueError(
                f"lr_warmup_iters = {self.lr_warmup_iters} is above lr_decay_iters = {self.lr_decay_iters}"
            )
        if self.lr_warmup_init and not (self.lr_warmup_iters or self.lr_warmup_fraction):
            raise ValueError(
                f"lr_warmup_init = {self.lr_warmup_init} does nothing without a warm-up: give lr_warmup_iters or "
                "lr_warmup_fraction, or leave it out"
            )
        if self.lr_warmup_init > self.lr:
            raise ValueError(f"lr_warmup_init = {self.lr_warmup_init} is above lr = {self.lr}")
        return self

    @model_validator(mode="after")
    def _wsd(self) -> TrainerSection:
        if self.lr_decay_style == "wsd":
            if self.lr_wsd_decay_iters is None:
                raise ValueError('lr_decay_style = "wsd" needs lr_wsd_decay_iters, the steps over which the rate falls')
            return self
        for name in ("lr_wsd_decay_iters", "lr_wsd_decay_style"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f'{name} does nothing with lr_decay_style = "{self.lr_decay_style}": leave it out, or set '
                    'lr_decay_style = "wsd"'
                )
        return self

    def problems(self, run: RunFile) -> Iterator[Problem]:
        yield from environment_problems(
            "trainer.env_vars", self.env_vars, {"OMP_NUM_THREADS": "it follows from trainer.threads"}
        )

    def scoring_rule(self, standalone: bool) -> dict[str, Any]:
        """Keyword arguments of `ScoringRule`."""
        return {
            "standalone": standalone,
            "interval": self.scoring_check_interval,
            "tolerance": self.scoring_check_tolerance,
        }

    def step_settings(self, total_steps: int) -> dict[str, Any]:
        """Keyword arguments of `StepSettings`, but for those that others know."""
        copied = ("lr", "min_lr", "lr_decay_style", "weight_decay", "adam_beta1", "adam_beta2", "adam_eps", "clip_grad")
        return {name: getattr(self, name) for name in (*copied, "max_train_rollout_logprob_abs_diff")} | {
            "warmup_steps": self.warmup_steps(total_steps),
            "decay_steps": self.decay_steps(total_steps),
            "warmup_init": self.lr_warmup_init,
            "wsd_decay_steps": self.lr_wsd_decay_iters or 0,
            "wsd_decay_style": self.lr_wsd_decay_style or "linear",
            "dropout": not self.disable_dropout,
        }

    @property
    def micro_batch_tokens(self) -> int | None:
        """Token budget of a micro-batch, None where rows are counted instead."""
        return None if self.micro_batch_size else self.max_tokens_per_micro_batch or 16384

    def warmup_steps(self, total_steps: int) -> int:
        if self.lr_warmup_iters is not None:
            return self.lr_warmup_iters
        return round((self.lr_warmup_fraction or 0.0) * (self.lr_decay_iters or total_steps))

    def decay_steps(self, total_steps: int) -> int:
        return self.lr_decay_iters or total_steps
