"""Sizes, shapes and places of the objects, against plain counting."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from stepgrad.evaluation.counted import countable
from stepgrad.metric.protocol import get_protocol
from stepgrad.report.findings import Findings
from stepgrad.report.objects import CELLS, FLATTEST, describe_objects
from tests.evaluation.datasets import random_dataset

VOC12 = get_protocol("voc12")


def findings_of(seed: int) -> Findings:
    return Findings.of(random_dataset(np.random.default_rng(seed), "difficult").evaluator("voc12").evidence(), VOC12)


@pytest.mark.parametrize("seed", range(3))
def test_every_object_that_counts_is_in_the_bar_of_its_size_and_of_its_shape(seed: int) -> None:
    findings = findings_of(seed)
    found = describe_objects(findings, [None] * findings.evidence.num_images)
    boxes = findings.evidence.objects.boxes[countable(findings.evidence, VOC12)]
    sides = boxes[:, 2:] - boxes[:, :2]
    assert sum(found["sizes"]["counts"]) == sum(found["shapes"]) == len(boxes)
    first = found["sizes"]["from"]
    for k, count in enumerate(found["sizes"]["counts"]):
        inside = [4.0 ** (first + k) <= w * h < 4.0 ** (first + k + 1) for w, h in sides]
        assert count == sum(inside)
    wide = sum(w >= h for w, h in sides)
    assert sum(found["shapes"][2 * FLATTEST :]) == wide
    assert found["places"] is None


def test_swapping_the_axes_turns_the_places_and_leaves_the_sizes() -> None:
    findings = findings_of(4)
    objects = findings.evidence.objects
    turned = replace(findings.evidence, objects=objects.with_boxes(objects.boxes[:, [1, 0, 3, 2]]))
    sizes = [(100, 100)] * findings.evidence.num_images
    before = describe_objects(findings, sizes)
    after = describe_objects(Findings.of(turned, VOC12), sizes)
    assert after["sizes"] == before["sizes"]
    assert np.array_equal(after["places"], np.transpose(before["places"]))


def test_places_count_the_centres_of_the_images_whose_size_is_known() -> None:
    findings = findings_of(5)
    objects = findings.evidence.objects
    sizes = [None if image == 0 else (80 + image, 60) for image in range(findings.evidence.num_images)]
    expected: Counter[tuple[int, int]] = Counter()
    for row in np.flatnonzero(countable(findings.evidence, VOC12)):
        size = sizes[objects.images[row]]
        if size is not None:
            x1, y1, x2, y2 = objects.boxes[row]
            x, y = ((low + high) / 2 / whole for low, high, whole in ((x1, x2, size[0]), (y1, y2, size[1])))
            expected[min(int(CELLS * y), CELLS - 1), min(int(CELLS * x), CELLS - 1)] += 1
    places = describe_objects(findings, sizes)["places"]
    assert {(y, x): count for y, row in enumerate(places) for x, count in enumerate(row) if count} == expected
