"""A tool from a Python function: its signature and its docstring say what a model is told."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import inspect
import json
import re
import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic_core import to_json

from reroll.api.errors import PluginError
from reroll.api.tasks import Tool

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
SECTION = re.compile(r"^(Args|Arguments|Returns|Raises|Yields|Examples?|Notes?):\s*$", re.MULTILINE)
PARAMETER = re.compile(r"^(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


def function_tool(function: Callable[..., Any], name: str | None = None) -> type[Tool]:
    """The tool that calls `function`, for `reroll_tools`.

    Its name is the function's unless another is given, its description the docstring up to `Args:`, whose entries
    describe the parameters. Arguments are checked against the annotations before each call: what does not fit is a
    ValueError. A text stands for other JSON where the annotation wants that, since some models write nothing but text.
    A plain function runs in a thread of its own, which nothing can stop once it runs: one that may hang should be
    asynchronous. A result that is no text is given as JSON.

    Raises:
        PluginError: the declaration says too little; names function and parameter.
    """
    if not inspect.isroutine(function):
        raise PluginError(f"function_tool takes a function, not {function!r:.100}")
    called = name or function.__name__
    if not NAME.fullmatch(called):
        raise PluginError(
            f"function_tool({function.__qualname__}): {called!r} is no name that a model can call: give `name` of up "
            "to 64 letters, digits, '_', '-' and '.'"
        )
    description, documented = _docstring(function)
    arguments = _arguments(function, documented)
    parameters = arguments.model_json_schema()
    parameters.pop("title", None)
    for described in parameters.get("properties", {}).values():
        described.pop("title", None)
    schema = {"name": called, "description": description, "parameters": {"properties": {}, **parameters}}
    members = {
        "__doc__": function.__doc__,
        "__module__": function.__module__,
        "name": called,
        "function": staticmethod(function),
        "arguments": arguments,
        "declared": {"type": "function", "function": schema},
    }
    return type(called, (FunctionTool,), members)


class FunctionTool(Tool):
    """Base of what `function_tool` makes."""

    function: ClassVar[Callable[..., Any]]
    arguments: ClassVar[type[BaseModel]]
    declared: ClassVar[dict[str, Any]]

    def schema(self) -> dict[str, Any]:
        return copy.deepcopy(self.declared)

    async def call(self, arguments: Mapping[str, Any]) -> str:
        values = self._checked(arguments)
        function = type(self).function
        if inspect.iscoroutinefunction(function):
            return _text(await function(**values))
        return _text(await _in_thread(function, values))

    def _checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What the function is called with; defaults stay the function's own."""
        try:
            found = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            faulty = {fault["loc"][0] for fault in error.errors(include_url=False) if fault["loc"]}
            read = {key: _read(value) if key in faulty else value for key, value in arguments.items()}
            try:
                found = self.arguments.model_validate(read)
            except ValidationError:
                raise ValueError(_faults(error)) from None
        fields = self.arguments.model_fields
        return {str(fields[key].alias): getattr(found, key) for key in fields if key in found.model_fields_set}


def _arguments(function: Callable[..., Any], documented: dict[str, str]) -> type[BaseModel]:
    """A model of the parameters. They are its aliases, so that none collides with what a model has itself."""
    where = f"function_tool({function.__qualname__})"
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:  # of some functions that are written in C
        raise PluginError(f"{where} has no signature: {error}") from None
    for name in documented:
        if name not in parameters:
            raise PluginError(f"{where}: its docstring describes {name!r}, which is no parameter")
    fields: dict[str, Any] = {}
    for number, (name, parameter) in enumerate(parameters.items()):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise PluginError(f"{where}: parameter {name!r} cannot be given by name, as models give arguments")
        if parameter.annotation is parameter.empty:
            raise PluginError(f"{where}: parameter {name!r} has no annotation, which says what a model may give")
        try:
            stand_in = SimpleNamespace(__annotations__={name: parameter.annotation})
            kind = get_type_hints(stand_in, getattr(function, "__globals__", {}), include_extras=True)[name]
            TypeAdapter(kind).json_schema()
        except Exception as error:  # whatever an annotation raises when it is evaluated
            raise PluginError(
                f"{where}: the annotation of parameter {name!r}, {parameter.annotation!r}, has no JSON schema: {error}"
            ) from None
        options: dict[str, Any] = {"alias": name}
        if name in documented:
            options["description"] = documented[name]
        if parameter.default is not parameter.empty:
            options["default"] = parameter.default
        fields[f"argument_{number}"] = (kind, Field(**options))
    made: type[BaseModel] = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
    return made


def _docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description, and what is said of each parameter."""
    text = inspect.getdoc(function) or ""
    parts = SECTION.split(text)
    description = parts[0].strip()
    if not description:
        raise PluginError(
            f"function_tool({function.__qualname__}) has no docstring, which tells the model what it is for"
        )
    found: dict[str, str] = {}
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        if title in ("Args", "Arguments"):
            found = _entries(body)
    return description, found


def _entries(body: str) -> dict[str, str]:
    """`name: text` entries; lines that are indented further go on with the one before."""
    found: dict[str, str] = {}
    lines = [line for line in body.splitlines() if line.strip()]
    outer = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    name = None
    for line in lines:
        entry = PARAMETER.match(line.strip()) if len(line) - len(line.lstrip()) == outer else None
        if entry:
            name = entry[1]
            found[name] = entry[2]
        elif name is not None:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def _read(value: Any) -> Any:
    """The JSON that a text holds, if it holds any."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _faults(error: ValidationError) -> str:
    faults = error.errors(include_url=False)
    return "; ".join(f"argument {'.'.join(map(str, fault['loc']))!r}: {fault['msg']}" for fault in faults)


def _text(result: Any) -> str:
    return result if isinstance(result, str) else to_json(result, fallback=str).decode()


async def _in_thread(function: Callable[..., Any], values: dict[str, Any]) -> Any:
    """What the function returns. Its thread keeps no run from ending, and no pool from other work, should it hang."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(result: Any, error: Exception | None) -> None:
        if future.done():
            return  # nobody waits any more
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def work() -> None:
        result, failure = None, None
        try:
            result = context.run(function, **values)
        except Exception as error:
            failure = error
        except BaseException as error:  # sys.exit() in a tool is to end the call, not the run
            failure = RuntimeError(f"{type(error).__name__}: {error}")
        if isinstance(failure, StopIteration):  # which no future can carry
            failure = RuntimeError(f"StopIteration: {failure}")
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, result, failure)

    threading.Thread(target=work, name=f"tool-{function.__name__}", daemon=True).start()
    return await future
