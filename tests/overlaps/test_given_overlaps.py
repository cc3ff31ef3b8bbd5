"""Overlaps and neighbours handed in as numbers: value, steps and slopes equal brute force, and those of boxes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.errors import ConfigError, InputError
from stepgrad.metric.protocol import COCO, VOC12, Protocol
from stepgrad.reference.boxes import coverage, iou
from stepgrad.reference.map_loss import batch_gradient, batch_steps
from stepgrad.reference.mean_ap import batch_ap, batch_map
from tests.oracles.options import Options
from tests.overlaps.tables import any_tables
from tests.scenes import Batch, over_seeds, small_batch

DISTANT = replace(COCO, name="distant", match_thresholds=(1.0, 2.0), nearness="distance", equality=False)


def more(batch: Batch) -> dict[str, Any]:
    return {"overlaps": batch.overlaps, "neighbours": batch.likeness}


@pytest.mark.parametrize("protocol", ["voc12", "coco"])
@over_seeds(8, 300)
def test_steps_and_values_equal_brute_force(seed: int, protocol: str) -> None:
    rng = np.random.default_rng([seed, 60])
    for _ in range(5):
        batch = any_tables(rng, small_batch(rng, crowds=protocol == "coco"))
        options = Options(protocol, float(rng.choice([0.3, 0.5])), match_threshold=float(rng.choice([0.5, 0.7])))
        steps = sg.map_steps(*batch.tensors(), **options.call("through_nms"), **more(batch))
        assert steps.value.tolist() == batch_ap(batch, options)
        for (i, b, c), nearest in batch_steps(batch, options).items():
            found = [
                float(column[i][b, c]) for column in (steps.up_at, steps.up_value, steps.down_at, steps.down_value)
            ]
            expected = [nearest.up_at, nearest.up_value.rounded, nearest.down_at, nearest.down_value.rounded]
            assert found == expected, (i, b, c)


@pytest.mark.parametrize("estimator", ["radius", "mee"])
@pytest.mark.parametrize("protocol", [VOC12, COCO], ids=lambda p: p.name)
@over_seeds(4, 150)
def test_slopes_equal_brute_force(seed: int, protocol: Protocol, estimator: str) -> None:
    rng = np.random.default_rng([seed, 61])
    batch = any_tables(rng, small_batch(rng, crowds=protocol is COCO))
    fewer = replace(protocol, match_thresholds=(0.5, 0.7, 0.9))
    options = Options(fewer, 0.4, estimator=estimator, radius=1.3)
    slopes = sg.map_pseudogradient(*batch.tensors(), **options.for_gradient(), **more(batch))
    value = sg.mean_average_precision(*batch.tensors(), protocol=fewer, nms_threshold=0.4, **more(batch)).map
    assert value == pytest.approx(batch_map(batch, options), abs=1e-15)
    for found, expected in zip(slopes, batch_gradient(batch, options), strict=True):
        defined = ~np.isnan(expected)
        np.testing.assert_allclose(found.numpy()[defined], expected[defined], atol=1e-12)


@over_seeds(4, 100)
def test_distances_equal_brute_force(seed: int) -> None:
    rng = np.random.default_rng([seed, 62])
    batch = small_batch(rng)
    centres = [rng.integers(0, 4, (len(s), 2)).astype(float) for s in batch.scores]
    theirs = [rng.integers(0, 4, (len(t["labels"]), 2)).astype(float) for t in batch.targets]
    tables = [-np.sqrt(((a[:, None] - b[None]) ** 2).sum(axis=2)) for a, b in zip(centres, theirs, strict=True)]
    apart = [-np.sqrt(((a[:, None] - a[None]) ** 2).sum(axis=2)) for a in centres]
    near = [np.where(table > -1.5, 1.0, 0.0) for table in apart]
    options = Options(DISTANT, 0.5, estimator="radius", radius=1.3)
    expected = replace(batch, boxes=[np.zeros((len(s), 4)) for s in batch.scores], overlaps=tables, likeness=near)
    scores, _, targets = batch.tensors()
    targets = [{**t, "boxes": torch.tensor(c)} for t, c in zip(targets, theirs, strict=True)]
    overlap = sg.overlaps.Distance((1.0, 2.0))
    found = sg.map_pseudogradient(
        scores,
        [torch.tensor(c) for c in centres],
        targets,
        protocol="coco",
        nms_threshold=1.5,
        overlap=overlap,
        estimator="radius",
        radius=1.3,
    )
    for one, other in zip(found, batch_gradient(expected, options), strict=True):
        np.testing.assert_allclose(one.numpy(), other, atol=1e-12)


@pytest.mark.parametrize("protocol", ["voc12", "coco"])
@over_seeds(3, 60)
def test_the_overlaps_of_boxes_give_what_boxes_give_to_the_last_bit(seed: int, protocol: str) -> None:
    rng = np.random.default_rng([seed, 63])
    batch = small_batch(rng, crowds=protocol == "coco")
    if batch.boxes[0].ndim == 3:
        batch = replace(batch, boxes=[b[:, 0] for b in batch.boxes])
    tables = []
    for windows, target in zip(batch.boxes, batch.targets, strict=True):
        crowd = target.get("iscrowd", np.zeros(len(target["labels"]), dtype=bool)) & (protocol == "coco")
        tables.append(np.where(crowd, coverage(windows, target["boxes"]), iou(windows, target["boxes"])))
    given = {"overlaps": tables, "neighbours": [iou(b, b) for b in batch.boxes]}
    results = []
    for arguments in ({}, given):
        loss_fn = sg.MAPLoss(batch.K, protocol)
        scores, boxes, targets = batch.tensors(requires_grad=True)
        loss = loss_fn(scores, boxes, targets, **arguments)
        loss.backward()
        results.append((loss.item(), loss_fn.metrics["map"], [s.grad.tolist() for s in scores if s.grad is not None]))
    assert results[0] == results[1]


def scene() -> tuple[list[torch.Tensor], list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 0, 11, 10], [20, 0, 30, 10]])
    return [torch.tensor([[0.2], [0.1], [0.9]])], [boxes], [{"boxes": boxes[:1], "labels": torch.tensor([0])}]


def test_neighbours_are_a_table_of_likeness_or_of_booleans_or_pairs() -> None:
    scores, boxes, targets = scene()
    likeness = torch.zeros(3, 3)
    likeness[:2, 2] = 0.9
    pairs = torch.tensor([[2, 0], [1, 2]])
    for given in (likeness, likeness > 0.5, pairs, torch.cat([pairs, pairs.flip(1), torch.tensor([[1, 1]])])):
        result = sg.mean_average_precision(scores, boxes, targets, neighbours=[given])
        assert result.map == 0.0  # the false alarm suppresses both windows of the object
    assert sg.mean_average_precision(scores, boxes, targets).map == 0.5


def test_without_boxes_overlaps_and_labels_are_enough() -> None:
    scores, boxes, targets = scene()
    table = torch.tensor([[1.0], [0.8], [0.0]])
    labels_only = [{"labels": targets[0]["labels"]}]
    loss_fn = sg.MAPLoss(1, nms_threshold=None)
    assert loss_fn(scores, None, labels_only, overlaps=[table]) == loss_fn(scores, boxes, targets)
    with pytest.raises(InputError, match="neighbours="):
        sg.MAPLoss(1)(scores, None, labels_only, overlaps=[table])


@pytest.mark.parametrize(
    "metric", ["f1", "f1@threshold=0.5", "recall@precision=0.5", "cost@threshold=0.5,false_alarm=1,miss=3"]
)
def test_every_metric_takes_overlaps(metric: str) -> None:
    scores, boxes, targets = scene()
    loss_fn = sg.DetectionLoss(1, metric)
    table = torch.tensor([[1.0], [9 / 11], [0.0]])
    assert loss_fn(scores, boxes, targets, overlaps=[table]) == loss_fn(scores, boxes, targets)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"overlaps": [torch.ones(2, 1)]}, r"image 0: overlaps: expected a table \(3, 1\)"),
        ({"overlaps": [torch.tensor([[0.5], [1.5], [0.0]])]}, "window 1 and object 0 is 1.5"),
        ({"overlaps": [torch.tensor([[0.5], [float("nan")], [0.0]])]}, "is nan"),
        ({"overlaps": torch.ones(3, 1)}, "a list with one entry per image"),
        ({"overlaps": []}, "one entry per image, 1, but got 0"),
        ({"neighbours": [torch.ones(2, 2)]}, r"a table \(3, 3\)"),
        ({"neighbours": [torch.tensor([[0, 3]])]}, r"in \[0, 3\)"),
    ],
)
def test_tables_that_do_not_fit_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        sg.MAPLoss(1)(*scene(), **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"overlap": "masks"}, "sg.overlaps.Masks"),
        ({"mask_iou": []}, "Expected arguments among"),
        ({"overlapps": []}, "overlaps"),
        ({"masks": []}, "Expected no masks="),
        ({"overlap": sg.overlaps.Distance()}, "where the loss is made"),
        ({"overlap": sg.overlaps.Masks(), "overlaps": []}, "but got both"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sg.MAPLoss(1)(*scene(), **given)
