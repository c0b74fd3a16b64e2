"""What must hold of the rooms: which way imports run, and what the controller never loads."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import reroll

SOURCE = Path(reroll.__file__).parent

LAYERS = [
    {"api"},
    {"dials"},
    {"plugins", "config", "workers"},
    {"models", "caches"},
    {"tasks", "traces", "serving"},
    {"rollouts", "training", "publication", "placement", "reporting", "checkpoints"},
    {"plan", "launch"},
    {"planning", "miles"},
    {"replay"},
    {"accounts"},
    {"session", "loop", "sources", "parts"},
    {"assembly", "generation"},
    {"runner"},
    {"cli"},
]
"""Lowest first. A room imports rooms below it, and itself."""

WORKER_MODULES = {
    "models/digest.py",
    "models/gguf.py",
    "models/load.py",
    "models/process_groups.py",
    "models/sharded.py",
    "training/attention.py",
    "training/batching.py",
    "training/checkpoint.py",
    "training/diagnostics.py",
    "training/logprobs.py",
    "training/objective.py",
    "training/policy.py",
    "training/ranks.py",
    "training/scoring.py",
    "training/sending.py",
    "training/sharding.py",
    "training/step.py",
    "training/tensors.py",
    "training/worker.py",
}
"""Modules that bring torch. Everything else must be importable in a controller; in `serving/local`, what `engine.py`
does not import runs in the worker."""


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "reroll" else None


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= (
                {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "reroll" else {node.module}
            )
    return found


def level(room: str) -> int:
    return next(number for number, rooms in enumerate(LAYERS) if room in rooms)


def violations(files: dict[str, set[str]]) -> list[str]:
    """Imports that run upwards or sideways; `files` maps a path below the package to its imports."""
    found = []
    for name, imported in files.items():
        room = name.split("/")[0].removesuffix(".py")
        for module in imported:
            other = room_of(module)
            if module == "reroll.api" or other is None or other == room:
                continue
            if other in {name for rooms in LAYERS for name in rooms} and level(other) < level(room):
                continue
            if {room, other} <= {"session", "loop"}:
                continue
            if {room, other} <= {"config", "plugins"} and room == "config":
                continue
            found.append(f"{name} imports {module}")
    return found


def test_imports_run_one_way():
    files = {path.relative_to(SOURCE).as_posix(): imports(path) for path in SOURCE.rglob("*.py")}
    for front in ("__init__.py", "__main__.py"):
        files.pop(front)
    assert violations(files) == []


def test_the_import_rule_can_fail():
    assert violations({"api/tasks.py": {"reroll.tasks.cursor"}}) == ["api/tasks.py imports reroll.tasks.cursor"]
    assert violations({"tasks/cursor.py": {"reroll.rollouts.seeds"}})
    assert violations({"training/step.py": {"reroll.rollouts.config"}})


def test_only_worker_modules_import_torch():
    bring = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if any(
            name.split(".")[0] in {"torch", "transformers", "numpy", "safetensors"} for name in top_level_imports(path)
        )
    }
    assert {name for name in bring if not name.startswith("serving/local/")} <= WORKER_MODULES
    assert "serving/local/engine.py" not in bring


def top_level_imports(path: Path) -> set[str]:
    """Imports that run when the module is imported."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize(
    "statement",
    [
        "from reroll.plugins import load_plugins; load_plugins().ask_all()",
        "import reroll.runner, reroll.assembly, reroll.loop",
        "from reroll.cli.app import build; build()",
    ],
)
def test_controller_modules_load_neither_torch_nor_transformers(statement):
    code = f"{statement}\nimport sys\nprint(sorted({{'torch', 'transformers', 'numpy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_whoever_asks_plugins_what_they_give_loads_no_database():
    code = (
        "from reroll.plugins import load_plugins; load_plugins().ask_all()\nimport sys\nprint('sqlite3' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_front_door_is_light_and_leads_to_scoring():
    code = (
        "import reroll, sys\n"
        "print([name for name in sys.modules if name.startswith('reroll.') and not name.startswith('reroll.api')])\n"
        "from reroll import BlockingScorer, ExactMatch, Regex, Scorer, ScoringConfig\n"
        "print({'BlockingScorer', 'ScoringConfig'} <= set(dir(reroll)), hasattr(reroll, 'NoScorer'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "True False"]


def test_the_loop_fits_on_a_page():
    tree = ast.parse((SOURCE / "loop.py").read_text())
    (loop,) = [node for node in tree.body if isinstance(node, ast.AsyncFunctionDef)]
    assert loop.end_lineno - loop.lineno + 1 <= 60
