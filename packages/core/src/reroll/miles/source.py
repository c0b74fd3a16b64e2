"""Reading what MILES takes: a TOML file with its sections, or a shell script that calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from reroll.api import Problem, RunFileError
from reroll.config.secrets import secret_problems
from reroll.config.toml import Table, apply_override, line_of, parse_override, read_toml
from reroll.dials.table import NATIVE, dials, find, foreign_sections
from reroll.miles.draft import Note
from reroll.miles.script import read_script

SCRIPTS = (".sh", ".bash")
GIVE = "give TOML with [miles], or the shell script that calls MILES with its flags"


@dataclass(frozen=True)
class Source:
    """What stands in a file of MILES.

    Attributes:
        path: the file.
        given: control with its section → value.
        line: of a control in the file, None where it is not known.
        notes: what could not be read.
        overridden: controls whose value `--set` has given.
    """

    path: Path
    given: dict[str, Any]
    line: Callable[[str], int | None]
    notes: list[Note] = field(default_factory=list)
    overridden: frozenset[str] = frozenset()

    def located(self, problem: Problem) -> Problem:
        """A fault of a control with its place; of a key that no control gave as it is."""
        if problem.key in self.overridden:
            return replace(problem, key=f"--set {problem.key}")
        if problem.key not in self.given:
            return problem
        return replace(problem, file=str(self.path), line=self.line(problem.key))


def read_source(path: Path, overrides: Sequence[str] = ()) -> Source:
    """The file's controls, those of `SECTION.KEY=VALUE` overrides in place of its own; RunFileError carries every
    fault that was found."""
    table, line, notes, problems = _read(path)
    overridden = set[str]()
    for override in overrides:
        try:
            keys, value = parse_override(_with_section(override))
            apply_override(table, keys, value)
            overridden.add(".".join(keys[:2]).partition("[")[0].replace("-", "_"))
        except RunFileError as error:
            problems += map(_in_their_names, error.problems)
    secrets = secret_problems(table, lambda key: None)
    problems += [replace(problem, file=str(path), line=line(problem.key)) for problem in secrets]
    if problems:
        raise RunFileError(problems)
    sections = _sections()
    if not table or not any(table.values()):
        raise RunFileError([Problem("MILES", "the file gives no control", GIVE, file=str(path))])
    problems = list(_misplaced(table))
    if problems:
        raise RunFileError([replace(problem, file=str(path), line=line(problem.key)) for problem in problems])
    given: dict[str, Any] = {}
    for section, keys in table.items():
        if isinstance(keys, dict) and section in sections:
            given |= {f"{section}.{key.replace('-', '_')}": value for key, value in keys.items()}
        else:
            known = ", ".join(f"[{name}]" for name in sorted(sections))
            notes.append(Note("unknown", section, f"is no section that is known here; those are {known}"))
    return Source(path, given, line, notes, frozenset(overridden))


def _sections() -> set[str]:
    return {line.name.partition(".")[0] for line in dials().values()}


def _with_section(override: str) -> str:
    """A name that has no section is of MILES itself."""
    first, dot, _ = override.partition("=")[0].strip().partition(".")
    if not dot or (first not in _sections() and find(first) is not None):
        return f"{NATIVE}.{override.lstrip()}"
    return override


def _in_their_names(problem: Problem) -> Problem:
    """A fault of `--set`, as it was given and with names that mean something here."""
    key = problem.key.replace(f"--set {NATIVE}.", "--set ", 1)
    if problem.message.startswith("is not of the form"):
        return Problem(key, "is not of the form NAME=VALUE or SECTION.NAME=VALUE", "e.g. --set lr=1e-6")
    return replace(problem, key=key, remedy=problem.remedy.replace(f"--set '{NATIVE}.", "--set '"))


def _misplaced(table: Table) -> Iterator[Problem]:
    """A file that is none of MILES: one of ours, or one without sections."""
    if not any(section in foreign_sections() for section in table):
        from reroll.plugins import installed_plugins

        ours = set(installed_plugins().names("config_sections")) - _sections()
        for section, keys in table.items():
            if isinstance(keys, dict) and section in ours:
                text = "is a section of a run file: the file is written for reroll already"
                yield Problem(section, text, "`reroll plan` takes it without --from-miles")
                return
    for name, value in table.items():
        if not isinstance(value, dict):
            line = find(name)
            section = line.name.partition(".")[0] if line else NATIVE
            yield Problem(name, "stands under no section", f"controls of MILES belong under [{section}]")


def _read(path: Path) -> tuple[Table, Callable[[str], int | None], list[Note], list[Problem]]:
    try:
        shell = path.suffix in SCRIPTS or path.open("rb").read(2) == b"#!"
    except OSError:
        shell = False  # told where it is read
    if not shell:
        table, text = read_toml(path)
        return table, lambda key: line_of(text, key), [], []
    try:
        script = read_script(path.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise RunFileError([Problem("script", f"cannot read {path}: {reason}", "give the path of a script")]) from None
    problems = [replace(problem, file=str(path)) for problem in script.problems]
    lines = {f"{NATIVE}.{control}": line for control, line in script.lines.items()}
    return {NATIVE: dict(script.given)}, lambda key: lines.get(key.partition("[")[0]), script.notes, problems
