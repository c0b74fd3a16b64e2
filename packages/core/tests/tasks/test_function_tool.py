"""Tools from typed functions: what models are told of them, and what becomes of their arguments."""

import asyncio
import threading
from enum import Enum
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from reroll.api import PluginError, Tool, function_tool


def add(a: int, b: int = 2) -> int:
    """Adds two numbers.

    It never overflows.

    Args:
        a: the first one,
            which comes first.
        b (int): the second one.

    Returns:
        Their sum.
    """
    return a + b


def call(tool, **arguments):
    return asyncio.run(tool().call(arguments))


def test_signature_and_docstring_are_what_a_model_is_told():
    tool = function_tool(add)
    assert issubclass(tool, Tool)
    assert tool.name == "add"
    assert tool().schema() == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers.\n\nIt never overflows.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "description": "the first one, which comes first."},
                    "b": {"type": "integer", "description": "the second one.", "default": 2},
                },
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }
    assert function_tool(add, "sum.of-two").name == "sum.of-two"


def test_a_schema_that_somebody_changes_is_still_the_tools_own():
    tool = function_tool(add)()
    tool.schema()["function"]["name"] = "changed"
    assert tool.schema()["function"]["name"] == "add"


def test_results_are_text_and_others_are_given_as_json():
    def of(result):
        def give():
            """Gives it."""
            return result

        return call(function_tool(give))

    class Point(BaseModel):
        x: int

    assert [of(value) for value in ("as it is", 3, True, None, [1, "ü"], {"a": Point(x=1)})] == [
        "as it is", "3", "true", "null", '[1,"ü"]', '{"a":{"x":1}}',
    ]  # fmt: skip
    assert of(3j) == '"3j"'


def test_arguments_are_checked_before_the_call_and_defaults_are_the_functions():
    assert call(function_tool(add), a=1) == "3"
    assert call(function_tool(add), a="1", b=4) == "5", "models may write numbers as text"
    with pytest.raises(
        ValueError, match=r"^argument 'a': Field required; argument 'c': Extra inputs are not permitted$"
    ):
        call(function_tool(add), c=1)
    with pytest.raises(ValueError, match="argument 'a': Input should be a valid integer"):
        call(function_tool(add), a="one")


def test_text_stands_for_json_where_other_things_are_wanted():
    def count(items: list[int], note: str) -> str:
        """Counts."""
        return f"{len(items)} {note}"

    assert call(function_tool(count), items="[1, 2]", note="[3]") == "2 [3]"
    with pytest.raises(ValueError, match="argument 'items': Input should be a valid list"):
        call(function_tool(count), items="[1, 2", note="")


def test_annotations_may_say_more_and_any_parameter_name_will_do():
    class Colour(Enum):
        red = "r"

    def paint(
        json: Annotated[int, Field(ge=1, description="how often")],
        model_config: Literal["a", "b"] = "a",
        _private: Colour = Colour.red,
    ) -> str:
        """Paints."""
        return f"{json} {model_config} {_private}"

    tool = function_tool(paint)
    properties = tool().schema()["function"]["parameters"]["properties"]
    assert properties["json"] == {"type": "integer", "minimum": 1, "description": "how often"}
    assert list(properties) == ["json", "model_config", "_private"]
    assert call(tool, json=1, _private="r") == "1 a Colour.red"
    with pytest.raises(ValueError, match="argument 'json': Input should be greater than or equal to 1"):
        call(tool, json=0)


def test_a_plain_function_runs_in_a_thread_and_an_asynchronous_one_on_the_loop():
    def where() -> str:
        """Says it."""
        return threading.current_thread().name

    async def here() -> str:
        """Says it."""
        return threading.current_thread().name

    assert call(function_tool(where)) == "tool-where"
    assert call(function_tool(here)) == threading.current_thread().name


@pytest.mark.parametrize("error", [ValueError("wrong"), SystemExit("out"), StopIteration("done"), KeyError("key")])
def test_what_a_function_raises_reaches_the_caller_and_never_ends_the_loop(error):
    def fail() -> str:
        """Fails."""
        raise error

    with pytest.raises(Exception, match="wrong|SystemExit: out|StopIteration: done|key"):
        call(function_tool(fail))


def test_a_function_that_hangs_holds_up_nobody():
    release = threading.Event()

    def hang() -> str:
        """Hangs."""
        release.wait()
        return ""

    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(function_tool(hang)().call({}), 0.01)

    asyncio.run(main())
    release.set()


def undocumented(a: int):
    return a


def unannotated(a):
    """Has no annotation."""


def starred(*numbers: int):
    """Takes any number."""


def unknown(a: "Missing"):  # noqa: F821
    """Names a type that is nowhere."""


def unserialisable(a: threading.Event):
    """Wants something that JSON has not."""


def misdescribed(a: int):
    """Describes another.

    Args:
        b: not there.
    """


@pytest.mark.parametrize(
    ("function", "name", "message"),
    [
        (undocumented, None, r"function_tool\(undocumented\) has no docstring"),
        (unannotated, None, r"function_tool\(unannotated\): parameter 'a' has no annotation"),
        (starred, None, r"function_tool\(starred\): parameter 'numbers' cannot be given by name"),
        (unknown, None, r"function_tool\(unknown\): the annotation of parameter 'a', 'Missing', has no JSON schema"),
        (unserialisable, None, r"function_tool\(unserialisable\): the annotation of parameter 'a'"),
        (misdescribed, None, r"function_tool\(misdescribed\): its docstring describes 'b', which is no parameter"),
        (add, "two words", r"function_tool\(add\): 'two words' is no name that a model can call"),
        (lambda: None, None, "'<lambda>' is no name"),
        (getattr, None, r"function_tool\(getattr\) has no signature"),
        ("add", None, "function_tool takes a function, not 'add'"),
    ],
)
def test_a_declaration_that_says_too_little_names_function_and_parameter(function, name, message):
    with pytest.raises(PluginError, match=message):
        function_tool(function, name)
