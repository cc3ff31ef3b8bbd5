"""Charts as SVG: axes with round numbers, lines, bars. Colours are classes, so that the theme decides.

Not matplotlib's: its SVG has fixed colours where a page has a light and a dark theme, no tooltips, and four times the bytes
for each of a page's hundreds of curves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np
from numpy.typing import NDArray

from stepgrad.report.numbers import printable

WIDTH, HEIGHT = 480, 250
PANEL = 150
LETTER = 6.4
"""Mean width of a letter at the size of chart labels; only used to space a legend."""
DIGIT = 7.0
"""Width of a digit at that size, at most; what an axis leaves room for."""
CURVE_POINTS = 200
Floats = NDArray[np.float64]
Range = tuple[float, float]


def element(parent: Element | None, tag: str, text: str = "", tip: str = "", /, **attributes: object) -> Element:
    """A child with these attributes: `class_` is class, `data_key` is data-key, numbers are shortened; `tip` is its tooltip."""
    plain = {name.rstrip("_").replace("_", "-"): _attribute(value) for name, value in attributes.items()}
    made = Element(tag, plain) if parent is None else SubElement(parent, tag, plain)
    if text:
        made.text = printable(text)
    if tip:
        element(made, "title", tip)
    return made


def _attribute(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else printable(str(value))


def markup(drawn: Element) -> str:
    """The element as text, for a page or a file."""
    return tostring(drawn, encoding="unicode")


def picture(title: str, width: int, height: int) -> Element:
    """An empty picture that screen readers call by its title."""
    size = f"0 0 {width} {height}"
    return element(None, "svg", xmlns="http://www.w3.org/2000/svg", viewBox=size, role="img", aria_label=title)


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


def percent_text(value: float) -> str:
    """A share on an axis of per cent.

    >>> percent_text(0.3), percent_text(0.025)
    ('30', '2.5')
    """
    return tick_text(float(f"{100 * value:.9g}"))


@dataclass(frozen=True)
class Chart:
    """A picture with two axes, which maps numbers to places in it."""

    svg: Element
    x_range: Range
    y_range: Range
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

    def line(self, kind: str, xs: Sequence[float], ys: Sequence[float], tip: str = "", **attributes: object) -> None:
        """Draw a line through the points, or a point where there is only one."""
        if len(xs) == 1:
            self.point(f"{kind} point", xs[0], ys[0], 3, tip, **attributes)
        else:
            element(self.svg, "path", "", tip, class_=kind, d=self.path(xs, ys), **attributes)

    def point(self, kind: str, x: float, y: float, r: float, tip: str = "", **attributes: object) -> None:
        """Draw a point."""
        element(self.svg, "circle", "", tip, class_=kind, cx=self.x(x), cy=self.y(y), r=r, **attributes)

    def text(self, words: str, kind: str, x: float, y: float, tip: str = "", **attributes: object) -> None:
        """Write words at a place of the picture."""
        element(self.svg, "text", words, tip, class_=kind, x=x, y=y, **attributes)


def large_chart(
    title: str,
    x_range: Range,
    y_range: Range,
    x_name: str = "",
    *,
    left: float = 46.0,
    top: float = 28.0,
    plot: float = HEIGHT - 68.0,
    y_text: Callable[[float], str] | None = tick_text,
) -> Chart:
    """Axes over the width of a card. Without a name, x has no numbers; without `y_text`, which writes them, y has none."""
    height = round(top + plot + 40)
    chart = Chart(picture(title, WIDTH, height), x_range, y_range, left, top, WIDTH - left - 14, plot)
    _draw_axes(chart, ticks(*x_range) if x_name else [], ticks(*y_range) if y_text else [], y_text or tick_text)
    if x_name:
        chart.text(x_name, "tick end", left + chart.width, height - 4)
    return chart


def panel(title: str, x_range: Range = (0, 1)) -> Chart:
    """The small chart of one class, with shares of one along y."""
    chart = Chart(picture(title, PANEL, PANEL), x_range, (0, 1), 26, 8, PANEL - 34, PANEL - 32)
    _draw_axes(chart, [x_range[0], sum(x_range) / 2, x_range[1]], [0, 0.5, 1], tick_text, 15)
    return chart


def say_empty(chart: Chart, objects: int) -> None:
    """Write in the middle of a chart why it has no line."""
    words = "none found" if objects else "no objects"
    chart.text(words, "legend middle", chart.left + chart.width / 2, chart.y(0.75) + 4)


def _draw_axes(
    chart: Chart,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    y_text: Callable[[float], str],
    gap: float = 16,
) -> None:
    """Thin lines across at the values of y, numbers along both axes."""
    right, bottom = chart.left + chart.width, chart.top + chart.height
    for value in y_ticks:
        draw_grid_line(chart, value, y_text(value))
    for value in x_ticks:
        at = chart.x(value)
        element(chart.svg, "line", class_="grid", x1=at, x2=at, y1=bottom, y2=bottom + 4)
        chart.text(tick_text(value), "tick middle", at, bottom + gap)
    element(chart.svg, "line", class_="axis", x1=chart.left, x2=right, y1=bottom, y2=bottom)


def draw_grid_line(chart: Chart, value: float, words: str) -> None:
    """A thin line across, with its number."""
    at = chart.y(value)
    element(chart.svg, "line", class_="grid", x1=chart.left, x2=chart.left + chart.width, y1=at, y2=at)
    chart.text(words, "tick end", chart.left - 6, at + 4)


def draw_legend(chart: Chart, names: Sequence[tuple[str, str]]) -> None:
    """Swatches with their names on one line above the chart: (name, class)."""
    left, y = chart.left, 14
    for name, kind in names:
        if "point" in kind:
            element(chart.svg, "circle", class_=kind, cx=left + 8, cy=y - 4, r=4)
        else:
            element(chart.svg, "line", class_=kind, x1=left, x2=left + 16, y1=y - 4, y2=y - 4)
        chart.text(name, "legend", left + 22, y)
        left += 22 + LETTER * len(name) + 18


def draw_bars(
    chart: Chart,
    counts: Sequence[int],
    kind: str,
    key: str,
    words: Sequence[str],
    inside: tuple[float, float] = (0.08, 0.84),
) -> None:
    """Bars side by side, as high as the square root of their counts, so that few next to many show.

    `inside` says where in its share of the axis a bar begins and how much of it it takes; `words` are the tooltips.
    """
    wide = chart.width / len(counts)
    for k, count in enumerate(counts):
        if count:
            x, y = chart.left + wide * (k + inside[0]), chart.y(count**0.5)
            height = chart.top + chart.height - y
            value = {"data_key": f"{key}/{k}", "data_value": repr(count), "class_": kind}
            element(chart.svg, "rect", "", words[k], x=x, y=y, width=inside[1] * wide, height=height, **value)


def draw_counts(chart: Chart, most: int) -> None:
    """Round counts along an axis of square roots."""
    for count in _round_counts(most):
        draw_grid_line(chart, count**0.5, f"{count}")


def _round_counts(most: int) -> list[int]:
    """Counts to mark on an axis of square roots: one digit, then zeros.

    >>> _round_counts(2345), _round_counts(3)
    ([100, 500, 2000], [3])
    """
    parts = [part for part in (most // 20, most // 4, most) if part]
    return sorted({int(str(part)[0]) * 10 ** (len(str(part)) - 1) for part in parts})


def thin(x: Floats, y: Floats, most: int = CURVE_POINTS) -> tuple[Floats, Floats]:
    """At most `most` of the points of a line whose x never falls: those a drawing of it cannot do without.

    First, points inside a vertical or horizontal run go: nothing changes. If that does not suffice, each of most / 4
    columns keeps its first, lowest, highest and last point, so that no peak is lost.

    >>> thin(np.arange(1000.0), np.zeros(1000))
    (array([  0., 999.]), array([0., 0.]))
    """
    corners = _corners_only(x, y)
    x, y = x[corners], y[corners]
    if len(x) > most:
        kept = _extremes(x, y, max(1, most // 4))
        x, y = x[kept], y[kept]
    return x, y


def _corners_only(x: Floats, y: Floats) -> NDArray[np.int64]:
    """Without points that lie between both neighbours on one axis-parallel line."""
    if len(x) < 3:
        return np.arange(len(x))
    upright = (x[:-2] == x[1:-1]) & (x[1:-1] == x[2:]) & (np.sign(y[1:-1] - y[:-2]) == np.sign(y[2:] - y[1:-1]))
    level = (y[:-2] == y[1:-1]) & (y[1:-1] == y[2:])
    return np.flatnonzero(np.concatenate([[True], ~(upright | level), [True]]))


def _extremes(x: Floats, y: Floats, columns: int) -> list[int]:
    """First, lowest, highest and last of each column of equal width."""
    span = x[-1] - x[0] or 1.0
    column = np.minimum((x - x[0]) / span * columns, columns - 1).astype(np.int64)
    parts = np.split(np.arange(len(x)), np.flatnonzero(np.diff(column)) + 1)
    return sorted({int(rows[k]) for rows in parts for k in (0, y[rows].argmin(), y[rows].argmax(), -1)})
