"""Values of a run file that look like secrets. A run file is saved beside its run, shown by `plan` and given to others,
so that none may stand in it; what is told of one never repeats it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from reroll.api import Problem

NAMES = (
    "api_key",
    "apikey",
    "access_key",
    "secret_key",
    "private_key",
    "wandb_key",
    "hf_key",
    "token",
    "secret",
    "password",
    "passwd",
    "credentials",
)
"""A key that is one of these, or ends in one, is given a secret wherever it is given text."""
VARIABLES = "env_vars"
"""Tables whose names end so hold environment variables."""
VARIABLE_NAMES = (*NAMES, "key")
"""As `NAMES`, of environment variables. Keys of a run file that end in `key` name a field of something."""
SHAPES = {
    "an API key": r"\bsk-[A-Za-z0-9_-]{16,}|\bgsk_[A-Za-z0-9]{20,}|\bnvapi-[A-Za-z0-9_-]{20,}|\bAIza[A-Za-z0-9_-]{30,}",
    "a token": r"\bhf_[A-Za-z0-9]{30,}|\bgh[opsur]_[A-Za-z0-9]{30,}|\bgithub_pat_\w{30,}|\bglpat-[A-Za-z0-9_-]{20,}"
    r"|\bxox[abprs]-[A-Za-z0-9-]{10,}|\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}",
    "an access key": r"\b(AKIA|ASIA)[A-Z0-9]{16}\b",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a URL with a password": r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/@:]*:[^\s/@]+@",
    "a variable with a secret": r"\b(?:[A-Z][A-Z0-9_]*_)?(API_KEY|ACCESS_KEY|SECRET_KEY|TOKEN|SECRET|PASSWORD)"
    r"=[\"']?[^\s\"'$`]{8,}",
    "a header with a key": r"(?i)\bbearer\s+[A-Za-z0-9._~+/-]{16,}",
}
"""What services give out, and where passwords stand."""
SPECIAL_TOKEN = re.compile(r"\s*[<\[].*[>\]]\s*|.?", re.DOTALL)
"""A token of a vocabulary, such as `</s>`, which keys such as `eos_token` are given."""


def secret_name(key: str) -> bool:
    """Whether a dotted key is for a secret, as `run.api_key` and `trainer.env_vars.SIGNING_KEY` are. One that takes the
    name of an environment variable is not: `api_key_env`."""
    last = key.rsplit(".", 1)[-1].lower().replace("-", "_")
    return any(last == name or last.endswith("_" + name) for name in (VARIABLE_NAMES if in_variables(key) else NAMES))


def in_variables(key: str) -> bool:
    """Whether a dotted key is that of an environment variable, in a table such as `trainer.env_vars`."""
    return key.rpartition(".")[0].endswith(VARIABLES)


def variable_remedy(key: str) -> str:
    """Where to set an environment variable that a run file must not hold."""
    if key.startswith("launch."):  # a job has its cluster's environment, and not that of the command that submits it
        return "set it where the cluster is started"
    return "set it in the environment that the run is started in"


def secret_shape(text: str) -> str | None:
    """What a text looks like, None for one that may be shown."""
    return next((what for what, shape in SHAPES.items() if re.search(shape, text)), None)


def is_secret(key: str, value: Any) -> bool:
    """Whether the value of a key, or anything in it, must not be shown."""
    return next(_found(key, value), None) is not None


def secret_problems(
    table: Mapping[str, Any],
    variable: Callable[[str], str | None] = lambda key: None,
    place: str = "",
    kept_in: str = "a run file",
) -> Iterator[Problem]:
    """One fault a secret, wherever in the table it stands.

    Args:
        table: the run file as it was read, `--set` included; or the table at `place` in it.
        variable: for a dotted key that is given a secret, the one that takes the name of an environment variable in
            its place; None where there is none.
        kept_in: what would keep and show the secret.
    """
    for key, what, by_name in _found(place, table):
        instead = variable(key) if by_name else None
        remedy = "give it by an environment variable: keys that end in _env take the name of one"
        if in_variables(key):
            remedy = variable_remedy(key)
        elif instead is not None:
            remedy = f"set {instead} to the name of an environment variable that holds it"
        yield Problem(key, f"holds {what}, and {kept_in} is saved and shown", f"take it out, and {remedy}")


def _found(key: str, value: Any) -> Iterator[tuple[str, str, bool]]:
    """Dotted key of a secret, what it is, and whether its name says so."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            place = f"{key}.{name}" if key else str(name)
            if secret_shape(str(name)):
                yield key or "run file", "a key that is a secret itself", False
            else:
                yield from _found(place, item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _found(f"{key}[{index}]", item)
    elif _may_be_secret(key, value) and secret_name(re.sub(r"\[\d+\]", "", key)):
        yield key, "a secret", True
    elif isinstance(value, str) and (what := secret_shape(value)):
        yield key, f"what looks like {what}", False


def _may_be_secret(key: str, value: Any) -> bool:
    """Whether a value is one if its key says so. A variable may be a number that somebody forgot to quote, and is
    harmless where it is empty."""
    if in_variables(key):
        return value != "" and isinstance(value, (str, int, float)) and not isinstance(value, bool)
    return isinstance(value, str) and not SPECIAL_TOKEN.fullmatch(value)
