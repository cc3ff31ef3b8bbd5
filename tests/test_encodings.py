"""Text files are UTF-8 whatever the locale: every call that opens one says so."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(
    path for name in ("src", "experiments", "benchmarks", "examples") for path in (ROOT / name).rglob("*.py")
)


def unnamed(tree: ast.AST) -> Iterator[int]:
    """Lines that read or write text in the encoding of the locale."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        named = {keyword.arg for keyword in node.keywords}
        constants = [a.value for a in (*node.args, *(k.value for k in node.keywords)) if isinstance(a, ast.Constant)]
        if "encoding" in named or "direct_url.json" in constants:  # importlib.metadata reads UTF-8 by itself
            continue
        if name in ("read_text", "write_text") or named & {"text", "universal_newlines"}:
            yield node.lineno
        is_binary = any(isinstance(value, str) and "b" in value and len(value) <= 3 for value in constants)
        if name == "open" and isinstance(node.func, ast.Name) and not is_binary:
            yield node.lineno


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_text_file_is_opened_with_its_encoding(path: Path) -> None:
    assert list(unnamed(ast.parse(path.read_text(encoding="utf-8")))) == []


def test_the_search_finds_what_names_none() -> None:
    bad = "p.read_text()\np.write_text('x')\nopen(p)\nopen(p, 'r')\nsubprocess.run(c, text=True)"
    good = "p.read_text(encoding='utf-8')\nopen(p, 'rb')\nopen(p, mode='ab')\nImage.open(p)\nos.open(p, 0)"
    assert list(unnamed(ast.parse(bad))) == [1, 2, 3, 4, 5]
    assert list(unnamed(ast.parse(good))) == []
