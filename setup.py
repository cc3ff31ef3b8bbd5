"""All settings are in pyproject.toml, but one: a package index shows the README without the files around it, so that its links
and its picture have to lead to the repository."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import setup

FOLDER = Path(__file__).parent


def with_full_links(page: str, repository: str) -> str:
    """A Markdown page whose relative links and pictures lead to the newest state of `repository`, an address on GitHub."""
    files = repository.replace("//github.com/", "//raw.githubusercontent.com/")
    page = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\g<1>{files}/HEAD/", page)
    return re.sub(r"((?<!!)\[(?:[^][]|!\[[^]]*\]\([^)]*\))*\]\()(?!https?:|#)", rf"\g<1>{repository}/blob/HEAD/", page)


if __name__ == "__main__":
    settings = (FOLDER / "pyproject.toml").read_text(encoding="utf-8")
    repository = re.search(r'^Homepage = "(.+)"', settings, re.MULTILINE)[1]
    setup(
        long_description=with_full_links((FOLDER / "README.md").read_text(encoding="utf-8"), repository),
        long_description_content_type="text/markdown",
    )
