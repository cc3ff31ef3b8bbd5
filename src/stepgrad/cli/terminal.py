"""The console of the commands: control characters and markup in names from data are shown, not obeyed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment

from stepgrad.names import visible


def safe_text(value: object) -> str:
    r"""A name, a path or a message inside text with markup: brackets mean nothing, control characters are seen.

    >>> print(safe_text("[red]dog\x1b[31m\n"))
    \[red]dog\x1b[31m\n
    """
    return escape(visible(value))


class Terminal(Console):
    """A console on which control characters are seen rather than obeyed, in whatever is printed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, **options)  # a class may be called :dog:

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The pieces of what is printed: styles and lines are rich's own, the text in them is not."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(_visible_lines(segment.text), segment.style)


def _visible_lines(text: str) -> str:
    return "\n".join(visible(line) for line in text.split("\n"))
