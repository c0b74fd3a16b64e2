"""A conversation goes on from the tokens as they were sampled, or it says that it cannot."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.api import Task
from reroll.models.files import ModelFiles
from reroll.tasks.render import Renderer

sys.path.insert(0, str(Path(__file__).parent))

from call_templates import READABLE, TAGS, TOKENIZERS, WITHIN_THOUGHT, write_model

QUESTION = {"role": "user", "content": "What is 2 + 2?"}
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "2 + 2"}}\n</tool_call>'
RESULT = {"role": "tool", "content": "4", "tool_call_id": "call00000"}


@pytest.fixture(scope="session")
def renderers(tmp_path_factory):
    """Tokenizer and template by name → a renderer."""
    folder = tmp_path_factory.mktemp("extend")
    files = {name: ModelFiles(write_model(folder / name, make())) for name, make in TOKENIZERS.items()}
    return {
        (tokenizer, template): Renderer(files[tokenizer], READABLE[template])
        for tokenizer in TOKENIZERS
        for template in READABLE
    }


def task_of(messages):
    return Task(list(messages), {}, "set", 0, "0")


def read(renderer, ids):
    return renderer.tokenizer.decode(ids, skip_special_tokens=False)


def in_place(renderer, messages, said):
    """Tokens of the prompt, and of what is said right behind it."""
    prompt = renderer.render(task_of(messages))
    ids = renderer.tokenizer.encode(prompt.text + said, add_special_tokens=False).ids
    assert ids[: len(prompt.token_ids)] == list(prompt.token_ids)
    return list(prompt.token_ids), ids[len(prompt.token_ids) :]


def unmerged(renderer, ids):
    """The same text in as many tokens as it has characters: what a model may sample as well."""
    tokenizer, found = renderer.tokenizer, []
    for token in ids:
        parts = [tokenizer.token_to_id(symbol) for symbol in tokenizer.id_to_token(token)]
        found += [token] if None in parts else parts
    return found


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("template", ["tags", "thinking"])
@pytest.mark.parametrize("thought", ["", "I calculate.\n"])
def test_a_turn_in_the_templates_form_is_continued_exactly_however_it_was_tokenised(
    renderers, tokenizer, template, thought
):
    renderer = renderers[tokenizer, template]
    prompt, said = in_place(renderer, [QUESTION], f"{thought}{CALL}<|im_end|>")
    for sampled in (said, unmerged(renderer, said)):
        kept = prompt + sampled
        conversation = [QUESTION, renderer.parse(sampled).message, RESULT]
        appended = renderer.extend(task_of(conversation), kept)
        whole = renderer.render(task_of(conversation)).token_ids
        assert read(renderer, kept + appended) == read(renderer, list(whole))
        assert tuple(appended) == whole[len(whole) - len(appended) :], "tokenised as within the conversation"


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("template", READABLE)
def test_calls_of_every_form_are_continued_exactly(renderers, tokenizer, template):
    renderer = renderers[tokenizer, template]
    function = {"name": "calculator", "arguments": {"expression": "2 + 2"}}
    calls = [{"id": "call00000", "type": "function", "function": function}]
    message = {"role": "assistant", "content": WITHIN_THOUGHT.get(template, ""), "tool_calls": calls}
    begin = renderer.render(task_of([QUESTION])).text
    text = renderer._apply_template(task_of([QUESTION, message, RESULT]))
    if template == "moving":  # where no turn can be continued, as the prompt is rendered anew
        assert not text.startswith(begin)
        return
    prompt, sampled = in_place(renderer, [QUESTION], text.removeprefix(begin).split("<|im_end|>")[0] + "<|im_end|>")
    turn = renderer.parse(sampled)
    assert turn.message["tool_calls"] == calls
    appended = renderer.extend(task_of([QUESTION, turn.message, RESULT]), prompt + sampled)
    assert tuple(prompt + sampled + appended) == renderer.render(task_of([QUESTION, turn.message, RESULT])).token_ids


def test_a_turn_that_the_template_writes_otherwise_is_not_continued(renderers):
    renderer = renderers["byte-level", "tags"]
    for said in (CALL.replace('": ', '":'), f"{CALL}\n", f"\n{CALL}", f"{CALL}<|endoftext|>"):
        prompt, sampled = in_place(renderer, [QUESTION], said + "<|im_end|>")
        conversation = [QUESTION, renderer.parse(sampled).message, RESULT]
        assert renderer.extend(task_of(conversation), prompt + sampled) is None


def test_a_turn_that_ended_at_a_stop_string_gets_the_end_that_it_lacks(renderers):
    renderer = renderers["byte-level", "tags"]
    prompt, sampled = in_place(renderer, [QUESTION], CALL)
    appended = renderer.extend(task_of([QUESTION, renderer.parse(sampled).message, RESULT]), prompt + sampled)
    assert read(renderer, appended).startswith("<|im_end|>\n<|im_start|>user\n<tool_response>")


def test_thoughts_that_a_template_leaves_out_once_there_is_another_question_cannot_be_continued(renderers):
    renderer = renderers["byte-level", "thinking"]
    prompt, sampled = in_place(renderer, [QUESTION], "<think>\nEasy.\n</think>\n\n4<|im_end|>")
    answer = renderer.parse(sampled).message
    assert renderer.extend(task_of([QUESTION, answer, QUESTION]), prompt + sampled) is None
    prompt, sampled = in_place(renderer, [QUESTION], f"<think>\nEasy.\n</think>\n\n{CALL}<|im_end|>")
    assert renderer.extend(task_of([QUESTION, renderer.parse(sampled).message, RESULT]), prompt + sampled)


def test_a_character_that_was_cut_off_is_kept_as_it_was_sampled(renderers):
    renderer = renderers["byte-level", "tags"]
    prompt, sampled = in_place(renderer, [QUESTION], "4 \N{EURO SIGN}")
    end = renderer.tokenizer.token_to_id("<|im_end|>")
    for missing in (1, 2):
        kept = [*prompt, *sampled[:-missing], end]
        answer = renderer.parse([*sampled[:-missing], end]).message
        appended = renderer.extend(task_of([QUESTION, answer, QUESTION]), kept)
        text = renderer._apply_template(task_of([QUESTION, answer, QUESTION]))
        assert read(renderer, kept + appended) == text
        joined = renderer.extend(task_of([QUESTION, answer, QUESTION]), kept[:-1])
        assert joined is None or read(renderer, kept[:-1] + joined) == text


def test_the_start_of_a_sequence_is_not_doubled(tmp_path):
    write_model(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"bos_token": "<s>", "eos_token": "<|im_end|>"}')
    renderer = Renderer(ModelFiles(tmp_path), "<s><s>" + TAGS)
    prompt, sampled = list(renderer.render(task_of([QUESTION])).token_ids), renderer.tokenizer.encode("4<|im_end|>").ids
    appended = renderer.extend(task_of([QUESTION, {"role": "assistant", "content": "4"}, QUESTION]), prompt + sampled)
    assert prompt.count(renderer.tokenizer.token_to_id("<s>")) == 1
    assert read(renderer, appended).startswith("\n<|im_start|>user")


contents = st.text(max_size=12) | st.sampled_from(["", " ", " a", "a ", "▁", "\n", "é€", "</think>", "{"])


@given(
    st.sampled_from(sorted(TOKENIZERS)),
    st.sampled_from(sorted(READABLE)),
    st.lists(
        st.tuples(contents, st.one_of(contents, st.lists(st.integers(0, 2000), max_size=12)), contents), max_size=3
    ),
)
def test_what_is_kept_and_what_is_appended_say_the_rendered_conversation(renderers, tokenizer, template, turns):
    """Whatever was sampled, tokens of any kind among it."""
    renderer = renderers[tokenizer, template]
    size = renderer.tokenizer.get_vocab_size()
    end = renderer.tokenizer.token_to_id("<|im_end|>")
    conversation = [QUESTION]
    kept = list(renderer.render(task_of(conversation)).token_ids)
    for before, sampled, after in turns:
        said = before.encode("utf-8", "replace").decode()
        written = [*renderer.tokenizer.encode(said, add_special_tokens=False).ids]
        written += [token % size for token in sampled] if isinstance(sampled, list) else []
        turn = renderer.parse([*written, end])
        conversation += [turn.message, {"role": "user", "content": after.encode("utf-8", "replace").decode()}]
        for call in turn.message.get("tool_calls", ()):
            conversation.insert(-1, {"role": "tool", "content": after, "tool_call_id": call["id"]})
        kept += [*written, end]
        appended = renderer.extend(task_of(conversation), kept)
        text = renderer._apply_template(task_of(conversation))
        whole = renderer.render(task_of(conversation)).token_ids
        if appended is None:
            kept = list(whole)
            continue
        assert read(renderer, kept + appended) in (text, read(renderer, list(whole)))
        kept += appended


plain = st.text(st.characters(codec="utf-8", exclude_characters="<[▁"), max_size=12).map(str.strip)


@given(st.sampled_from(sorted(TOKENIZERS)), st.lists(st.tuples(plain, plain), min_size=1, max_size=3))
def test_conversations_in_the_templates_form_never_need_a_new_beginning(renderers, tokenizer, turns):
    renderer = renderers[tokenizer, "tags"]
    conversation, kept = [QUESTION], []
    for answer, question in turns:
        prompt, sampled = in_place(renderer, conversation, answer + "<|im_end|>")
        kept = kept or prompt
        kept += sampled
        turn = renderer.parse(sampled)
        conversation += [turn.message, {"role": "user", "content": question}]
        appended = renderer.extend(task_of(conversation), kept)
        if turn.message["content"] == answer:  # always, but where a tokenizer loses something
            assert appended is not None
        if appended is None:
            return
        kept += appended
