"""Examples in docstrings are bare doctests; the site shows them as code."""

from __future__ import annotations

import re
from typing import Any

try:
    from griffe import Extension
except ImportError:  # the tests of the text need none of the site's packages
    Extension = object


_EXAMPLE = re.compile(
    r"^(?P<indent> *)>>> .*(?:\n(?! *\n).*)*(?:\n *\n(?P=indent)>>> .*(?:\n(?! *\n).*)*)*", re.MULTILINE
)


def fenced(docstring: str) -> str:
    r"""A docstring with every run of doctests between fences.

    >>> fenced("Doubles.\n\n>>> double(2)\n4\n\nSee also.")
    'Doubles.\n\n```pycon\n>>> double(2)\n4\n```\n\nSee also.'
    """
    return _EXAMPLE.sub(lambda run: f"{run['indent']}```pycon\n{run[0]}\n{run['indent']}```", docstring)


class FencedExamples(Extension):
    """What griffe calls for each object it reads."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
