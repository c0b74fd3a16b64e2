"""Which tools a task offers."""

import pytest

from reroll.api import Task, TaskError, Tool
from reroll.plugins import load_plugins
from reroll.tasks.calculator import Calculator
from reroll.tasks.toolbox import Toolbox


def task_of(*tools):
    return Task("q", {}, "set", 3, "p3", tools=list(tools))


def test_a_task_has_the_tools_that_its_schemas_name():
    calculator = Calculator()
    box = Toolbox({"calculator": calculator, "other": Calculator()})
    assert box.of(task_of()) == {}
    assert box.of(task_of(calculator.schema())) == {"calculator": calculator}
    assert box.of(task_of({"name": "calculator", "parameters": {}})) == {"calculator": calculator}


def test_an_unknown_tool_names_task_tool_and_what_there_is():
    schema = {"type": "function", "function": {"name": "search"}}
    with pytest.raises(TaskError, match=r"task set:p3 offers the tool 'search', .*there is: calculator"):
        Toolbox({"calculator": Calculator()}).of(task_of(schema))
    with pytest.raises(TaskError, match="there is: no tool at all"):
        Toolbox({}).of(task_of(schema))


@pytest.mark.parametrize("schema", [{}, {"function": {}}, {"function": "f"}, {"function": {"name": ""}}, {"name": 3}])
def test_a_schema_without_a_name_is_refused(schema):
    with pytest.raises(TaskError, match=r"task set:p3: tools\[0\] has no name"):
        Toolbox({}).of(task_of(schema))


def test_the_calculator_is_there_without_any_plugin():
    assert load_plugins().get("tools", "calculator").cls is Calculator
    assert issubclass(Calculator, Tool)
