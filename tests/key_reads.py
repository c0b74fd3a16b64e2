"""Where the code acts on what a run file says: reads of the fields of configuration classes, found by mypy's types.

A name alone would not tell: many classes have a `seed`. mypy knows what stands before the dot; where that is `Any`, as
the options of a component are, the class around it tells.
"""

import ast
import re
from collections import defaultdict
from pathlib import Path

from mypy import build
from mypy.main import process_options
from mypy.server.subexpr import get_subexpressions
from mypy.types import AnyType, Instance, TypeVarLikeType, UnionType, get_proper_type

ROOT = Path(__file__).parents[1]
CHECKS = re.compile(r"_?problems|validate_files|pinned|_?\w+_problems|_from_toml")
"""Functions that judge a run file, or write it."""
VALIDATORS = {"model_validator", "field_validator"}
SHOWS = ("reroll.planning.report", "reroll.planning.settings", "reroll.planning.memory")
SHOWS += ("reroll.cli.plan", "reroll.cli.validate", "reroll.config.")
"""Modules that show settings, check them, or carry them without knowing them."""
CONFIG = """[mypy]
mypy_path = {paths}
namespace_packages = true
explicit_package_bases = true
ignore_missing_imports = true
follow_imports = silent
[mypy-torch.*,transformers.*,numpy.*,pydantic.*,pydantic_core.*,pluggy.*,safetensors.*,ray.*,aiohttp.*,pyarrow.*]
follow_imports = skip
[mypy-sympy.*,mpmath.*,harbor.*,emoji.*,langdetect.*,tokenizers.*,jinja2.*,typer.*,rich.*,click.*,duckdb.*,datasets.*]
follow_imports = skip
"""


class Reads(ast.NodeVisitor):
    """Reads of members in one module: (class, member) → the places that read it.

    Attributes:
        kinds: (first line and column, last line and column) → type of the expression there.
        schema: full name of a class → its fields.
        sections: name of a section → full name of its class.
        options: full name of a component's class → those of the classes of its options.
    """

    def __init__(self, module, kinds, schema, sections, options, found):
        self.module, self.kinds, self.found = module, kinds, found
        self.schema, self.sections, self.options = schema, sections, options
        self.classes, self.functions = [], []
        self.other_names = set()

    def visit_ClassDef(self, node):
        self.classes.append(node.name)
        self.generic_visit(node)
        self.classes.pop()

    def visit_FunctionDef(self, node):
        called = [item.func if isinstance(item, ast.Call) else item for item in node.decorator_list]
        if CHECKS.fullmatch(node.name) or VALIDATORS & {getattr(item, "id", "") for item in called}:
            return
        self.functions.append(node)
        self.generic_visit(node)
        self.functions.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Assign(self, node):
        self.generic_visit(node)
        if ast.unparse(node.value) == "self.config" and isinstance(node.targets[0], ast.Name):
            self.other_names.add((self.functions[-1], node.targets[0].id))

    def visit_Attribute(self, node):
        self.generic_visit(node)
        for name in self._classes_of(node.value):
            self._note(name, node.attr)

    def visit_Call(self, node):
        self.generic_visit(node)
        if getattr(node.func, "id", "") == "getattr":
            names = [node.args[1]] if isinstance(node.args[1], ast.Constant) else self.functions[-1:]
            texts = {item.value for part in names for item in ast.walk(part) if isinstance(item, ast.Constant)}
            for name in self._classes_of(node.args[0]):
                for text in texts & set(self.schema[name]):
                    self._note(name, text)
        elif getattr(node.func, "attr", "") == "value" and node.args and isinstance(node.args[0], ast.Constant):
            section, _, key = str(node.args[0].value).partition(".")
            if section in self.sections:
                self._note(self.sections[section], key.partition(".")[0])

    def _classes_of(self, node):
        """Configuration classes that the expression may be an object of."""
        place = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
        pending, names = [self.kinds.get(place)], set()
        while pending:
            kind = get_proper_type(pending.pop())
            if isinstance(kind, UnionType):
                pending += kind.items
            elif isinstance(kind, TypeVarLikeType):
                pending.append(kind.upper_bound)
            elif isinstance(kind, Instance):
                if kind.type.fullname in self.schema:
                    names.add(kind.type.fullname)
            elif kind is None or isinstance(kind, AnyType):
                names |= self._options_around(node)
        return names

    def _options_around(self, node):
        """Of `self.config`, or of a `config` that a method of a component's class is given: the component's options."""
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        known = name == "config" or (self.functions and (self.functions[-1], name) in self.other_names)
        return self.options.get(self._around(), set()) if known else set()

    def _around(self):
        return ".".join([self.module, *self.classes]) if self.classes else ""

    def _note(self, cls, member):
        # What a class of the schema says about itself counts once somebody asks it.
        inside = self._around() in self.schema and bool(self.functions)
        self.found[cls, member].add((self._around(), self.functions[0].name) if inside else None)


def analysed(paths, folder, beside=()):
    """By module, its tree and the types of its expressions, of everything in the folders; `beside` has what they
    import."""
    config = folder / "mypy.ini"
    config.write_text(CONFIG.format(paths=":".join(map(str, [*paths, *beside]))))
    sources, options = process_options(["--config-file", str(config), "--no-incremental", *map(str, paths)])
    options.export_types = options.preserve_asts = True
    result = build.build(sources, options)
    found = {}
    for source in sources:
        kinds = {}
        for expression in get_subexpressions(result.graph[source.module].tree):
            if (kind := result.types.get(expression)) is not None:
                place = (expression.line, expression.column, expression.end_line, expression.end_column)
                kinds[place] = kind
        found[source.module] = ast.parse(Path(source.path).read_text("utf-8")), kinds
    return found


def reads(modules, schema, sections, options):
    """(class, member) → places that read it, of every module that acts; see `Reads`."""
    found = defaultdict(set)
    for module, (tree, kinds) in modules.items():
        if not module.startswith(SHOWS):
            Reads(module, kinds, schema, sections, options, found).visit(tree)
    return found


def dead(schema, relatives, found):
    """Fields that nothing acts on: `Class.field`.

    Args:
        relatives: full name of a class → those of its bases and of what derives from it, which share its members.
        found: from `reads`.
    """

    def acts(cls, member, seen):
        """Whether somebody reads it who is no class of the schema, or such a class in a method that somebody asks."""
        places = {place for name in relatives[cls] for place in found.get((name, member), ())}
        if None in places:
            return True
        return any(acts(*place, seen | {place}) for place in places - seen)

    return sorted(
        f"{cls}.{field}" for cls, fields in schema.items() for field in fields if not acts(cls, field, frozenset())
    )
