"""The shipped model that calls a tool: small, loadable anywhere, rendered as transformers does, and really calling."""

import importlib
import json
import random
import re

import pytest

from reroll.api import Task
from reroll.models.files import resolve_model
from reroll.tasks.arithmetic import is_held_out
from reroll.tasks.calculations import CALCULATOR, Calculations, CalculationsConfig
from reroll.tasks.render import Renderer

OTHER = {"type": "function", "function": {"name": "clock", "description": "Tells the time.", "parameters": {}}}


def calling(*arguments, content=""):
    calls = [{"type": "function", "function": {"name": "calculator", "arguments": given}} for given in arguments]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def user(text):
    return {"role": "user", "content": text}


def result(text):
    return {"role": "tool", "content": text, "tool_call_id": "call00000", "name": "calculator"}


SUM = [user("What is 12 + 7?"), calling({"expression": "12 + 7"}), result("19")]
PRODUCT = [
    user("What is (4 + 8) * (15 + 6)?"),
    calling({"expression": "4 + 8"}, {"expression": "15 + 6"}),
    result("12"),
    result("21"),
]
CONVERSATIONS = {
    "a question": [user("What is 47 + 38?")],
    "a system message": [{"role": "system", "content": "Be brief."}, *SUM],
    "an empty system message": [{"role": "system", "content": ""}, *SUM],
    "a call and its result": SUM,
    "parallel calls": PRODUCT,
    "content before calls": [SUM[0], calling({"expression": "12 + 7"}, content="Let me see."), SUM[2], user("Go on.")],
    "arguments as text": [SUM[0], calling('{"expression":  "12+7"}'), SUM[2]],
    "no content at all": [SUM[0], {**SUM[1], "content": None}, SUM[2]],
    "any text": [user("ünï <b>&\"'</b>\n\n  ☃ "), calling({"expression": 'a "quoted" <ünï>', "digits": 3}), SUM[2]],
}


@pytest.fixture(scope="module")
def files():
    return resolve_model("builtin:tiny-tools")


@pytest.fixture(scope="module")
def tokenizer(files):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(files.directory)


@pytest.fixture(scope="module")
def reply(files):
    """What the model says to a task, greedily."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(files.directory)
    renderer = Renderer(files)

    def reply(task):
        prompt = torch.tensor([renderer.render(task).token_ids])
        options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 64, "do_sample": False}
        return renderer.decode(model.generate(prompt, **options)[0, prompt.shape[1] :].tolist())

    return reply


@pytest.fixture(scope="module")
def chats(recipes):
    return importlib.import_module("tiny_tools_chats")


def test_it_is_small_and_loads_as_any_model(files):
    from transformers import AutoModelForCausalLM

    assert sum(path.stat().st_size for path in files.directory.iterdir()) < 3_000_000
    model = AutoModelForCausalLM.from_pretrained(files.directory)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert 400_000 < sum(parameter.numel() for parameter in model.parameters()) < 650_000
    assert files.max_context == 2048


@pytest.mark.parametrize("tools", [[], [CALCULATOR], [CALCULATOR, OTHER]], ids=len)
@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
def test_conversations_with_tools_are_rendered_as_transformers_does(files, tokenizer, messages, tools):
    rendered = Renderer(files).render(Task(messages, {"v": "1"}, "tests", 0, "0", tools=tools))
    options = {"tools": tools or None, "add_generation_prompt": True}
    assert rendered.text == tokenizer.apply_chat_template(messages, tokenize=False, **options)
    assert list(rendered.token_ids) == list(tokenizer.apply_chat_template(messages, return_dict=False, **options))


def test_calls_stand_in_tags_and_tools_are_named_in_the_system_turn(files):
    messages = [{"role": "system", "content": "Be brief."}, *PRODUCT]
    task = Task(messages, {"v": "1"}, "tests", 0, "0", tools=[CALCULATOR, OTHER])
    assert Renderer(files).render(task).text == (
        "<|im_start|>system\nBe brief.\nTools: calculator, clock<|im_end|>\n"
        "<|im_start|>user\nWhat is (4 + 8) * (15 + 6)?<|im_end|>\n"
        "<|im_start|>assistant\n"
        '<tool_call>\n{"name": "calculator", "arguments": {"expression": "4 + 8"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "calculator", "arguments": {"expression": "15 + 6"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n12<|im_end|>\n<|im_start|>tool\n21<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_tags_of_calls_are_tokens_that_decoding_keeps(files):
    renderer = Renderer(files)
    for tag in ("<tool_call>", "</tool_call>"):
        ids = renderer.tokenizer.encode(tag, add_special_tokens=False).ids
        assert len(ids) == 1
        assert renderer.decode(ids) == tag


def test_a_digit_is_a_token_and_any_text_survives(tokenizer):
    assert len(tokenizer("0123456789")["input_ids"]) == 10
    text = "any text: ünï ✓\n\t~"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_it_calls_the_calculator_in_held_out_tasks_and_answers_with_the_result(reply):
    answered = 0
    tasks = list(Calculations(CalculationsConfig(kinds=["sum"], terms=2, split="held_out", size=8)))
    for task in tasks:
        call = re.fullmatch(r"<tool_call>\n(.+)\n</tool_call>", reply(task))
        assert call, task
        said = json.loads(call[1])
        assert said == {"name": "calculator", "arguments": {"expression": task.prepared_sample_id}}
        messages = [*task.prompt, calling(said["arguments"]), result(task.targets["math"])]
        after = reply(Task(messages, task.targets, "tests", 0, "0", tools=task.tools))
        answered += after == f"\\boxed{{{task.targets['math']}}}"
    assert answered >= len(tasks) - 1


def test_it_makes_both_sums_of_a_product_in_one_turn(reply, chats):
    found = 0
    tasks = list(Calculations(CalculationsConfig(kinds=["product"], split="held_out", size=8)))
    for task in tasks:
        sums = re.findall(r"\d+ \+ \d+", task.prepared_sample_id)
        found += reply(task) == chats.said(calling(*({"expression": text} for text in sums)))
    assert found >= len(tasks) - 2


def test_its_recipe_writes_chats_as_the_shipped_template_does(files, tokenizer, recipes):
    recipe = importlib.import_module("make_tiny_tools")
    assert files.chat_template == recipe.CHAT_TEMPLATE
    recipe.check_tokenizer(tokenizer, recipe.PHRASES)
    recipe.check_encoder(recipe.ChatEncoder(tokenizer))


def test_its_pre_training_text_holds_nothing_that_is_held_out(chats):
    rng = random.Random(1)
    seen = 0
    for shape in sorted(chats.SHAPES) * 60:
        for message in chats.draw_chat(shape, rng).messages:
            for a, op, b in re.findall(r"(\d+) ([+*]) (\d+)", chats.said(message)):
                seen += 1
                assert not is_held_out(op, int(a), int(b)), message
    for _ in range(300):
        question = chats.draw_question("calculation", rng)
        assert not question.held_out
    assert seen > 500
