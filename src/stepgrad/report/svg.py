"""A few elements of SVG: axes with round numbers, lines, points. Colours are classes, so that the theme decides.

Not matplotlib's: its SVG has fixed colours where a page has a light and a dark theme, no tooltips, and four times the bytes
for each of a page's hundreds of curves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, tostring

LETTER = 6.4
"""Mean width of a letter at the size of chart labels; only used to space a legend."""
DIGIT = 7.0
"""Width of a digit at that size, at most; what an axis leaves room for."""


def printable(text: str) -> str:
    """The text without characters that XML forbids or UTF-8 cannot hold.

    >>> printable("a\\x00b")
    'a�b'
    """
    forbidden = {*map(chr, range(32)), "\x7f", "\ufffe", "\uffff"} - set("\t\n\r")
    kept = "".join("\N{REPLACEMENT CHARACTER}" if c in forbidden else c for c in text)
    return kept.encode("utf-8", "replace").decode("utf-8")


def element(parent: Element | None, tag: str, text: str = "", **attributes: object) -> Element:
    """A child with these attributes: `class_` is class, `data_key` is data-key, numbers are shortened."""
    plain = {name.rstrip("_").replace("_", "-"): _attribute(value) for name, value in attributes.items()}
    made = Element(tag, plain) if parent is None else SubElement(parent, tag, plain)
    if text:
        made.text = printable(text)
    return made


def _attribute(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else printable(str(value))


def markup(drawn: Element) -> str:
    """The element as text, for a page or a file."""
    return tostring(drawn, encoding="unicode")


def ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Round numbers from low to high: multiples of 1, 2 or 5 times a power of ten.

    >>> ticks(0.0, 0.83), ticks(0, 5000)
    ([0.0, 0.2, 0.4, 0.6, 0.8], [0.0, 1000.0, 2000.0, 3000.0, 4000.0, 5000.0])
    """
    if not high > low:
        return [low]
    from matplotlib.ticker import MaxNLocator

    room = 1e-9 * (high - low)  # for a number that lies on the edge but for its last bit
    values = MaxNLocator(most, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [float(f"{value:.12g}") for value in values if low - room <= value <= high + room]


def tick_text(value: float) -> str:
    """Short: 40k for 40000.

    >>> tick_text(40000.0), tick_text(0.25), tick_text(0.0)
    ('40k', '0.25', '0')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):g}{letter}"
    return f"{value:g}"


@dataclass(frozen=True)
class Scale:
    """Maps numbers to places in the picture, along both axes."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    left: float
    top: float
    width: float
    height: float

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + self.width * ((value - low) / (high - low) if high > low else 0.5)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.top + self.height * (1 - ((value - low) / (high - low) if high > low else 0.5))

    def path(self, xs: Sequence[float], ys: Sequence[float]) -> str:
        """A line through the points, to a tenth of a unit."""
        return "M" + " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in zip(xs, ys, strict=True))


def percent_text(value: float) -> str:
    """A share on an axis of per cent.

    >>> percent_text(0.3), percent_text(0.025)
    ('30', '2.5')
    """
    return tick_text(float(f"{100 * value:.9g}"))


def draw_axes(
    svg: Element,
    scale: Scale,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    gap: float = 16,
    y_text: Callable[[float], str] = tick_text,
) -> None:
    """Thin lines across at the values of y, numbers along both axes."""
    right, bottom = scale.left + scale.width, scale.top + scale.height
    for value in y_ticks:
        at = scale.y(value)
        element(svg, "line", class_="grid", x1=scale.left, x2=right, y1=at, y2=at)
        element(svg, "text", y_text(value), class_="tick end", x=scale.left - 6, y=at + 4)
    for value in x_ticks:
        at = scale.x(value)
        element(svg, "line", class_="grid", x1=at, x2=at, y1=bottom, y2=bottom + 4)
        element(svg, "text", tick_text(value), class_="tick middle", x=at, y=bottom + gap)
    element(svg, "line", class_="axis", x1=scale.left, x2=right, y1=bottom, y2=bottom)


def draw_legend(svg: Element, names: Sequence[tuple[str, str]], left: float, y: float) -> None:
    """Swatches with their names on one line: (name, class)."""
    for name, kind in names:
        if "point" in kind:
            element(svg, "circle", class_=kind, cx=left + 8, cy=y - 4, r=4)
        else:
            element(svg, "line", class_=kind, x1=left, x2=left + 16, y1=y - 4, y2=y - 4)
        element(svg, "text", name, class_="legend", x=left + 22, y=y)
        left += 22 + LETTER * len(name) + 18


def draw_bars(
    svg: Element,
    scale: Scale,
    counts: Sequence[int],
    kind: str,
    key: str,
    words: Sequence[str],
    inside: tuple[float, float] = (0.08, 0.84),
) -> None:
    """Bars side by side, as high as the square root of their counts, so that few next to many show.

    `inside` says where in its share of the axis a bar begins and how much of it it takes; `words` are the tooltips.
    """
    wide = scale.width / len(counts)
    for k, count in enumerate(counts):
        if count:
            x, y = scale.left + wide * (k + inside[0]), scale.y(count**0.5)
            height = scale.top + scale.height - y
            value = {"data_key": f"{key}/{k}", "data_value": repr(count), "class_": kind}
            bar = element(svg, "rect", x=x, y=y, width=inside[1] * wide, height=height, **value)
            element(bar, "title", words[k])
