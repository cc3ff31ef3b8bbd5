"""Protocols, their recall levels, and what is made of the classes' values."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from stepgrad.errors import ConfigError
from stepgrad.metric.options import check_nms_threshold, resolve_protocol
from stepgrad.metric.over_classes import mean_over_classes, result_of
from stepgrad.metric.protocol import COCO, PROTOCOLS, VOC07, VOC12, Protocol


@pytest.mark.parametrize("levels", [2, 11, 101])
@pytest.mark.parametrize("P", [0, 1, 2, 3, 7, 10, 30])
def test_levels_are_served_by_the_first_true_positive_that_reaches_them(P: int, levels: int) -> None:
    for grid in ("exact", "float"):
        counts, norm = replace(VOC07, recall_levels=levels, recall_grid=grid).level_counts(P)
        assert norm == levels
        expected = [0] * (P + 1)
        for q in range(levels):
            step = 1.0 / (levels - 1)
            level = Fraction(q, levels - 1) if grid == "exact" else (q * step if q < levels - 1 else 1.0)
            reached = [k for k in range(1, P + 1) if (Fraction(k, P) if grid == "exact" else k / P) >= level]
            if reached:
                expected[reached[0]] += 1
        assert counts.tolist() == expected
    counts, norm = VOC12.level_counts(P)
    assert (counts.tolist(), norm) == ([0] + [1] * P, max(P, 1))


@pytest.mark.parametrize(
    ("name", "other", "differences"),
    [
        ("voc12", "voc07", {"recall_levels": None}),
        ("voc07-devkit", "voc07", {"pixel_offset": 1.0}),
        ("voc12-devkit", "voc12", {"pixel_offset": 1.0}),
        ("voc07-python", "voc07-devkit", {"recall_grid": "float", "equality": False}),
    ],
)
def test_protocols_of_voc_differ_in_what_their_names_say_alone(
    name: str, other: str, differences: dict[str, Any]
) -> None:
    assert PROTOCOLS[name] == replace(PROTOCOLS[other], name=name, **differences)


def test_coco_has_the_thresholds_levels_and_limit_of_pycocotools() -> None:
    theirs = pytest.importorskip("pycocotools.cocoeval").Params("bbox")
    assert COCO.match_thresholds == tuple(theirs.iouThrs)
    assert COCO.recall_levels == len(theirs.recThrs)
    assert COCO.max_detections == theirs.maxDets[-1]


BAD = [
    *({"recall_levels": 1}, {"match_thresholds": ()}, {"match_thresholds": (0.0,)}, {"match_thresholds": (0.5, 1.1)}),
    *({"max_detections": 0}, {"recall_grid": "fine"}, {"duplicates": "all"}, {"difficult": "skip"}),
    {"absent_classes": "ignore"},
]


@pytest.mark.parametrize("fields", BAD, ids=str)
def test_protocols_that_make_no_sense_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        replace(VOC12, **fields)  # type: ignore[arg-type]


def test_protocols_at_the_edge_of_sense_are_allowed() -> None:
    edge = Protocol("edge", recall_levels=2, match_thresholds=(1.0, 1e-9), max_detections=1)
    assert edge.level_counts(3)[0].tolist() == [0, 1, 0, 1]


def test_mean_over_classes_counts_or_leaves_out_absent_ones() -> None:
    ap, present = np.array([0.1, 0.7, 0.0]), np.array([True, True, False])
    assert mean_over_classes(ap, present, "zero") == (0.1 + 0.7) / 3
    assert mean_over_classes(ap, present, "skip") == (0.1 + 0.7) / 2
    assert mean_over_classes(ap, ~present & False, "skip") == 0.0
    assert np.isnan(result_of(ap, present, "skip").ap.numpy()).tolist() == [False, False, True]
    assert result_of(ap, present, "zero").ap.tolist() == ap.tolist()
    assert float(result_of(ap, present, "zero")) == result_of(ap, present, "zero").map


def test_thresholds_given_replace_those_of_the_protocol() -> None:
    assert resolve_protocol("coco", 0.5, None).match_thresholds == (0.5,)
    assert resolve_protocol("voc12", [0.5, 0.75], "skip").match_thresholds == (0.5, 0.75)
    assert resolve_protocol("voc12", None, "skip").absent_classes == "skip"
    assert resolve_protocol("coco", None, None) is COCO
    for fine in (None, 0.0, 1.0, 0.3):
        check_nms_threshold(fine)
    for bad in (-1e-9, 1.0 + 1e-9, float("nan")):
        with pytest.raises(ConfigError, match="nms_threshold"):
            check_nms_threshold(bad)
