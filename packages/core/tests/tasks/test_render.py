"""Rendering equals transformers' own, and gives at most one BOS."""

import json
import sys
from pathlib import Path

import pytest

from reroll.api import Task, TaskError
from reroll.models.files import ModelFiles, resolve_model
from reroll.tasks.calculator import Calculator
from reroll.tasks.render import Renderer

sys.path.insert(0, str(Path(__file__).parent))

from call_templates import READABLE, TOKENIZERS, write_model

CONVERSATIONS = [
    [{"role": "user", "content": "What is 47 + 38?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 7 * 12?"}],
    [
        {"role": "user", "content": "ünï <b>&\"'</b>\n\n  spaces "},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "again"},
    ],
]

TEMPLATE = """{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}{{ '<s>' }}{%- endif %}
    {%- if message.role == 'assistant' %}{% generation %}{{ message.content }}{% endgeneration %}
    {%- else %}{{ message | tojson }}{% endif %}
    {%- if message.content == 'stop' %}{% break %}{% endif %}
{%- endfor %}
{%- if tools %}{{ tools | tojson(indent=2) }}{% endif %}
{%- if add_generation_prompt %}{{ eos_token }}{% endif %}"""


def task_of(prompt, tools=()):
    return Task(prompt, {"v": "1"}, "tests", 0, "0", tools=list(tools))


@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_equal_to_transformers_on_the_builtin_model(messages):
    from transformers import AutoTokenizer

    files = resolve_model("builtin:tiny-math")
    reference = AutoTokenizer.from_pretrained(files.directory)
    rendered = Renderer(files).render(task_of(messages))
    assert rendered.text == reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert list(rendered.token_ids) == list(ids)
    assert Renderer(files).decode(list(rendered.token_ids)) == reference.decode(
        rendered.token_ids, skip_special_tokens=True
    )


@pytest.mark.parametrize("tools", [[], [{"type": "function", "function": {"name": "add", "description": "<a & b>"}}]])
def test_a_template_with_every_feature_renders_as_transformers_does(tiny_model, tools):
    from transformers import AutoTokenizer

    messages = [*CONVERSATIONS[2], {"role": "user", "content": "stop"}, {"role": "user", "content": "never seen"}]
    reference = AutoTokenizer.from_pretrained(tiny_model)
    expected = reference.apply_chat_template(
        messages, tools=tools or None, chat_template=TEMPLATE, tokenize=False, add_generation_prompt=True
    )
    rendered = Renderer(ModelFiles(tiny_model), TEMPLATE)._apply_template(task_of(messages, tools))
    assert rendered == expected
    assert "never seen" not in rendered


@pytest.mark.parametrize("template", READABLE)
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_calls_results_and_tools_render_as_transformers_renders_them(tmp_path, template, tokenizer):
    from transformers import AutoTokenizer

    calls = [{"id": "call00000", "type": "function", "function": {"name": "calculator", "arguments": {"a": "ü <b>"}}}]
    messages = [
        {"role": "user", "content": "What is 47 + 38?"},
        {"role": "assistant", "content": "<think>\n?\n</think>\n\nI ask.", "tool_calls": calls},
        {"role": "tool", "name": "calculator", "content": '{"85": "&"}', "tool_call_id": "call00000"},
        {"role": "assistant", "content": "85"},
        {"role": "user", "content": "again"},
    ]
    files = ModelFiles(write_model(tmp_path, TOKENIZERS[tokenizer](), READABLE[template]))
    reference = AutoTokenizer.from_pretrained(tmp_path)
    for count in (1, 3, 5):
        tools = [Calculator().schema()]
        rendered = Renderer(files).render(task_of(messages[:count], tools))
        options = {"tools": tools, "add_generation_prompt": True}
        assert rendered.text == reference.apply_chat_template(messages[:count], tokenize=False, **options)
        ids = reference.apply_chat_template(messages[:count], return_dict=False, **options)
        assert list(rendered.token_ids) == list(ids)


def test_plain_text_has_at_most_one_bos(tmp_path, tiny_model):
    from tokenizers import Tokenizer, processors

    tokenizer = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    tokenizer.add_special_tokens(["<bos>"])
    bos = tokenizer.token_to_id("<bos>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", bos)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>"}))
    (tmp_path / "config.json").write_text("{}")
    renderer = Renderer(ModelFiles(tmp_path), "{{ bos_token }}{{ messages[0].content }}")
    for prompt in ("abc", "<bos>abc", [{"role": "user", "content": "<bos>abc"}]):
        ids = renderer.render(task_of(prompt)).token_ids
        assert ids.count(bos) == 1
        assert ids[0] == bos


def test_a_template_that_refuses_names_the_task(tiny_model):
    renderer = Renderer(ModelFiles(tiny_model), "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(TaskError, match="task tests:0: .*roles must alternate"):
        renderer.render(task_of([{"role": "user", "content": "x"}]))


def test_messages_without_a_template_say_what_to_set(tmp_path, tiny_model):
    (tmp_path / "tokenizer.json").write_bytes((tiny_model / "tokenizer.json").read_bytes())
    with pytest.raises(TaskError, match="set model.chat_template"):
        Renderer(ModelFiles(tmp_path)).render(task_of([{"role": "user", "content": "x"}]))


def test_a_template_cannot_reach_the_interpreter(tiny_model):
    renderer = Renderer(ModelFiles(tiny_model), "{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(TaskError):
        renderer.render(task_of([{"role": "user", "content": "x"}]))
