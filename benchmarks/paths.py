"""How far a reader has to walk: what MAPLoss pulls in, the files and records on one batch's way, cycles, comments, lines.

    python -m benchmarks.paths                      # of this tree
    python -m benchmarks.paths --before COMMIT      # beside those of an earlier one

Files and records are counted while a small batch runs through `MAPLoss`, forward and backward, with kernels as Python.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_WALK = """
import json, sys
import torch
import stepgrad as sg
package = sg.__file__.rpartition("/")[0] + "/"
boxes = torch.tensor([[0.0, 0, 10, 10], [1, 0, 11, 10], [20, 0, 30, 10], [21, 0, 31, 10], [0, 20, 9, 30]])
target = {"boxes": boxes[[0, 2]], "labels": torch.tensor([0, 0])}
loss_fn = sg.MAPLoss(1, "coco")
scores = torch.tensor([[0.2], [0.1], [0.9], [0.5], [0.7]], requires_grad=True)
files, records = set(), set()
def watch(frame, event, given):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(package):
        files.add(code.co_filename.removeprefix(package))
    if event == "call" and code.co_filename == "<string>":  # what dataclasses and named tuples are made by
        made = frame.f_locals.get("_cls") or type(frame.f_locals.get("self"))
        if getattr(made, "__module__", "").startswith("stepgrad."):
            records.add(made.__name__)
sys.setprofile(watch)
loss_fn([scores], [boxes], [target]).backward()
sys.setprofile(None)
print(json.dumps([sorted(files), sorted(records)]))
"""


def modules_of(package: Path) -> dict[str, Path]:
    """Every module of the package, by its dotted name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Modules of the package that a file imports, wherever in it, also for type checkers only."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                full = f"{node.module}.{name.name}"
                yield from (module for module in ([full] if full in known else [node.module]) if module in known)


def import_graph(package: Path) -> dict[str, set[str]]:
    """Module -> modules it imports."""
    known = modules_of(package)
    return {module: set(imports_of(path, known)) - {module, package.name} for module, path in known.items()}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or not."""
    reach = {module: pulled_in(graph, module) for module in graph}
    groups = {frozenset(other for other in reach[m] if m in reach[other]) for m in graph}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def pulled_in(graph: dict[str, set[str]], module: str) -> set[str]:
    """A module and all it imports, however far below."""
    found, waiting = {module}, [module]
    while waiting:
        for other in graph[waiting.pop()] - found:
            found.add(other)
            waiting.append(other)
    return found


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def comments_per_100(paths: list[Path]) -> float:
    """Lines that are a comment, of 100 lines of code (without blank lines, comments and docstrings)."""
    comments = code = 0
    for path in paths:
        text = path.read_text(encoding="utf-8")
        own = {
            token.start[0]
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#")
        }
        inside = {
            n
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
            for n in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        comments += len(own)
        code += sum(bool(line.strip()) and n not in own | inside for n, line in enumerate(text.splitlines(), 1))
    return 100 * comments / max(code, 1)


def counts(tree: Path) -> dict[str, float]:
    """Everything that is counted, of one tree."""
    package = tree / "src/stepgrad"
    graph, known = import_graph(package), modules_of(package)
    home = next(name for name in ("losses.detection", "losses.map_loss") if f"stepgrad.{name}" in known)
    loss = pulled_in(graph, f"stepgrad.{home}")
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "NUMBA_DISABLE_JIT": "1"}
    walk = subprocess.run(
        [sys.executable, "-c", _WALK], env=environment, capture_output=True, encoding="utf-8", check=True
    )
    files, records = json.loads(walk.stdout)
    engine = next(folder for folder in (package / "engine", package / "kernels") if folder.exists())
    return {
        "lines of src": sum(map(lines, known.values())),
        "lines of tests": sum(map(lines, (tree / "tests").rglob("*.py"))),
        "rooms": sum((path / "__init__.py").exists() for path in package.iterdir()),
        "modules that MAPLoss pulls in": len(loss),
        "lines of these": sum(lines(known[module]) for module in loss),
        "files on a batch's way": len(files),
        "records on a batch's way": len(records),
        "cycles between files": len(cycles(graph)),
        "lines of the engine": sum(map(lines, engine.glob("*.py"))),
        "comment lines per 100 lines of code in the engine": round(comments_per_100(sorted(engine.glob("*.py"))), 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paths", description=__doc__)
    parser.add_argument("--before", help="an earlier commit")
    commit = parser.parse_args(arguments).before
    columns = {"now": counts(ROOT)}
    if commit:
        with tempfile.TemporaryDirectory() as folder:
            archive = subprocess.run(
                ["git", "archive", commit, "src", "tests"], cwd=ROOT, capture_output=True, check=True
            )
            subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
            columns = {commit: counts(Path(folder)), **columns}
    print("| |", " | ".join(columns), "|")
    print("|---|" + "---|" * len(columns))
    for name in columns["now"]:
        print(f"| {name} |", " | ".join(f"{column[name]:,}" for column in columns.values()), "|")


if __name__ == "__main__":
    main()
