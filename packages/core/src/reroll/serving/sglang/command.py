"""How an SGLang server is started: one account of it, for those who launch and for `reroll plan`. Light."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

from reroll.api import PlannedEngine, PlannedModel, RunFile
from reroll.serving.sglang.section import SGLangSection

BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
WEIGHT_BYTES = {"bfloat16": 2, "float16": 2, "half": 2, "float": 4, "float32": 4}
"""Of one parameter, by `sglang.dtype` or by what the model's files hold."""
SERVES_ITSELF = "SGLang decides what a server's parameters take"


def launch_command(python: str, pipe: str) -> list[str]:
    """The command line that the system sees; `pipe` is the descriptor through which the port is told."""
    return [python, str(BOOTSTRAP), pipe]


def server_python(given: Path | None) -> str:
    return str(given or sys.executable)


def server_options(options: SGLangSection, model: str, version: str, share_devices: bool) -> tuple[str, ...]:
    """Options for SGLang's parser, all but the address.

    Args:
        version: the text that the server keeps for the version of its weights.
    """
    return (
        "--model-path",
        model,
        "--weight-version",
        version,
        # Without it SGLang says that it gave its memory up, and keeps it.
        *(["--enable-memory-saver"] if share_devices else []),
        *options.arguments(),
    )


def server_environment(options: SGLangSection) -> dict[str, str]:
    return {"SGLANG_USE_CPU_ENGINE": "1"} if server_device(options) == "cpu" else {}


def server_device(options: SGLangSection) -> Literal["cpu", "cuda"]:
    return "cpu" if options.by_name().get("device") == "cpu" else "cuda"


def server_ranks(options: SGLangSection) -> int:
    """Processes that hold weights."""
    given = options.by_name()
    ranks: int = given.get("tp_size", 1) * given.get("pp_size", 1)
    return ranks


def planned_server(run: RunFile, model: PlannedModel) -> PlannedEngine:
    """One of the run's servers, or of those that run already. What a server takes for its cache and graphs follows from
    `sglang.mem_fraction_static` and from the device, and is its own to decide."""
    from reroll.serving.config import ServingSection
    from reroll.serving.sglang.bootstrap import server_arguments

    serving, options = run.get(ServingSection), run.get(SGLangSection)
    if serving.urls:
        attached = "it runs already, with options of its own"
        return PlannedEngine(
            gpus=0, memory={"weights": None, "kv_cache": None}, because={"weights": attached, "kv_cache": attached}
        )
    given = options.by_name()
    weights, reason = _weights(given, model, server_ranks(options))
    share = given.get("mem_fraction_static")
    cache = (
        f"SGLang decides: sglang.mem_fraction_static = {share} of a device is for weights and cache together"
        if share is not None
        else "SGLang decides: sglang.mem_fraction_static is not given"
    )
    arguments = server_options(options, str(model.directory), "<version>", bool(run.value("placement.colocate")))
    return PlannedEngine(
        argv=tuple(launch_command(server_python(serving.python), "<pipe>")),
        told=tuple(server_arguments(list(arguments), "<address>", "<port>")),
        environment=server_environment(options),
        gpus=server_ranks(options) if server_device(options) == "cuda" else 0,
        memory={"weights": weights, "kv_cache": None},
        because={"kv_cache": cache} | ({"weights": reason} if reason else {}),
    )


def _weights(given: dict[str, Any], model: PlannedModel, ranks: int) -> tuple[int | None, str | None]:
    """Bytes on each device, in which every parameter lies on one rank; or the reason why they are not known."""
    if model.parameters is None:
        return None, None  # told of the model already
    if given.get("quantization") is not None:
        return None, f"{SERVES_ITSELF}: sglang.quantization is given"
    wanted = given.get("dtype", "auto")
    kind = model.dtype if wanted == "auto" else wanted
    if kind is None or (wanted == "auto" and WEIGHT_BYTES.get(kind) != 2):
        return None, f'{SERVES_ITSELF}: sglang.dtype is "auto", and the model\'s files hold {kind or "several types"}'
    return -(-WEIGHT_BYTES[kind] * model.parameters // ranks), None
