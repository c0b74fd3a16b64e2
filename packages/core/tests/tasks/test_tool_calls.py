"""How models write calls is learned from their templates, and what they wrote is read back."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reroll.api import TaskError
from reroll.models.files import ModelFiles, resolve_model
from reroll.tasks.render import Renderer
from reroll.tasks.tool_calls import JsonCalls, TaggedCalls

sys.path.insert(0, str(Path(__file__).parent))

from call_templates import LIST, PARAMETERS, READABLE, TAGS, WHOLE, WITHIN_THOUGHT, byte_level, write_model

QUESTION = {"role": "user", "content": "q"}


@pytest.fixture(scope="session")
def renderer(tmp_path_factory):
    """A renderer with the template of a name, or with a given one."""
    files = ModelFiles(write_model(tmp_path_factory.mktemp("calls")))
    made = {}

    def of(name):
        if name not in made:
            made[name] = Renderer(files, READABLE.get(name, name))
        return made[name]

    return of


def calls(*pairs, first=0):
    return [
        {"id": f"call{first + number:05d}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(pairs)
    ]


def assistant(content, *pairs):
    message = {"role": "assistant", "content": content}
    return {**message, "tool_calls": calls(*pairs)} if pairs else message


def written(renderer, message):
    """What a model writes that says the message in its template's form: rendered as the last but for its results."""
    results = [
        {"role": "tool", "content": "RESULT", "tool_call_id": call["id"]} for call in message.get("tool_calls", ())
    ] or [QUESTION]
    text = renderer._template_text([QUESTION, message, *results], [], True)
    begin = renderer._template_text([QUESTION], [], True).replace("Be brief. ", "")
    return text[len(begin) :].split("<|im_end|>")[0]


def parse(renderer, text):
    return renderer.parse([*byte_level_ids(text), renderer.tokenizer.token_to_id("<|im_end|>")])


TOKENIZER = byte_level()


def byte_level_ids(text):
    return TOKENIZER.encode(text, add_special_tokens=False).ids


ADD, LIST_ALL = ("add", {"a": "1", "b": "two words"}), ("list-all", {})


@pytest.mark.parametrize("name", READABLE)
def test_every_manner_of_writing_calls_is_learned_from_the_template_and_read_back(renderer, name):
    content = WITHIN_THOUGHT.get(name, "")
    one = assistant(content, ADD)
    assert parse(renderer(name), written(renderer(name), one)).message == one
    if name != "whole":
        both = assistant(content, ADD, LIST_ALL)
        assert parse(renderer(name), written(renderer(name), both)).message == both


@pytest.mark.parametrize("name", ["tags", "thinking", "plain-list", "parameters", "new-lines"])
@pytest.mark.parametrize("content", ["I will add.", " spaces\n\n", "<think>\nadd?\n</think>\n\n", "{", "<tool"])
def test_content_before_calls_is_what_renders_as_it_was_written(renderer, name, content):
    message = assistant(content, ADD)
    assert parse(renderer(name), written(renderer(name), message)).message == message


def test_the_format_says_what_the_template_writes(renderer):
    assert renderer(TAGS).call_format() == JsonCalls(
        lead="<tool_call>\n", gap="\n", trailer="\n</tool_call>", joint="\n</tool_call>\n<tool_call>\n",
        name_key="name", arguments_key="arguments",
    )  # fmt: skip
    assert renderer(WHOLE).call_format() == JsonCalls(
        lead="", gap="", trailer="", joint=None, name_key="name", arguments_key="parameters"
    )
    assert renderer(LIST).call_format() == JsonCalls(
        lead="[TOOL_CALLS] [", gap="", trailer="]", joint=", ", name_key="name", arguments_key="arguments", id_key="id"
    )
    assert isinstance(renderer(PARAMETERS).call_format(), TaggedCalls)


def test_other_white_space_and_other_order_are_calls_as_well(renderer):
    text = '<tool_call>{"arguments":{"a":1},\n"name":"add"}</tool_call>  <tool_call>\n\n{"name": "b", "arguments": {}}'
    text += "</tool_call>\n"
    assert parse(renderer("tags"), text).message == assistant("", ("add", {"a": 1}), ("b", {}))
    text = '[TOOL_CALLS][{"name": "add", "arguments": {}},{"name": "b", "arguments": {}} ]'
    assert parse(renderer("list"), text).message == assistant("", ("add", {}), ("b", {}))
    text = "<tool_call><function=add><parameter=a>1</parameter><parameter=b>\n\n2\n</parameter></function></tool_call>"
    assert parse(renderer("parameters"), text).message == assistant("", ("add", {"a": "1", "b": "\n2"}))


def test_identifiers_are_the_models_own_where_it_writes_them(renderer):
    first, second = '{"name": "a", "arguments": {}, "id": "Ab3dE6gH9"}', '{"name": "b", "arguments": {}, "id": "short"}'
    found = parse(renderer("list"), f"[TOOL_CALLS] [{first}, {second}]").message["tool_calls"]
    assert [call["id"] for call in found] == ["Ab3dE6gH9", "call00001"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tags", "<tool_call>"),
        ("tags", '<tool_call>\n{"name": "add", "arguments": {"a": 1}\n</tool_call>'),
        ("tags", '<tool_call>\n{"name": "add", "arguments": {}}'),
        ("tags", '<tool_call>\n{"name": "add", "arguments": "{}"}\n</tool_call>'),
        ("tags", '<tool_call>\n{"name": "", "arguments": {}}\n</tool_call>'),
        ("tags", '<tool_call>\n{"arguments": {}}\n</tool_call>'),
        ("tags", "<tool_call>\n[1]\n</tool_call>"),
        ("tags", '<tool_call>\n{"name": "add", "arguments": {"a": NaN}}\n</tool_call>'),
        ("tags", '<tool_call>\n{"name": "add", "arguments": {"a": 1e999}}\n</tool_call>'),
        ("tags", '<tool_call>\n{"name": "add", "arguments": {"a": "\\ud800"}}\n</tool_call>'),
        ("tags", '<tool_call>\n{"name": "add", "arguments": {"a": ' + "[" * 60 + "]" * 60 + "}}\n</tool_call>"),
        ("tags", '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>\nand now?'),
        ("tags", '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name": "b"\n</tool_call>'),
        ("whole", '{"name": "add", "parameters": {'),
        ("whole", '{"name": "add", "parameters": {}}; {"name": "b", "parameters": {}}'),
        ("plain-list", '[TOOL_CALLS][{"name": "add", "arguments": {}}'),
        ("parameters", "<tool_call>\n<function=add>\n<parameter=a>\n1\n</function>\n</tool_call>"),
        ("parameters", "<tool_call>\n<function=>\n</function>\n</tool_call>"),
    ],
)
def test_what_was_meant_as_a_call_and_cannot_be_read_stays_text_and_is_malformed(renderer, name, text):
    for before in ("", "Well. ") if name != "whole" else ("",):
        turn = parse(renderer(name), before + text)
        assert (turn.message, turn.malformed) == (assistant(before + text), True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tags", ""),
        ("tags", "85"),
        ("tags", '{"name": "add", "arguments": {}}'),
        ("whole", '{"answer": 85}'),
        ("whole", 'It is {"name": "add", "parameters": {}}'),
        (
            "thinking",
            '<think>\nA <tool_call> or <tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>?</think>\n\n85',
        ),
    ],
)
def test_other_text_is_no_call(renderer, name, text):
    turn = parse(renderer(name), text)
    assert (turn.message, turn.malformed) == (assistant(text), False)


def test_a_call_behind_a_thought_about_calls_is_read(renderer):
    thought = "<think>\nI could write <tool_call>{}</tool_call> now\n</think>\n"
    message = assistant(thought, ADD)
    assert parse(renderer("tags"), written(renderer("tags"), message)).message == message


def test_special_tokens_are_part_of_calls_and_of_no_other_text(renderer):
    special = TOKENIZER.token_to_id("[TOOL_CALLS]")
    turn = renderer("list").parse([*byte_level_ids("one "), special, *byte_level_ids("[two<|im_end|>")])
    assert (turn.message["content"], turn.malformed) == ("one [TOOL_CALLS][two", True)
    turn = renderer("tags").parse([*byte_level_ids("one "), special, *byte_level_ids("two<|im_end|>")])
    assert (turn.message["content"], turn.malformed) == ("one two", False)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "does not write tool calls"),
        (TAGS.replace("message.content + '\\n</tool_response>'", "'\\n</tool_response>'"), "the results of tools"),
        (TAGS.replace("'\\n<tool_response>\\n'", "raise_exception('no tools')"), "no tools"),
        (TAGS.replace("call.function.arguments | tojson", "call.function.arguments | string"), "cannot be read back"),
    ],
)
def test_a_model_that_can_call_no_tools_says_why_and_speaks_all_the_same(renderer, template, message):
    with pytest.raises(TaskError, match=message):
        renderer(template).call_format()
    turn = parse(renderer(template), '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>')
    assert not turn.malformed
    assert "tool_calls" not in turn.message


def test_the_builtin_model_and_a_model_without_a_template_can_call_no_tools(tmp_path):
    with pytest.raises(TaskError, match="cannot call tools"):
        Renderer(resolve_model("builtin:tiny-math")).call_format()
    write_model(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(TaskError, match="has no chat template: the model cannot call tools"):
        Renderer(ModelFiles(tmp_path)).call_format()


pieces = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "\n", " ", "{", "}", "[", "]", '"name"', ":", '"arguments": {', '"a"', ",", "f>",
        "<function=", "<parameter=", "</parameter>", "</function>", "</think>", "[TOOL_CALLS]", "\\",
        '{"name": "f", "arguments": {}}',
    ]
)  # fmt: skip
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
names = st.from_regex(r"[a-z_][a-z_0-9.-]{0,10}", fullmatch=True)


@given(st.text() | st.lists(pieces | st.text(max_size=3), max_size=30).map("".join))
@example("<tool_call>" + "[" * 100_000)
@example('<tool_call>{"a":' * 1000)
def test_any_text_can_be_parsed(renderer, text):
    text = text.encode("utf-8", "replace").decode()
    for name in READABLE:
        turn = renderer(name).call_format().parse(text)
        assert turn.message["role"] == "assistant"
        assert "tool_calls" in turn.message or turn.message["content"] == text


@given(
    st.text() | st.just("<think>\n?\n</think>\n"),
    st.lists(st.tuples(names, st.dictionaries(st.text(), values, max_size=3)), min_size=1, max_size=3),
)
def test_calls_that_are_rendered_and_parsed_are_the_same(renderer, content, pairs):
    for name, head in (("tags", "<|im_start|>assistant\n"), ("plain-list", "<s>")):
        format = renderer(name).call_format()
        if format.lead.strip().split()[0] in content + json.dumps(pairs, ensure_ascii=False):
            continue
        message = assistant(content, *pairs)
        text = renderer(name)._template_text([message], [], False)
        said = text.removeprefix(head).removesuffix("\n").removesuffix("<|im_end|>")
        turn = format.parse(said)
        assert turn.message == message
        assert renderer(name)._template_text([turn.message], [], False) == text


@given(
    st.lists(
        st.tuples(names, st.dictionaries(names, st.text().filter(lambda text: "</parameter" not in text), max_size=3)),
        min_size=1,
        max_size=3,
    )
)
def test_parameters_that_are_rendered_and_parsed_are_the_same(renderer, pairs):
    message = assistant("", *pairs)
    text = renderer("parameters")._template_text([message], [], False)
    said = text.removeprefix("<|im_start|>assistant\n").removesuffix("<|im_end|>\n")
    assert renderer("parameters").call_format().parse(said).message == message


HOSTILE = {
    "leads": "<tool_call>",
    "leads and braces": '<tool_call>{"a":',
    "braces": "{",
    "thoughts": "<tool_call></think>",
    "spaces": "<tool_call> \n ",
    "calls": '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n',
    "parameters": "<function=f><parameter=a>",
    "list": '{"name": "f", "arguments": {}}, ',
}


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_read_in_time_that_grows_with_its_length(renderer, piece):
    """Nothing is timed: quadratic reading of texts this long would run into the limit that every test has."""
    text = piece * (500_000 // len(piece))
    for name in READABLE:
        format = renderer(name).call_format()
        for before in ("", format.lead):
            format.parse(before + text)
            format.parse(before + text + "x")
