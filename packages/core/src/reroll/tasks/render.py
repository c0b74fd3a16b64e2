"""From a task to the tokens that the model reads: the one place where a chat template is applied.

Text is rendered with jinja2 and `tokenizers` alone, since importing transformers costs seconds; tests
hold the result equal to `apply_chat_template`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox
from tokenizers import Tokenizer

from reroll.api import AssistantTurn, Message, RenderedPrompt, Task, TaskError
from reroll.models.files import ModelError, ModelFiles, sha256_file
from reroll.tasks.call_probes import learn_calls
from reroll.tasks.tool_calls import CallFormat


class Renderer:
    """Renders tasks for one model."""

    def __init__(self, files: ModelFiles, chat_template: str | None = None) -> None:
        self.files = files
        try:
            self.tokenizer = Tokenizer.from_file(str(files.tokenizer))
        except Exception as error:
            raise ModelError(f"{files.tokenizer} is no tokenizer: {error}") from None
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer_sha256 = sha256_file(files.tokenizer)
        self.template = chat_template or files.chat_template
        self.template_sha256 = hashlib.sha256(self.template.encode()).hexdigest() if self.template else ""
        bos = files.special_tokens.get("bos_token")
        self._bos = self.tokenizer.token_to_id(bos) if bos else None

    def render(self, task: Task) -> RenderedPrompt:
        """Text and tokens of the prompt, ready for the model to answer.

        Messages go through the chat template with a generation prompt; plain text is tokenised with the
        tokenizer's own special tokens. Either way the prompt holds at most one leading BOS token.
        """
        plain = isinstance(task.prompt, str)
        text = str(task.prompt) if plain else self._apply_template(task)
        ids = self._encode(task, text, plain)
        if not ids:
            raise TaskError(f"task {task.key}: the rendered prompt is empty")
        digest = "" if isinstance(task.prompt, str) else self.template_sha256
        return RenderedPrompt(text, tuple(ids), digest, self.tokenizer_sha256)

    def decode(self, token_ids: list[int]) -> str:
        """Text of sampled tokens, special tokens left out."""
        text: str = self.tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    def call_format(self) -> CallFormat:
        """How the model writes tool calls; TaskError says why it cannot."""
        if isinstance(self._call_format, TaskError):
            raise self._call_format
        return self._call_format

    def parse(self, token_ids: Sequence[int]) -> AssistantTurn:
        """What sampled tokens say. A model that can call no tools says text."""
        said = {"role": "assistant", "content": self.decode(list(token_ids))}
        if isinstance(self._call_format, TaskError):
            return AssistantTurn(said)
        turn = self._call_format.parse(self._written(token_ids))
        return turn if turn.malformed or "tool_calls" in turn.message else AssistantTurn(said)

    def extend(self, task: Task, token_ids: Sequence[int]) -> list[int] | None:
        """The tokens that the conversation `task.prompt` has after `token_ids`, up to where the model goes on; None
        where the chat template renders it so that it does not begin with what these tokens say.

        The tokens of both together say the rendered conversation: that text, or what a tokenizer that loses something
        makes of it.
        """
        kept = list(token_ids)
        text, so_far = self._apply_template(task), self._read(kept)
        if text.startswith(so_far):
            appended = self._encode(task, text[len(so_far) :])
            if self._read(kept + appended) == text:
                return appended
        whole = self._encode(task, text)
        meant = (text, self._read(whole))
        if not any(full.startswith(so_far) for full in meant):
            return None
        for start in self._ends(so_far, whole, len(kept)):
            if self._read(kept + whole[start:]) in meant:
                return whole[start:]
        return None

    def _ends(self, so_far: str, whole: list[int], length: int) -> Iterator[int]:
        """Places in the conversation at which as much is said as `so_far`. What comes then is tokenised otherwise by
        itself: some tokenizers begin every text with a space."""
        yield length
        low, high = 0, len(whole)
        while low < high:
            middle = (low + high) // 2
            if len(self._read(whole[:middle])) < len(so_far):
                low = middle + 1
            else:
                high = middle
        yield low

    @cached_property
    def _call_format(self) -> CallFormat | TaskError:
        if not self.template:
            return TaskError(f"{self.files.directory} has no chat template: the model cannot call tools")
        try:
            return learn_calls(self._template_text, sorted(self._special.values()))
        except TaskError as error:
            return error

    @cached_property
    def _special(self) -> dict[int, str]:
        """Special tokens, which decoding leaves out: id → text."""
        added = self.tokenizer.get_added_tokens_decoder()
        return {token: described.content for token, described in added.items() if described.special}

    def _written(self, token_ids: Sequence[int]) -> str:
        """The text of a turn without the token that ends it; with special tokens where calls are written with them."""
        literals = self.call_format().literals
        needed = any(text in literals for text in self._special.values())
        ids = list(token_ids)
        if ids and (ids[-1] in self.files.eos_token_ids or self._special.get(ids[-1], literals) not in literals):
            del ids[-1]
        text: str = self.tokenizer.decode(ids, skip_special_tokens=not needed)
        return text

    def _read(self, token_ids: list[int]) -> str:
        """All that tokens say."""
        text: str = self.tokenizer.decode(token_ids, skip_special_tokens=False)
        return text

    def _encode(self, task: Task, text: str, plain: bool = False) -> list[int]:
        try:
            ids: list[int] = self.tokenizer.encode(text, add_special_tokens=plain).ids
        except Exception as error:  # a lone surrogate, for one
            raise TaskError(f"task {task.key}: the prompt cannot be tokenised: {error}") from None
        while len(ids) > 1 and ids[0] == ids[1] == self._bos:
            ids = ids[1:]
        return ids

    def _apply_template(self, task: Task) -> str:
        if not self.template:
            raise TaskError(
                f"task {task.key} has messages, but {self.files.directory} has no chat template: "
                "set model.chat_template, or give `prompt` as plain text"
            )
        try:
            return self._template_text(task.messages, task.tools, True)
        except TaskError as error:
            raise TaskError(f"task {task.key}: {error}") from None

    def _template_text(self, messages: list[Message], tools: list[dict[str, Any]], go_on: bool) -> str:
        try:
            return _compile(self.template or "").render(
                messages=messages,
                tools=tools or None,
                documents=None,
                add_generation_prompt=go_on,
                **self.files.special_tokens,
            )
        except Exception as error:  # templates are programs, and messages may be of any shape
            raise TaskError(f"the chat template refused the messages: {error}") from None


@lru_cache
def _compile(template: str) -> jinja2.Template:
    """The template in the environment that the field's chat templates are written for."""

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        # jinja2's own filter escapes HTML, which would change prompts
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's part for mask builders; the text
    inside is rendered as it is."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)
