"""The objects that a detector is judged on: how large they are, of which shape, where in the image, and who is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from stepgrad.evaluation.metrics import metric_under
from stepgrad.metric.options import get_metric
from stepgrad.report.findings import Findings
from stepgrad.report.numbers import Numbers
from stepgrad.report.pictures import Size
from stepgrad.report.places import continuous_corners
from stepgrad.report.svg import HEIGHT, WIDTH, draw_bars, draw_counts, element, large_chart, picture, tick_text

SIZES = ("small", "medium", "large")
"""COCO's: below 32 x 32 pixels, below 96 x 96, and the rest."""
CELLS = 16
"""Rows and columns of the map of places."""
FLATTEST = 3
"""Widths of 2**3 times the height, and more, are in the last bar of the shapes; the first bar has their mirror image."""


def found_by_size(findings: Findings) -> list[dict[str, Any]]:
    """Objects and found ones by size, each class at its own cut, and the AP of each size as COCO counts it; nothing of segments
    and centres, which have no area."""
    if not _has_areas(findings):
        return []
    result, area, found = findings.result, findings.evidence.objects.area, findings.found()
    # The protocol with the only rules that know sizes.
    as_coco_matches = replace(result.protocol, duplicates="best_free", overlaps="double")
    rows = []
    for name in SIZES:
        metric = get_metric(f"ap@area={name}")
        low, high = metric.area or (0.0, np.inf)
        # Each object has one size here. To COCO's AP one of exactly 32 x 32 is both small and medium.
        of_size = findings.there & (area >= low) & ((area < high) | (name == SIZES[-1]))
        count, hit = int(np.count_nonzero(of_size)), int(np.count_nonzero(of_size & found))
        ap = metric_under(findings.evidence, as_coco_matches, result.classes, metric).value if count else None
        recall = hit / count if count else None
        rows.append({"name": name, "objects": count, "found": hit, "recall": recall, "ap": ap})
    return rows


def _has_areas(findings: Findings) -> bool:
    """Whether what is detected has an area in pixels."""
    overlap = findings.evidence.overlap
    return overlap.drawn != "bar" and overlap.nearness == "overlap"


def describe_objects(findings: Findings, image_sizes: Sequence[Size | None]) -> dict[str, Any]:
    """Counts of the objects that are judged; `places` is None where no size of an image is known, and so is `shapes` of segments.

    Sizes double from bar to bar: `sizes["from"]` is the least of the first one, as a power of two. A size is the side of a
    square of the same area, as annotated where that is not the box's; of a segment its length. Shapes, width by height, have
    two bars for each factor of two.
    """
    evidence, there = findings.evidence, findings.there
    corners = continuous_corners(evidence, evidence.objects.boxes[there])
    sides = corners[:, 2:] - corners[:, :2]
    widths, heights = np.log2(sides[(sides > 0).all(axis=1)]).T
    flat = evidence.overlap.drawn == "bar"
    sizes = widths if flat else (widths + heights) / 2
    if evidence.has_shapes:
        area = evidence.objects.area[there]
        sizes = np.log2(area[area > 0]) / 2
    octaves = np.floor(sizes).astype(np.int64)
    shapes = np.clip(np.floor(2 * (widths - heights)).astype(np.int64) + 2 * FLATTEST, 0, 4 * FLATTEST - 1)
    first = int(octaves.min()) if len(octaves) else 0
    return {
        "sizes": {"from": first, "counts": np.bincount(octaves - first).tolist()},
        "shapes": None if flat else np.bincount(shapes, minlength=4 * FLATTEST).tolist(),
        "places": None if flat else _places(corners[:, :2] + sides / 2, evidence.objects.images[there], image_sizes),
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
    sizes, shapes = objects["sizes"], objects["shapes"]
    if not sizes["counts"]:
        return []
    octaves = [tick_text(2.0 ** (sizes["from"] + k)) for k in range(len(sizes["counts"]) + 1)]
    if shapes is None:
        return [("Length", _bar_chart("Objects by length", sizes["counts"], "/objects/sizes/counts", octaves))]
    ratios = [f"1:{2**-k}" if k < 0 else f"{2**k}:1" for k in range(-FLATTEST, FLATTEST + 1)]
    by_size = _bar_chart("Objects by size", sizes["counts"], "/objects/sizes/counts", octaves)
    by_shape = _bar_chart("Objects by width to height", shapes, "/objects/shapes", ratios)
    charts = [
        ("Size: side of a square of the same area, in pixels", by_size),
        ("Shape: width by height", by_shape),
    ]
    if objects["places"]:
        charts.append(("Place of the centre in the image", _places_chart(objects["places"])))
    return charts


def _bar_chart(title: str, counts: Sequence[int], key: str, ends: Sequence[str]) -> Element:
    """Bars between names at equal distances; heights are square roots of counts."""
    most = max(counts)
    chart = large_chart(title, (0, len(ends) - 1), (0, most**0.5), left=52, top=14, plot=HEIGHT - 54, y_text=None)
    draw_counts(chart, most)
    draw_bars(chart, counts, "objects bar", key, [f"{count} objects" for count in counts])
    for k, name in enumerate(ends):
        chart.text(name, "tick middle", chart.x(k), chart.top + chart.height + 16)
    return chart.svg


def _places_chart(places: Sequence[Sequence[int]]) -> Element:
    """A map of the image: the darker a cell, the more objects have their centre there."""
    side = WIDTH / 2 / CELLS
    svg = picture("Objects by the place of their centre", WIDTH, HEIGHT)
    left, top = WIDTH / 4, (HEIGHT - side * CELLS) / 2
    most = max(max(row) for row in places) or 1
    element(svg, "rect", class_="frame", x=left, y=top, width=side * CELLS, height=side * CELLS)
    for y, row in enumerate(places):
        for x, count in enumerate(row):
            if count:
                value = {"data_key": f"/objects/places/{y}/{x}", "data_value": repr(count), "class_": "objects bar"}
                place = {"x": left + side * x, "y": top + side * y, "width": side, "height": side}
                element(svg, "rect", "", f"{count} objects", **place, fill_opacity=(count / most) ** 0.5, **value)
    return svg
