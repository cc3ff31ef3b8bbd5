"""Puts the page you can touch together from its parts: `python -m docs.touch.build` writes docs/touch.html.

The parts are served as they are while one works on them (open docs/touch/page.html); readers get one file that needs no other.
"""

from __future__ import annotations

import re
from pathlib import Path

PARTS = Path(__file__).parent
PAGE = PARTS.parent / "touch.html"


def built() -> str:
    """The page with its style and its scripts inside."""
    page = _text("page.html")
    page = re.sub(r'<link rel="stylesheet" href="(.*)">', lambda m: f"<style>\n{_text(m[1])}</style>", page)
    return re.sub(r'<script src="(.*)">', lambda m: f"<script>\n{_text(m[1])}", page)


def _text(name: str) -> str:
    return (PARTS / name).read_text(encoding="utf-8")


if __name__ == "__main__":
    PAGE.write_text(built(), encoding="utf-8", newline="\n")
    print(PAGE)
