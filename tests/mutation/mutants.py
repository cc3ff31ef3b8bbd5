"""Small faults, one at a time: a comparison off by its equality, a sign, a constant off by one, a statement left out."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
    **{ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
    **{ast.LShift: ast.RShift, ast.RShift: ast.LShift},
}
NAMES = {
    **{"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "amin": "amax", "amax": "amin"},
    **{"argmin": "argmax", "argmax": "argmin", "any": "all", "all": "any"},
}
LIMITS = ("min", "max", "minimum", "maximum", "clip", "clamp", "clamp_", "clamp_min", "clamp_max")
"""Calls that bound their first argument; without them it goes through."""


@dataclass(frozen=True)
class Mutant:
    """One fault in one file."""

    file: str
    """Below src/stepgrad, such as engine/nms.py."""
    node: int
    """Which node of the syntax tree, in the order of `ast.walk`."""
    variant: int
    line: int
    change: str
    lines: tuple[int, ...]
    """Those that run when the fault does; none if it runs on import, for then everything in the file may be wrong."""

    @property
    def name(self) -> str:
        return f"{self.file}:{self.node}:{self.variant}"


def mutants_of(file: str, source: str) -> list[Mutant]:
    """Every fault we know for one file."""
    tree = ast.parse(source)
    silent = _silent(tree)
    lines = _lines_run(tree)
    found = []
    for number, node in enumerate(ast.walk(tree)):
        if id(node) in silent:
            continue
        for variant, other in enumerate(_variants(node)):
            was, now = (" ".join(ast.unparse(n).split())[:80] for n in (node, other))
            place = getattr(node, "lineno", 0)
            found.append(Mutant(file, number, variant, place, f"{was}  ->  {now}", lines.get(id(node), ())))
    return found


def _lines_run(tree: ast.AST) -> dict[int, tuple[int, ...]]:
    """By the id of a node inside a function: the lines of its statement, of a compound statement the first ones only."""
    found: dict[int, tuple[int, ...]] = {}
    inside = {
        id(inner)
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for part in function.body
        for inner in ast.walk(part)
    }
    for node in ast.walk(tree):  # a statement comes before those in its body, whose lines replace its own
        if isinstance(node, ast.stmt) and id(node) in inside:
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            lines = tuple(range(node.lineno, max(last, node.lineno) + 1))
            found.update({id(inner): lines for inner in ast.walk(node)})
    return found


def mutated(mutant: Mutant, source: str) -> str:
    """The file with its fault."""
    tree = ast.parse(source)
    wanted = next(node for number, node in enumerate(ast.walk(tree)) if number == mutant.node)
    other = list(_variants(wanted))[mutant.variant]
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if value is wanted:
                setattr(node, name, other)
            elif isinstance(value, list) and any(item is wanted for item in value):
                setattr(node, name, [other if item is wanted else item for item in value])
    return ast.unparse(ast.fix_missing_locations(tree))


def _silent(tree: ast.AST) -> set[int]:
    """Nodes that do not compute: annotations, types, decorators, the texts of errors, and what a type checker reads."""
    parts: list[ast.AST] = []
    for node in ast.walk(tree):
        only_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if only_types or isinstance(node, (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom)):
            parts.append(node)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            parts.extend(node.decorator_list)
        if isinstance(node, (ast.FunctionDef, ast.AnnAssign, ast.arg)):
            annotation = node.returns if isinstance(node, ast.FunctionDef) else node.annotation
            parts.extend([annotation] if annotation is not None else [])
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("TypeVar", "Literal", "logger.warning"):
            parts.append(node)
    return {id(inner) for part in parts for inner in ast.walk(part)}


def _variants(node: ast.AST) -> Iterator[ast.AST]:
    """What a node could have been by mistake."""
    if isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            yield _with(node, ops=[*node.ops[:i], COMPARISONS[type(operator)](), *node.ops[i + 1 :]])
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in OPERATORS:
        yield _with(node, op=OPERATORS[type(node.op)]())
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield copy.deepcopy(node.operand)
    elif isinstance(node, ast.BoolOp):
        yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.Constant):
        yield from _constants(node)
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield _with(node, test=ast.UnaryOp(ast.Not(), copy.deepcopy(node.test)))
    if _can_be_left_out(node):
        yield ast.Pass()


def _constants(node: ast.Constant) -> Iterator[ast.AST]:
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, (int, float)):
        yield ast.Constant(node.value + 1)
        yield ast.Constant(node.value - 1)


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if called in NAMES:
        function = copy.deepcopy(node.func)
        setattr(function, "attr" if isinstance(function, ast.Attribute) else "id", NAMES[called])
        yield _with(node, func=function)
    is_method = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) not in ("np", "torch")
    if called in LIMITS and is_method and called not in ("min", "max"):
        yield copy.deepcopy(node.func.value)  # type: ignore[attr-defined]
    elif called in LIMITS and not is_method and len(node.args) >= 2:
        yield copy.deepcopy(node.args[0])


def _can_be_left_out(node: ast.AST) -> bool:
    """Statements without which the rest still runs; a name that is never set would only fail at once."""
    if isinstance(node, (ast.AugAssign, ast.Continue, ast.Break)):
        return True
    if isinstance(node, ast.Assign):
        return all(isinstance(target, (ast.Subscript, ast.Attribute)) for target in node.targets)
    return isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)


def _with(node: ast.AST, **changes: object) -> ast.AST:
    other = copy.deepcopy(node)
    for name, value in changes.items():
        setattr(other, name, value)
    return other


def all_mutants(package: Path, folders: tuple[str, ...]) -> list[Mutant]:
    """Those of every file of some folders below `package`."""
    files = sorted(file for folder in folders for file in (package / folder).rglob("*.py"))
    return [m for file in files for m in mutants_of(str(file.relative_to(package)), file.read_text())]
