"""Classes that are taken for one another: the counts, and the table of them as the template lays it out."""

from __future__ import annotations

from collections import Counter
from typing import Any

from stepgrad.evaluation.errors_by_type import LEFT_OUT, RIGHT, TYPES, Mistakes
from stepgrad.report.numbers import Numbers

MOST_CLASSES = 20
"""Rows that a reader can take in; report.json has all."""
MOST_PAIRS = 5


def confusion(mistakes: Mistakes) -> dict[str, Any]:
    """How often an object of one class was taken for another; pairs that never happened are left out.

    Every object and every detection is counted once. An object is found, or taken for another class by the highest
    detection that lies on it, or missed (no detection); a detection without an object of its own is a false alarm (no
    object).
    """
    kinds, labels = mistakes.of_detections, mistakes.evidence.detections.labels
    of_objects, object_labels = mistakes.of_objects, mistakes.evidence.objects.labels
    taken = (kinds == TYPES.index("class")) & (mistakes.claimed >= 0)
    alarms = (kinds != RIGHT) & (kinds != LEFT_OUT) & ~taken
    missed = (of_objects != LEFT_OUT) & (of_objects != RIGHT) & (of_objects != TYPES.index("class"))
    counts: Counter[tuple[int | None, int | None]] = Counter()
    counts.update((label, label) for label in labels[kinds == RIGHT].tolist())
    counts.update(zip(object_labels[mistakes.claimed[taken]].tolist(), labels[taken].tolist(), strict=True))
    counts.update((None, label) for label in labels[alarms].tolist())
    counts.update((label, None) for label in object_labels[missed].tolist())
    order = sorted(counts, key=lambda pair: tuple(-1 if label is None else label for label in pair))
    return {"cells": [{"object": a, "detection": b, "count": counts[a, b]} for a, b in order]}


def confusion_table(numbers: Numbers) -> dict[str, Any]:
    """The labels of rows (objects) and columns (detections), None for none; and for each pair the place of its count in the
    numbers and its share of the row."""
    cells, classes = numbers["confusion"]["cells"], len(numbers["classes"])
    totals: Counter[int | None] = Counter()
    for cell in cells:
        totals[cell["object"]] += cell["count"]
    labels = confused_classes(numbers["confusion"], classes, MOST_CLASSES)
    return {
        "labels": [*labels, None],
        "all": len(labels) == classes,
        "cells": {
            (cell["object"], cell["detection"]): {"place": k, "share": cell["count"] / totals[cell["object"]]}
            for k, cell in enumerate(cells)
        },
    }


def confused_classes(numbers: Numbers, classes: int, most: int) -> list[int]:
    """The labels to show in a table of limited size: those with the most mistakes, in the order of the classes."""
    wrong: Counter[int] = Counter()
    for cell in numbers["cells"]:
        if cell["object"] != cell["detection"]:
            wrong.update({label: cell["count"] for label in (cell["object"], cell["detection"]) if label is not None})
    return sorted(sorted(range(classes), key=lambda label: (-wrong[label], label))[:most])


def frequent_pairs(numbers: Numbers) -> list[int]:
    """The places of the counts of those two classes that are confused most often."""
    cells = numbers["confusion"]["cells"]
    pairs = [k for k, cell in enumerate(cells) if None not in cell.values() and cell["object"] != cell["detection"]]
    return sorted(pairs, key=lambda k: (-cells[k]["count"], k))[:MOST_PAIRS]
