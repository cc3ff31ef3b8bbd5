"""Makes the notebook of the tutorial from its page: `python docs/notebook.py` writes docs/tutorial.ipynb.

The page is the only source. Its Python blocks become cells, its installation line the first of them; blocks that show
output and the figures are left out, as the notebook makes its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
PAGE, NOTEBOOK = DOCS / "tutorial.md", DOCS / "tutorial.ipynb"
_BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def parts(page: str) -> Iterator[tuple[str, str]]:
    """(kind, text) in order; the kind is "prose", or what stands behind the fence: "python", "text", "" for a shell.

    >>> list(parts('Add:\\n\\n```python\\nprint(1 + 1)\\n```\\n\\n```text\\n2\\n```\\n'))
    [('prose', 'Add:'), ('python', 'print(1 + 1)'), ('text', '2')]
    """
    end = 0
    for block in _BLOCK.finditer(page):
        yield from _prose(page[end : block.start()])
        yield block[1], block[2].rstrip("\n")
        end = block.end()
    yield from _prose(page[end:])


def _prose(text: str) -> Iterator[tuple[str, str]]:
    if text.strip():
        yield "prose", text.strip()


def notebook(page: str) -> dict[str, Any]:
    """The notebook of a page, in the format of Jupyter (nbformat 4.5), without outputs."""
    cells: list[dict[str, Any]] = []
    for kind, text in parts(page):
        if kind.startswith("text"):
            continue
        source = _without_pictures(text) if kind == "prose" else re.sub(r"^pip ", "%pip ", text) if not kind else text
        if source:
            cells.append(_cell(kind, source, f"cell-{len(cells)}"))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _cell(kind: str, source: str, name: str) -> dict[str, Any]:
    lines = source.splitlines(keepends=True)
    if kind == "prose":
        return {"cell_type": "markdown", "id": name, "metadata": {}, "source": lines}
    return {"cell_type": "code", "execution_count": None, "id": name, "metadata": {}, "outputs": [], "source": lines}


def _without_pictures(text: str) -> str:
    """Prose without lines that begin with a picture: the badge of the notebook, and figures that its code draws."""
    kept = [line for line in text.splitlines() if not line.startswith(("![", "[!["))]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()


def main() -> None:
    made = notebook(PAGE.read_text(encoding="utf-8"))
    NOTEBOOK.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(NOTEBOOK)


if __name__ == "__main__":
    main()
