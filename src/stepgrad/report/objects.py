"""The objects that a detector is judged on: how large they are, of which shape, and where in the image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from stepgrad.evaluation.errors_by_type import LEFT_OUT
from stepgrad.report.charts import HEIGHT, WIDTH, Numbers, chart_svg
from stepgrad.report.diagnosis import Findings
from stepgrad.report.image_data import continuous_corners
from stepgrad.report.score_charts import draw_counts
from stepgrad.report.svg import Scale, draw_axes, draw_bars, element, tick_text

CELLS = 16
"""Rows and columns of the map of places."""
FLATTEST = 3
"""Widths of 2**3 times the height, and more, are in the last bar of the shapes; the first bar has their mirror image."""
Size = tuple[int, int]


def describe_objects(findings: Findings, image_sizes: Sequence[Size | None]) -> dict[str, Any]:
    """Counts of the objects that are judged; `places` is None where no size of an image is known.

    Sizes double from bar to bar: `sizes["from"]` is the least of the first one, as a power of two. A size is the side of a
    square of the same area. Shapes, width by height, have two bars for each factor of two.
    """
    there = findings.mistakes.of_objects != LEFT_OUT
    corners = continuous_corners(findings.evidence, findings.evidence.objects.boxes[there])
    sides = corners[:, 2:] - corners[:, :2]
    widths, heights = sides[(sides > 0).all(axis=1)].T
    octaves = np.floor((np.log2(widths) + np.log2(heights)) / 2).astype(np.int64)
    shapes = np.floor(2 * (np.log2(widths) - np.log2(heights))).astype(np.int64)
    first = int(octaves.min()) if len(octaves) else 0
    return {
        "sizes": {"from": first, "counts": np.bincount(octaves - first).tolist()},
        "shapes": np.bincount(np.clip(shapes + 2 * FLATTEST, 0, 4 * FLATTEST - 1), minlength=4 * FLATTEST).tolist(),
        "places": _places(corners[:, :2] + sides / 2, findings.evidence.objects.images[there], image_sizes),
    }


def _places(
    centres: NDArray[np.float64], images: NDArray[np.int32], sizes: Sequence[Size | None]
) -> list[list[int]] | None:
    """How many centres lie in each cell of a grid over the image, from the top left."""
    known = np.array([size is not None for size in sizes], dtype=np.bool_)
    if not known.any():
        return None
    extents = np.array([size or (1, 1) for size in sizes], dtype=np.float64)
    inside = known[images]
    cells = np.clip((CELLS * centres[inside] / extents[images[inside]]).astype(np.int64), 0, CELLS - 1)
    counts = np.bincount(cells[:, 1] * CELLS + cells[:, 0], minlength=CELLS**2)
    return [[int(count) for count in row] for row in counts.reshape(CELLS, CELLS)]


def object_charts(objects: Numbers) -> list[tuple[str, Element]]:
    """Headings and charts; none where there are no objects."""
    if not sum(objects["shapes"]):
        return []
    charts = [("Size: side of a square of the same area, in pixels", _sizes_chart(objects["sizes"]))]
    charts.append(("Shape: width by height", _shapes_chart(objects["shapes"])))
    if objects["places"]:
        charts.append(("Place of the centre in the image", _places_chart(objects["places"])))
    return charts


def _sizes_chart(sizes: Numbers) -> Element:
    ends = [2.0 ** (sizes["from"] + k) for k in range(len(sizes["counts"]) + 1)]
    return _bar_chart("Objects by size", sizes["counts"], "/objects/sizes/counts", [tick_text(end) for end in ends])


def _shapes_chart(counts: Sequence[int]) -> Element:
    names = [f"1:{2**-k}" if k < 0 else f"{2**k}:1" for k in range(-FLATTEST, FLATTEST + 1)]
    ends = [name for name in names for name in (name, "")][:-1]
    return _bar_chart("Objects by width to height", counts, "/objects/shapes", ends)


def _bar_chart(title: str, counts: Sequence[int], key: str, ends: Sequence[str]) -> Element:
    """Bars between named ends; heights are square roots of counts."""
    most = max(counts)
    scale = Scale((0, len(counts)), (0, most**0.5), 52, 14, WIDTH - 52 - 14, HEIGHT - 14 - 30)
    svg = chart_svg(title, WIDTH, HEIGHT)
    draw_axes(svg, scale, [], [])
    draw_counts(svg, scale, most)
    words = [f"{count} objects" for count in counts]
    draw_bars(svg, scale, counts, "objects bar", key, words)
    for k, name in enumerate(ends):
        element(svg, "text", name, class_="tick middle", x=scale.x(k), y=scale.top + scale.height + 16)
    return svg


def _places_chart(places: Sequence[Sequence[int]]) -> Element:
    """A map of the image: the darker a cell, the more objects have their centre there."""
    side = WIDTH / 2 / CELLS
    svg = chart_svg("Objects by the place of their centre", WIDTH, HEIGHT)
    left, top = WIDTH / 4, (HEIGHT - side * CELLS) / 2
    most = max(max(row) for row in places) or 1
    element(svg, "rect", class_="frame", x=left, y=top, width=side * CELLS, height=side * CELLS)
    for y, row in enumerate(places):
        for x, count in enumerate(row):
            if count:
                value = {"data_key": f"/objects/places/{y}/{x}", "data_value": repr(count), "class_": "objects bar"}
                corner, shade = (left + side * x, top + side * y), (count / most) ** 0.5
                at = element(
                    svg, "rect", x=corner[0], y=corner[1], width=side, height=side, fill_opacity=shade, **value
                )
                element(at, "title", f"{count} objects")
    return svg
