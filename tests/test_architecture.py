"""The house as ARCHITECTURE.md draws it: who may use whom, and where each section of the paper stands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.paths import cycles, import_graph

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/stepgrad"
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def rows_under(heading: str) -> list[list[str]]:
    """Cells of the table below a heading, without its first two lines."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def allowed() -> dict[str, set[str]]:
    uses = {}
    for packages, others in rows_under("Which package may use which"):
        for package in packages.split(", "):
            uses[package] = set(re.findall(r"(\w+)(?: \(`[\w.]+` only\))?(?:,|$)", others))
    return uses


def imports(source: Path) -> Iterator[str]:
    """Modules of stepgrad that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.startswith("stepgrad."))
        elif isinstance(node, ast.ImportFrom) and node.module == "stepgrad":
            yield from (f"stepgrad.{name.name}" for name in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stepgrad."):
            yield str(node.module)


def uses() -> dict[str, dict[str, list[str]]]:
    """Package -> package it imports -> the files that do."""
    graph: dict[str, dict[str, list[str]]] = {}
    for source in sorted(PACKAGE.rglob("*.py")):
        own = source.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for module in imports(source):
            other = module.split(".")[1]
            if other != own and own != "__init__":
                graph.setdefault(own, {}).setdefault(other, []).append(f"{source.relative_to(PACKAGE)}: {module}")
    return graph


def test_packages_use_only_what_the_table_allows() -> None:
    table = allowed()
    wrong = {
        f"{own} -> {other}": files
        for own, others in uses().items()
        for other, files in others.items()
        if other not in table[own]
    }
    assert wrong == {}


def test_the_table_allows_nothing_that_nobody_uses() -> None:
    graph = uses()
    unused = {own: others - set(graph.get(own, {})) for own, others in allowed().items()}
    assert {own: others for own, others in unused.items() if others} == {}


def test_every_package_is_in_the_table_and_uses_only_those_above_it() -> None:
    order = list(allowed())
    parts = {p.name.removesuffix(".py") for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert parts - {"__init__"} == set(order)
    for own, others in allowed().items():
        assert all(order.index(other) < order.index(own) for other in others), own


def test_reference_takes_only_the_protocols_from_the_fast_side() -> None:
    assert {m for files in uses()["reference"].values() for m in files if "metric.protocol" not in m} == set()


def test_kernels_know_nothing_of_torch() -> None:
    for source in PACKAGE.glob("engine/*.py"):
        assert not re.search(r"^\s*(?:from|import) torch", source.read_text(encoding="utf-8"), re.MULTILINE), source


def test_every_section_of_the_paper_is_one_short_file_with_a_fast_twin() -> None:
    named = set()
    for _, slow, fast in rows_under("The paper, section by section"):
        (file,) = re.findall(r"`([\w/.]+)`", slow)
        named.add(file)
        assert len((PACKAGE / file).read_text(encoding="utf-8").splitlines()) < 120, file
        assert all((PACKAGE / twin).is_file() for twin in re.findall(r"`([\w/.]+)`", fast))
    assert named == {f"reference/{p.name}" for p in PACKAGE.glob("reference/*.py") if p.name != "__init__.py"}


def test_files_named_on_the_page_exist() -> None:
    for path in re.findall(r"`([\w/]+/[\w.]*)`", PAGE):
        assert (PACKAGE / path).exists() or (ROOT / path).exists() or list(PACKAGE.rglob(path)), path


def test_no_file_imports_itself_by_way_of_others() -> None:
    assert cycles(import_graph(PACKAGE)) == []
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_files_with_an_underscore_are_used_in_their_folder_only() -> None:
    for module, others in import_graph(PACKAGE).items():
        for other in others:
            folder, _, file = other.rpartition(".")
            assert not file.startswith("_") or module.startswith(folder), f"{module} imports {other}"
