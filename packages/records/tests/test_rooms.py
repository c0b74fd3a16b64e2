"""Which way imports run within the package, and what reading needs."""

import ast
import subprocess
import sys
from pathlib import Path

import reroll_records

SOURCE = Path(reroll_records.__file__).parent
LAYERS = [
    {"store"},
    {"aggregation"},
    {"api", "terminal"},
    {"writing", "summary", "selection", "inspection", "compaction", "export", "checking"},
    {"commands"},
    {"plugin"},
]
"""Lowest first. A room imports rooms below it, and itself."""


def room(module):
    return module.split(".")[1] if module.startswith("reroll_records.") else None


def level(name):
    return next(number for number, rooms in enumerate(LAYERS) if name in rooms)


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "reroll_records":
                yield from (f"reroll_records.{alias.name}" for alias in node.names)
            else:
                yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def violations(files):
    return [
        f"{name} imports {module}"
        for name, modules in files.items()
        for module in modules
        if (other := room(module)) and other != (own := name.split("/")[0].removesuffix(".py"))
        if level(other) >= level(own)
    ]


def test_imports_run_one_way():
    files = {path.relative_to(SOURCE).as_posix(): set(imported(path)) for path in SOURCE.rglob("*.py")}
    files.pop("__init__.py")
    assert violations(files) == []


def test_the_rule_can_fail():
    assert violations({"store/rows.py": {"reroll_records.aggregation.workers"}})
    assert violations({"writing/writer.py": {"reroll_records.selection.filter"}})


def test_reading_needs_the_standard_library_alone():
    """Every module of the rooms that read, in a process that finds nothing else but the package."""
    modules = [
        path.relative_to(SOURCE.parent).with_suffix("").as_posix().replace("/", ".")
        for name in ("store", "aggregation", "api.py", "__init__.py", "summary", "selection")
        for path in sorted([SOURCE / name] if name.endswith(".py") else (SOURCE / name).glob("*.py"))
        if path.name not in ("command.py", "tables.py", "filter.py", "config.py") or name in ("store", "aggregation")
    ]
    code = (
        "import importlib, sys\n"
        f"sys.path.insert(0, {str(SOURCE.parent)!r})\n"
        f"for name in {modules!r}: importlib.import_module(name.removesuffix('.__init__'))\n"
        "known = set(sys.stdlib_module_names) | {'reroll_records'}\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} - known - {'__main__'}))\n"
    )
    done = subprocess.run([sys.executable, "-S", "-E", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
