"""The shipped model: small, loadable anywhere, and ignorant of the held-out pairs."""

import importlib
import random
import re

import pytest

from reroll.models.files import ModelError, resolve_model
from reroll.tasks.arithmetic import is_held_out


@pytest.fixture(scope="module")
def tool(recipes):
    return importlib.import_module("make_tiny_math")


def test_it_is_small_and_loads_as_any_model():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = resolve_model("builtin:tiny-math").directory
    assert sum(path.stat().st_size for path in directory.iterdir()) < 3_000_000
    model = AutoModelForCausalLM.from_pretrained(directory)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert sum(parameter.numel() for parameter in model.parameters()) < 1_500_000
    assert model.config.head_dim >= 32
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert tokenizer.is_fast
    text = "any text: ünï ✓\n\t~"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_its_pre_training_text_holds_no_held_out_pair(tool):
    rng = random.Random(1)
    pools = {op: tool.seen_questions(op) for op in tool.MAX_OPERAND}
    seen = 0
    for shape in sorted(tool.CHAT_SHAPES) * 300:
        for message in tool.draw_chat(shape, pools, rng):
            for a, op, b in re.findall(r"(\d+) ([+*]) (\d+)", message["content"]):
                seen += 1
                assert not is_held_out(op, int(a), int(b)), message
    assert seen > 500


def test_an_unknown_builtin_lists_those_there_are():
    with pytest.raises(ModelError, match="there are: builtin:tiny-math, builtin:tiny-tools"):
        resolve_model("builtin:large-math")
