"""The table of confused classes, as the template lays it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepgrad.report.charts import Numbers
from stepgrad.report.diagnosis import confused_classes

MOST_CLASSES = 20
"""Rows that a reader can take in; report.json has all."""
MOST_PAIRS = 5


def confusion_table(numbers: Numbers) -> dict[str, Any]:
    """Rows are objects and columns detections; each cell has the key of its count and its share of the row."""
    cells = numbers["confusion"]["cells"]
    labels: list[int | None] = list(confused_classes(numbers["confusion"], len(numbers["classes"]), MOST_CLASSES))
    places = {(cell["object"], cell["detection"]): k for k, cell in enumerate(cells)}
    names = [row["name"] for row in numbers["classes"]]
    return {
        "labels": [*labels, None],
        "names": [names[label] for label in labels if label is not None],
        "rows": [
            {"name": None if a is None else names[a], "label": a, "cells": _row(cells, places, a, [*labels, None])}
            for a in [*labels, None]
        ],
        "all": len(labels) == len(names),
    }


def _row(
    cells: Sequence[Numbers],
    places: dict[tuple[int | None, int | None], int],
    a: int | None,
    columns: Sequence[int | None],
) -> list[dict[str, Any]]:
    total = sum(cell["count"] for cell in cells if cell["object"] == a)
    row = []
    for b in columns:
        place = places.get((a, b))
        share = 0.0 if place is None else cells[place]["count"] / total
        row.append({"place": place, "share": share, "right": a is not None and a == b, "none": a is None and b is None})
    return row


def frequent_pairs(numbers: Numbers) -> list[dict[str, Any]]:
    """The classes confused most often: the key of the count, the object's name, and what it was taken for."""
    names = [row["name"] for row in numbers["classes"]]
    pairs = [
        (cell["count"], k, cell)
        for k, cell in enumerate(numbers["confusion"]["cells"])
        if cell["object"] != cell["detection"] and None not in (cell["object"], cell["detection"])
    ]
    return [
        {"place": k, "object": names[cell["object"]], "detection": names[cell["detection"]]}
        for _, k, cell in sorted(pairs, key=lambda pair: (-pair[0], pair[1]))[:MOST_PAIRS]
    ]
