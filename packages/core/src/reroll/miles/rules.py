"""Translations of one control by itself; `together.py` has those of several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from reroll.config.problems import shown
from reroll.config.secrets import secret_problems
from reroll.dials.table import SERVER, Dial
from reroll.miles.draft import Draft, says_nothing, structured

Rule = Callable[[Draft, str, Dial, Any], None]


def one(draft: Draft, control: str, line: Dial, value: Any) -> None:
    """Only 1 means what happens here."""
    if value != 1 or isinstance(value, bool):
        tell = draft.refuse if line.answer == "refused" else draft.idle
        tell(line, f"is {shown(control, value)}: {line.text}")


def told(draft: Draft, control: str, line: Dial, value: Any) -> None:
    """No value of theirs is one of ours."""
    if not says_nothing(value):
        draft.tell("by_hand", line.keys[0], f"in place of {control}: {line.text}")


def listed(draft: Draft, control: str, line: Dial, value: Any) -> None:
    draft.put(line.keys[0], value if isinstance(value, list) else [value], control)


def env_vars(draft: Draft, control: str, line: Dial, value: Any) -> None:
    table = structured(value)
    if not isinstance(table, Mapping):
        draft.wrong(control, 'a table of names and texts, { NCCL_DEBUG = "WARN" }')
    elif table:
        texts = {str(name): item if isinstance(item, str) else str(item) for name, item in table.items()}
        if secrets := list(secret_problems(texts, place=control)):
            draft.faults.extend(secrets)  # where the table is a JSON text, nobody has looked into it before
        else:
            draft.put(line.keys[0], texts, control)


def checkpointing(draft: Draft, control: str, line: Dial, value: Any) -> None:
    """Modes that choose single layers mean all of them here."""
    if isinstance(value, str):
        value = value.lower() not in ("", "none", "off", "disabled")
    if isinstance(value, bool):
        draft.put(line.keys[0], value, control)
    else:
        draft.wrong(control, "true or false")


def recomputation(draft: Draft, control: str, line: Dial, value: Any) -> None:
    if value == "full":
        draft.put(line.keys[0], True, control)
    elif not says_nothing(value):
        text = f"in place of {control}, which is {shown(control, value)}: whole layers are computed again, or none"
        draft.tell("by_hand", line.keys[0], text)


def optimizer(draft: Draft, control: str, line: Dial, value: Any) -> None:
    if str(value).lower() not in ("adam", "adamw"):
        draft.refuse(line, f"is {shown(control, value)}: {line.text}")


def dropout(draft: Draft, control: str, line: Dial, value: Any) -> None:
    rate = draft.number(control)
    if rate:
        draft.put(line.keys[0], False, control)
        draft.tell("by_hand", control, f"the rate {rate}, in the model's own config.json, whose dropout it is")


def bfloat16(draft: Draft, control: str, line: Dial, value: Any) -> None:
    if draft.truth(control):
        draft.put(line.keys[0], "bfloat16", control)


def restarts(draft: Draft, control: str, line: Dial, value: Any) -> None:
    if draft.truth(control) is False:
        draft.put(line.keys[0], 0, control)


def sglang(draft: Draft, control: str, line: Dial, value: Any) -> None:
    """An option of SGLang, as its snapshot knows it."""
    from reroll.serving.sglang.options import sglang_options
    from reroll.serving.sglang.section import SGLangSection

    options = sglang_options()
    name = control.partition(".")[2].removeprefix(SERVER)
    option = options.by_key.get(name)
    if option is None:
        draft.tell("unknown", control, f"SGLang {options.release} has no such option; {options.nearest(name)}")
        return
    if option.nargs in ("+", "*") and not isinstance(value, list):
        value = [value]
    if reason := SGLangSection.refused.get(option.name):
        draft.refuse(line, reason)
    elif option.deprecated:
        draft.refuse(line, f"is deprecated in SGLang {options.release}, which says: {option.deprecated}")
    elif wrong := option.wrong(f"sglang.{name}", value):
        draft.refuse(line, "; ".join(wrong))
    else:
        draft.put(f"sglang.{option.name}", value, control)


EACH: Mapping[str, Rule] = {
    "one": one,
    "told": told,
    "list": listed,
    "env_vars": env_vars,
    "checkpointing": checkpointing,
    "recomputation": recomputation,
    "optimizer": optimizer,
    "dropout": dropout,
    "bfloat16": bfloat16,
    "restarts": restarts,
    "sglang": sglang,
}
