"""Writes what `[sglang]` may hold: the options of an installed SGLang's own parser.

    SGLANG_PYTHON tools/sglang_options.py [FILE]

Run by the Python of an environment with SGLang; FILE is `src/reroll/serving/sglang/options.json` by default, `-` is
standard output. `plan` checks run files against that file, so that it needs no SGLang and stays fast.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from contextlib import redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Any

SNAPSHOT = Path(__file__).parents[1] / "src/reroll/serving/sglang/options.json"

TYPES = {
    "int": "int",
    "float": "float",
    "str": "str",
    "nullable_str": "str",
    "parse_cuda_graph_backend_arg": "str",
    "human_readable_int": "int_with_suffix",
    "loads": "json",
    "json_list_type": "json_list",
    "parse_cuda_graph_config_arg": "json_table",
}
"""SGLang's functions that read a value → what a run file gives for it."""


def parser() -> argparse.ArgumentParser:
    """SGLang's parser, as it is without the settings of this shell, some of which add choices."""
    for name in [name for name in os.environ if name.startswith(("SGLANG_", "SGL_"))]:
        del os.environ[name]
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"  # or it looks for a GPU while it is imported
    made = argparse.ArgumentParser(add_help=False)
    with redirect_stdout(sys.stderr):  # libraries greet while they are imported
        from sglang.srt.server_args import ServerArgs

        ServerArgs.add_cli_args(made)
    return made


def kind(action: argparse.Action) -> str:
    """What the option takes: `flag` (true alone), `switch` (true or false), or a value of a type."""
    if isinstance(action, argparse.BooleanOptionalAction):
        return "switch"
    if action.nargs == 0:
        return "flag"
    if type(action).__name__ == "LoRAPathAction":
        return "str_or_json"
    name = getattr(action.type, "__name__", "str" if action.type is None else repr(action.type))
    if name not in TYPES:
        raise SystemExit(f"{action.option_strings[0]} reads its value with {name}: add it to TYPES in {__file__}")
    return TYPES[name]


def deprecated(action: argparse.Action) -> str | None:
    """What SGLang says to use instead."""
    if replacement := getattr(action, "new_flag", None):
        return f"use {replacement}"
    found = re.match(r"\W*deprecated\W+(use:? [^\s)]+)", action.help or "", re.IGNORECASE)
    return found[1].lower().replace("use:", "use").rstrip(".,") if found else None


def names(action: argparse.Action) -> list[str]:
    """Keys of a run file: every spelling with underscores, first the one of SGLang's own field."""
    spellings = [text for text in action.option_strings if not text.startswith("--no-")]
    keys = [text.removeprefix("--").replace("-", "_") for text in spellings]
    flags = ["--" + key.replace("_", "-") for key in keys]
    if flags != spellings:
        raise SystemExit(f"{spellings} are not all of the form --name-with-hyphens: {__file__} cannot spell them back")
    return sorted(keys, key=lambda key: (key != action.dest, len(key), key))


def described(action: argparse.Action) -> dict[str, Any]:
    """One option; what is as usual is left out."""
    _, *aliases = names(action)
    found: dict[str, Any] = {"type": kind(action)}
    if action.nargs not in (None, 0):
        found["nargs"] = action.nargs
    if action.choices is not None:
        found["choices"] = sorted(action.choices)
    if aliases:
        found["aliases"] = aliases
    if action.required:
        found["required"] = True
    if text := deprecated(action):
        found["deprecated"] = text
    return {**found, "default": action.default}


def snapshot() -> str:
    """The file's text: one option a line, so that a new release shows as a readable difference."""
    options = {names(action)[0]: described(action) for action in parser()._actions}
    lines = [f"  {json.dumps(name)}: {json.dumps(options[name])}" for name in sorted(options)]
    head = f'{{\n"sglang": {json.dumps(version("sglang"))},\n"options": {{\n'
    return head + ",\n".join(lines) + "\n}\n}\n"


if __name__ == "__main__":
    target = sys.argv[1] if len(sys.argv) > 1 else str(SNAPSHOT)
    if target == "-":
        sys.stdout.write(snapshot())
    else:
        Path(target).write_text(snapshot(), "utf-8")
