"""Data sets of the catalog: rows as they are published, made into rows of a task set once and for all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from reroll.api.component import Component, Config
from reroll.api.errors import TaskError
from reroll.api.tasks import Message


class DatasetConfig(Config):
    """Options that every data set has; `template` replaces its text of the prompts, `system` adds a message before."""

    template: str | None = None
    """Text of the prompts; by default the data set's own. Each of the data set's places, such as `{question}`, must
    stand in it; every other brace stands for itself."""
    system: str | None = None
    """A system message before the prompts that are made with the template."""


@dataclass(frozen=True)
class DatasetRow:
    """What a row of a source asks, and what an answer is judged by.

    Attributes:
        target: what the data set's verifier compares an answer with.
        values: place of the template → text.
        messages: the whole prompt, of a row that brings one; the template has no part in it then.
        metadata: anything else that is worth keeping; JSON values.
    """

    target: Any
    values: Mapping[str, str] = field(default_factory=dict)
    messages: list[Message] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Dataset(Component):
    """A named data set, which `reroll data prepare` makes ready to be trained on."""

    verifier: str
    """Name of the verifier that judges answers."""
    template: ClassVar[str]
    """Text of the prompts, with the places in it."""
    places: ClassVar[tuple[str, ...]]
    """Names of the template's places."""
    shapes: ClassVar[str] = ""
    """What rows of a source must look like, for `reroll data list`."""
    generated: ClassVar[bool] = False
    """Whether it makes its rows itself, and has no source."""
    Config = DatasetConfig

    @abstractmethod
    def row(self, raw: Mapping[str, Any]) -> DatasetRow | str:
        """One row of a source; or why the options leave it out, in words that say nothing of the row, since such rows
        are counted by them. TaskError for a row that cannot be read. Depends on nothing but the options and the row."""

    def generate(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Of a generated data set, every raw row with the split that it is of, one split after the other."""
        raise NotImplementedError


def text_field(raw: Mapping[str, Any], *names: str) -> str:
    """The text of the first of these fields that a row has; TaskError where it has none, or no text in it."""
    for name in names:
        value = raw.get(name)
        if value is None:
            continue
        if not isinstance(value, str) or not value.strip():
            raise TaskError(f"{name} = {value!r:.60} is no text")
        return value
    raise TaskError(f"has no {' and no '.join(map(repr, names))}; its fields: {', '.join(map(str, raw)) or 'none'}")


def given_messages(raw: Mapping[str, Any]) -> list[Message] | None:
    """The chat that a row brings as its prompt, in the field `messages`; None where it has no such field. TaskError for
    a chat that does not end in a question."""
    given = raw.get("messages")
    if given is None:
        return None
    if not isinstance(given, list) or not given or not all(isinstance(item, Mapping) for item in given):
        raise TaskError(f"messages = {given!r:.60} is no list of messages")
    messages = [{str(key): value for key, value in item.items() if value is not None} for item in given]
    if messages[-1].get("role") != "user":
        raise TaskError(f"messages ends with the role {messages[-1].get('role')!r}, and a prompt ends with 'user'")
    return messages
