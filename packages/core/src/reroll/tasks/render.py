"""From a task to the tokens that the model reads: the one place where a chat template is applied.

Text is rendered with jinja2 and `tokenizers` alone, since importing transformers costs seconds; tests
hold the result equal to `apply_chat_template`.
"""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox
from tokenizers import Tokenizer

from reroll.api import RenderedPrompt, Task, TaskError
from reroll.models.files import ModelError, ModelFiles, sha256_file


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
        try:
            ids = self.tokenizer.encode(text, add_special_tokens=plain).ids
        except Exception as error:  # a lone surrogate, for one
            raise TaskError(f"task {task.key}: the prompt cannot be tokenised: {error}") from None
        while len(ids) > 1 and ids[0] == ids[1] == self._bos:
            ids = ids[1:]
        if not ids:
            raise TaskError(f"task {task.key}: the rendered prompt is empty")
        digest = "" if isinstance(task.prompt, str) else self.template_sha256
        return RenderedPrompt(text, tuple(ids), digest, self.tokenizer_sha256)

    def decode(self, token_ids: list[int]) -> str:
        """Text of sampled tokens, special tokens left out."""
        text: str = self.tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    def _apply_template(self, task: Task) -> str:
        if not self.template:
            raise TaskError(
                f"task {task.key} has messages, but {self.files.directory} has no chat template: "
                "set model.chat_template, or give `prompt` as plain text"
            )
        try:
            return _compile(self.template).render(
                messages=task.prompt,
                tools=task.tools or None,
                documents=None,
                add_generation_prompt=True,
                **self.files.special_tokens,
            )
        except Exception as error:  # templates are programs, and messages may be of any shape
            raise TaskError(f"task {task.key}: the chat template refused the messages: {error}") from None


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
