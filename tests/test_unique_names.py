"""One word, one meaning: a reader who searches for the name of a class finds one class, and perhaps its slow twin."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src/stepgrad"


def classes() -> dict[str, list[str]]:
    """Files by the name of the class they define."""
    files: dict[str, list[str]] = defaultdict(list)
    for source in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                files[node.name].append(source.relative_to(PACKAGE).as_posix())
    return files


def test_classes_share_their_names_with_no_other_class() -> None:
    shared = {
        name: files
        for name, files in classes().items()
        if len([file for file in files if not file.startswith("reference/")]) > 1
    }
    assert shared == {}
