"""Translations of what a run is trained on and measured with."""

from __future__ import annotations

import re
from typing import Any

from reroll.api import Problem
from reroll.config.problems import shown
from reroll.dials.table import dials
from reroll.miles.draft import Draft, says_nothing, structured

VERIFIERS = {"math": "math", "deepscaler": "math", "dapo": "math"}
"""Rewards that MILES has built in → a verifier that judges the same kind of answer."""
OF_SETS = {
    "miles.n_samples_per_eval_prompt": "n_samples_per_eval_prompt",
    "miles.eval_temperature": "temperature",
    "miles.eval_top_p": "top_p",
    "miles.eval_top_k": "top_k",
    "miles.eval_max_response_len": "max_response_len",
    "miles.eval_max_prompt_len": "max_prompt_len",
}
"""MILES sets them for all sets at once."""
OF_TRAINING = {
    "temperature": "miles.rollout_temperature",
    "top_p": "miles.rollout_top_p",
    "top_k": "miles.rollout_top_k",
}
"""What MILES takes for its sets where nothing is said of them."""
SLICE = re.compile(r"(.*)@\[[^\]]*\]")


def prompts(draft: Draft) -> None:
    """The training file, how its rows are read, and what judges them."""
    control, reward = draft.text("miles.prompt_data"), draft.text("miles.rm_type")
    verifier = VERIFIERS.get(reward or "")
    if verifier is not None:
        draft.put("data.verifiers", [verifier], "miles.rm_type")
    elif reward is not None:
        names = ", ".join(VERIFIERS)
        draft.tell("by_hand", "data.verifiers", f"miles.rm_type is {shown('rm_type', reward)}; known are {names}")
    if control is None and "miles.eval_prompt_data" not in draft.given:
        for name in ("miles.input_key", "miles.label_key", "miles.metadata_key"):
            if name in draft.given:
                draft.idle(dials()[name], "does nothing without prompt_data")
    if control is not None:
        draft.put("data.task_set", _file(draft, control, "miles.prompt_data"), "miles.prompt_data", "")


def _file(draft: Draft, path: str, control: str) -> dict[str, Any]:
    """A task set of a file's rows."""
    if found := SLICE.fullmatch(path):
        path = found[1]
        text = f"a file of the rows that {shown(control, path)} names: the whole file is read"
        draft.tell("by_hand", control, text, control)
    options: dict[str, Any] = {"name": "file", "path": path}
    options["input_key"] = draft.text("miles.input_key") or "input"  # what MILES reads where nothing is said
    if label := draft.text("miles.label_key"):
        verifiers = draft.value("data.verifiers")
        if verifiers:
            options |= {"label_key": label, "verifier": verifiers[0]}
        else:
            text = f'the verifier that judges against {label!r}; with it label_key = "{label}"'
            draft.tell("by_hand", "data.task_set.verifier", text)
    if metadata := draft.text("miles.metadata_key"):
        options["metadata_key"] = metadata
    return options


def evaluation(draft: Draft) -> None:
    """Names and files in turn → sets, each with what MILES says once for all."""
    given = structured(draft.given.get("miles.eval_prompt_data"))
    own = {key: draft.given[control] for control, key in OF_SETS.items() if control in draft.given}
    taken = {key: control for key, control in OF_TRAINING.items() if key not in own and control in draft.given}
    own |= {key: draft.given[control] for key, control in taken.items()}
    if "temperature" not in own:
        own["temperature"] = 1.0  # what training in MILES has where nothing is said
    sets = _sets(draft, given, own) if given is not None else []
    if not sets:
        for control in (*OF_SETS, "miles.eval_interval", "miles.skip_eval_before_train"):
            if control in draft.given and not says_nothing(draft.given[control]):
                draft.idle(dials()[control], "does nothing without eval_prompt_data")
        return
    comment = dials()["miles.eval_prompt_data"].text
    if "miles.eval_temperature" not in draft.given:
        comment += "; the temperature is that of training, as in MILES"
    draft.put("eval.sets", sets, "miles.eval_prompt_data", comment)
    if (interval := draft.whole("miles.eval_interval")) is not None:
        steps = _steps(draft)
        text = f"in optimizer steps; {interval} collections of {steps}" if steps != 1 else None
        draft.put("eval.eval_interval", interval * steps, "miles.eval_interval", text)
    if "miles.skip_eval_before_train" in draft.given:
        control = "miles.skip_eval_before_train"
        draft.put("eval.skip_eval_before_train", draft.given[control], control)


def _steps(draft: Draft) -> int:
    """Optimizer steps of a collection, 1 where they cannot be counted."""
    prompts, samples = draft.value("rollout.rollout_batch_size"), draft.value("rollout.n_samples_per_prompt")
    batch = draft.value("trainer.global_batch_size")
    if not all(isinstance(item, int) and item > 0 for item in (prompts, samples, batch)):
        return 1
    return max(1, int(prompts * samples // batch))


def _sets(draft: Draft, given: Any, own: dict[str, Any]) -> list[dict[str, Any]]:
    control = "miles.eval_prompt_data"
    if not isinstance(given, list) or len(given) % 2 or not all(isinstance(item, str) for item in given):
        problem = f"is {shown(control, given)}"
        draft.faults.append(Problem(control, problem, 'give names and files in turn: ["gsm8k", "/data/gsm8k.jsonl"]'))
        return []
    pairs = zip(given[::2], given[1::2], strict=True)
    return [{"name": _name(name), "task_set": _file(draft, path, control), **own} for name, path in pairs]


def _name(text: str) -> str:
    """As names of sets are written."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text).lstrip("._-") or "set"
