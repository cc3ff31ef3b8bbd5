"""The evaluator as its users meet it: updates, results, and the loss it must agree with to the last bit."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import stepgrad as sg
from stepgrad.engine.matching import FALSE_POSITIVE, IGNORED, TRUE_POSITIVE
from stepgrad.errors import ConfigError
from stepgrad.evaluation import Evaluator
from stepgrad.metric.protocol import COCO, PROTOCOLS, get_protocol
from stepgrad.reference.mean_ap import batch_map
from tests.evaluation.datasets import after_nms, boxes_at, evaluate, pred, random_dataset, target
from tests.evaluation.references import pycocotools
from tests.oracles.options import Options
from tests.scenes import Batch, over_seeds, small_batch


def evaluator_of(batch: Batch, protocol: sg.Protocol, threshold: float | None, dtype: torch.dtype) -> Evaluator:
    scores, boxes, targets = batch.tensors(dtype)
    evaluator = Evaluator(batch.K, protocol)
    evaluator.update(after_nms(scores, boxes, threshold), targets)
    return evaluator


def assert_same_bits(ours: sg.MAPResult, expected_map: float, expected_ap: Tensor) -> None:
    assert ours.map == expected_map
    np.testing.assert_array_equal(ours.ap.numpy(), expected_ap.numpy())


@over_seeds(150, 3000)
def test_value_of_the_loss_equals_the_evaluator_to_the_last_bit(seed: int) -> None:
    rng = np.random.default_rng([seed, 30])
    batch = small_batch(rng, crowds=True, most_windows=24)
    protocol = PROTOCOLS[str(rng.choice(sorted(p.name for p in PROTOCOLS.values() if not p.for_final_detections)))]
    if rng.random() < 0.3:
        protocol = replace(protocol, max_detections=int(rng.integers(1, 4)), max_detections_of="class")
    threshold = [None, 0.3][rng.integers(2)]
    dtype = [torch.float32, torch.float64][rng.integers(2)]
    scores, boxes, targets = batch.tensors(dtype)
    ours = evaluator_of(batch, protocol, threshold, dtype).compute()
    metric = sg.mean_average_precision(scores, boxes, targets, protocol=protocol, nms_threshold=threshold)
    assert_same_bits(ours, metric.map, metric.ap)
    loss_fn = sg.MAPLoss(batch.K, protocol, nms_threshold=threshold, eps=0.01)
    loss = loss_fn([s.double() for s in scores], boxes, targets)
    assert_same_bits(ours, loss_fn.metrics["map"], loss_fn.metrics["ap"])
    assert float(loss) == -math.log(ours.map + 0.01)


FOR_WINDOWS = sorted(name for name, protocol in PROTOCOLS.items() if not protocol.for_final_detections)


@pytest.mark.parametrize("name", FOR_WINDOWS)
def test_losses_and_metrics_without_options_give_the_evaluators_number_where_classes_are_absent(name: str) -> None:
    box = boxes_at(0).numpy()
    batch = Batch([np.array([[0.9, 0.4, 0.1]])], [box], [{"boxes": box, "labels": np.array([1])}])
    expected = evaluator_of(batch, get_protocol(name), None, torch.float64).compute()
    found: dict[str, Any] = {}
    losses = [sg.MAPLoss(3, name, nms_threshold=None), sg.DistributedMAPLoss(3, name, nms_threshold=None)]
    for loss_fn in [*losses, sg.DetectionLoss(3, "ap", name, nms_threshold=None)]:
        loss_fn(*batch.tensors())
        found[type(loss_fn).__name__] = next(loss_fn.metrics[key] for key in ("map", "value") if key in loss_fn.metrics)
    found["function"] = sg.mean_average_precision(*batch.tensors(), protocol=name, nms_threshold=None).map
    found["reference"] = batch_map(batch, Options(name, None))
    assert set(found.values()) == {expected.map}, found
    counted = 1 if get_protocol(name).absent_classes == "skip" else 3
    assert expected.map == pytest.approx(float(expected.ap[1]) / counted)


def test_coco_leaves_absent_classes_out_of_the_loss_and_the_papers_loss_counts_them_as_zero() -> None:
    assert sg.MAPLoss(3, "coco").objective.protocol == COCO
    assert sg.MAPLoss.paper(3, "coco").objective.protocol.absent_classes == "zero"
    for name in (name for name in FOR_WINDOWS if name.startswith("voc")):
        assert sg.MAPLoss(3, name).objective.protocol.absent_classes == "zero"


@over_seeds(10, 100)
def test_value_does_not_depend_on_how_images_are_handed_in(seed: int) -> None:
    data = random_dataset(np.random.default_rng([seed, 31]), "difficult")
    at_once, one_by_one = Evaluator(data.K, "voc12"), Evaluator(data.K, "voc12")
    at_once.update(data.preds, data.targets)
    for p, t in zip(data.preds, data.targets, strict=True):
        one_by_one.update([p], [t])
    assert_same_bits(one_by_one.compute(), at_once.compute().map, at_once.compute().ap)


@over_seeds(5, 50)
def test_all_protocols_in_one_pass_equal_each_alone(seed: int) -> None:
    data = random_dataset(np.random.default_rng([seed, 32]), "difficult")
    result = data.evaluator(*PROTOCOLS).compute()
    for name in PROTOCOLS:
        alone = data.evaluator(name).compute()
        assert_same_bits(result[name], alone.map, alone.ap)
    assert result.protocol.name == next(iter(PROTOCOLS))


def test_reset_forgets_everything() -> None:
    evaluator = Evaluator(1)
    evaluator.update([pred(boxes_at(50), [0.9])], [target(boxes_at(0))])
    evaluator.reset()
    evaluator.update([pred(boxes_at(0), [0.9])], [target(boxes_at(0))])
    result = evaluator.compute()
    assert (result.map, result.images, result.detections) == (1.0, 1, 1)


def test_detections_are_final_no_suppression_happens() -> None:
    twice = torch.cat([boxes_at(0), boxes_at(0)])
    assert evaluate("voc12", [pred(twice, [0.9, 0.8])], [target(boxes_at(0))]) == 1.0
    assert evaluate("voc12", [pred(twice, [0.9, 0.8])], [target(torch.cat([boxes_at(0), boxes_at(30)]))]) == 0.5
    after = [pred(torch.cat([twice, boxes_at(30)]), [0.9, 0.8, 0.7])]
    assert evaluate("voc12", after, [target(boxes_at(0, 30))]) == pytest.approx((1 + 2 / 3) / 2)


def test_result_is_a_map_result_and_a_number() -> None:
    result = random_dataset(np.random.default_rng(1), "difficult").evaluator("voc12").compute()
    assert isinstance(result, sg.MAPResult)
    assert float(result) == result.map
    assert result.ap.shape == (25,)
    assert result.ap.dtype == torch.float64


def test_absent_classes_are_zero_or_nan_as_the_protocol_says() -> None:
    evaluator = Evaluator(3, ["voc12", "coco"], ["cat", "dog", "cow"])
    evaluator.update([pred(boxes_at(0, 30), [0.9, 0.8], [1, 2])], [target(boxes_at(0), [1])])
    result = evaluator.compute()
    assert result.ap.tolist() == [0.0, 1.0, 0.0]
    assert result.map == 1 / 3
    assert result["coco"].map == result["coco"].map_at(0.75) == result["coco"].area_map == 1.0
    assert result.map_at(0.5) == result.area_map == 1 / 3
    assert [math.isnan(ap) for ap in result["coco"].ap.tolist()] == [True, False, True]
    assert ["cow", "0", "0", "1", *"----"] in [line.split() for line in str(result["coco"]).splitlines()]


def test_curve_gives_precision_and_recall_after_each_counted_detection() -> None:
    evaluator = Evaluator(1, "voc12")
    objects = target(boxes_at(0, 20, 40, 60), difficult=[False, False, True, False])
    evaluator.update([pred(boxes_at(0, 90, 40, 20), [0.9, 0.8, 0.7, 0.6])], [objects])
    row = evaluator.compute().of_class("0")
    curve = row.curve()
    assert curve.recall.tolist() == [1 / 3, 1 / 3, 2 / 3]
    assert curve.precision.tolist() == [1.0, 1 / 2, 2 / 3]
    assert curve.interpolated.tolist() == [1.0, 2 / 3, 2 / 3]
    assert curve.scores.tolist() == [0.9, 0.8, 0.6]  # the one on the difficult object does not count
    assert (row.objects, row.ignored, row.detections, row.recall) == (3, 1, 4, 2 / 3)


@over_seeds(10, 200)
def test_area_under_the_interpolated_curve_is_ap(seed: int) -> None:
    data = random_dataset(np.random.default_rng([seed, 33]), "difficult")
    for row in data.evaluator("voc12").compute().classes:
        if row.objects:
            curve = row.curve()
            area = np.sum(np.diff(curve.recall, prepend=0.0) * curve.interpolated)
            assert abs(area - row.ap) < 1e-12
            assert np.all(np.diff(curve.recall) >= 0)


def test_curves_exist_at_each_threshold_and_only_there() -> None:
    result = random_dataset(np.random.default_rng(2), "iscrowd").evaluator("coco").compute()
    found = [result.of_class(0).curve(t).recall[-1] for t in COCO.match_thresholds]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]
    with pytest.raises(ConfigError, match=r"thresholds \[0.5, .*but got 0.52"):
        result.of_class(0).curve(0.52)


def test_to_dict_is_plain_json_with_none_for_no_number() -> None:
    evaluator = Evaluator(2, ["coco", "voc07"], ["cat", "dog"])
    evaluator.update([pred(boxes_at(0), [0.9], [1])], [target(boxes_at(0), [1])])
    content = json.loads(json.dumps(evaluator.compute().to_dict(), allow_nan=False))
    assert content["map"] == 1.0
    assert content["classes"][0]["ap"] is None
    assert content["classes"][0]["recall"] is None
    assert content["classes"][1] == {
        **{"name": "dog", "ap": 1.0, "area_ap": 1.0, "objects": 1, "ignored": 0, "detections": 1, "recall": 1.0},
        "ap_by_threshold": {f"{t:.2f}": 1.0 for t in COCO.match_thresholds},
    }
    assert content["others"]["voc07"]["map"] == 0.5


def test_continuous_boxes_give_the_same_number_under_inclusive_protocols() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        data = random_dataset(rng, "difficult")
        result = Evaluator(data.K, ["voc07", "voc07-devkit"], boxes="continuous")
        result.update(data.preds, data.targets)
        found = result.compute()
        assert found.map == found["voc07-devkit"].map  # whole pixels: no rounding
        given = data.evaluator("voc07", "voc07-devkit").compute()
        assert given.map == found.map
        if given.map != given["voc07-devkit"].map:
            return
    pytest.fail("the pixel offset never mattered, so the test shows nothing")


@pytest.mark.parametrize("boxes", ["given", "continuous"])
@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
@pytest.mark.parametrize(("width", "height"), [(0.0, 10.0), (10.0, 0.0), (0.0, 0.0)])
def test_detection_without_area_overlaps_nothing(protocol: str, boxes: str, width: float, height: float) -> None:
    """As for pycocotools; a detector that clips its boxes to the image makes such."""
    empty = 0.0 if boxes == "continuous" else get_protocol(protocol).pixel_offset
    flat = boxes_at(3, width=width, height=height) - torch.tensor([0.0, 0.0, empty, empty])
    evaluator = Evaluator(1, protocol, boxes=boxes)
    evaluator.update([pred(torch.cat([flat, flat, boxes_at(0)]), [0.9, 0.85, 0.8])], [target(boxes_at(0))])
    row = evaluator.compute().classes[0]
    wrong = IGNORED if protocol == "lvis" else FALSE_POSITIVE  # LVIS's own code does not read such detections
    assert row.verdicts.tolist() == [[wrong, wrong, TRUE_POSITIVE]] * len(row.verdicts)


def test_detections_without_area_equal_pycocotools() -> None:
    flat = torch.cat([boxes_at(3, width=0.0), boxes_at(5, height=0.0), boxes_at(7, width=0.0, height=0.0)])
    preds = [pred(torch.cat([flat, boxes_at(0)]), [0.9, 0.85, 0.82, 0.8])]
    for crowd in (False, True):  # a crowd's overlap divides by the area of the detection
        targets = [target(torch.cat([boxes_at(0), boxes_at(5)]), iscrowd=[False, crowd])]
        evaluator = Evaluator(1, "coco")
        evaluator.update(preds, targets)
        theirs = pycocotools(preds, targets, 1)
        assert evaluator.compute().map == pytest.approx(theirs.stats[0], abs=1e-12)
        ours = [-1.0 if math.isnan(value) else value for value in evaluator.coco_numbers().values]
        assert ours == pytest.approx(theirs.stats, abs=1e-12)


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_empty_sets_have_a_defined_result(protocol: str) -> None:
    empty, no_object = pred(boxes_at(), []), target(boxes_at())
    evaluator = Evaluator(2, protocol)
    assert evaluator.compute().map == 0.0  # no images at all
    assert evaluator.compute().images == 0
    evaluator.update([], [])
    evaluator.update([empty, empty], [no_object, target(boxes_at(0))])  # nothing found
    assert evaluator.compute().map == 0.0
    assert evaluator.compute().of_class(0).curve().recall.tolist() == []
    evaluator.reset()
    evaluator.update([pred(boxes_at(0), [0.5])], [no_object])  # nothing to find
    assert evaluator.compute().map == 0.0
    assert "mean of" in str(evaluator.compute())
    evaluator.reset()
    only_difficult: dict[str, Any] = target(boxes_at(0), difficult=[True])
    evaluator.update([pred(boxes_at(0), [0.5])], [only_difficult])
    assert evaluator.compute().of_class(0).detections == 1
    assert evaluator.compute().map == 0.0


def test_empty_entries_may_have_any_empty_shape() -> None:
    nothing = {"boxes": torch.zeros(0), "scores": torch.zeros(0), "labels": torch.zeros(0)}
    evaluator = Evaluator(1)
    evaluator.update([nothing, pred(boxes_at(0), [0.5])], [{"boxes": [], "labels": []}, target(boxes_at(0))])
    assert evaluator.compute().map == 1.0


def test_half_precision_scores_and_whole_number_boxes_are_taken_exactly() -> None:
    evaluator = Evaluator(1)
    found = {"boxes": boxes_at(0, 30).int(), "scores": torch.tensor([0.1, 0.2]).half(), "labels": torch.zeros(2).int()}
    evaluator.update([found], [target(boxes_at(0))])
    assert evaluator.compute().map == 0.5


def test_flags_may_be_missing_in_some_images() -> None:
    evaluator = Evaluator(1)
    evaluator.update(
        [pred(boxes_at(0), [0.9]), pred(boxes_at(0), [0.8])],
        [target(boxes_at(0)), target(boxes_at(0), difficult=[True])],
    )
    row = evaluator.compute().classes[0]
    assert (row.objects, row.ignored, row.ap) == (1, 1, 1.0)


def test_the_twelve_numbers_count_a_hundred_detections_per_image_unless_told() -> None:
    place = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    elsewhere = place + 50.0
    judge = Evaluator(1)
    found = {
        "boxes": torch.cat([elsewhere.expand(100, 4), place]),  # the hit is the 101st
        "scores": torch.linspace(1.0, 0.5, 101),
        "labels": torch.zeros(101, dtype=torch.long),
    }
    judge.update([found], [{"boxes": place, "labels": torch.tensor([0])}])
    assert judge.coco_numbers()["AP"] == 0.0
    assert judge.coco_numbers((1, 10, 101))["AP"] > 0.0


def test_one_unusual_image_changes_no_number() -> None:
    """Ordinary columns are joined at once; lists, other types and images without rows are looked at one by one."""
    generator = torch.Generator().manual_seed(0)
    corners = torch.randint(0, 50, (40, 2), generator=generator).float()
    boxes = torch.cat([corners, corners + 20], dim=1).split(10)
    labels = torch.randint(0, 3, (40,), generator=generator).split(10)
    scores = torch.rand(40, generator=generator).half().float().split(10)
    nothing = {"boxes": torch.zeros(0, 4), "scores": torch.zeros(0), "labels": torch.zeros(0)}  # labels of any type
    preds = [
        *({"boxes": b + 3, "scores": s, "labels": y} for b, s, y in zip(boxes, scores, labels, strict=True)),
        nothing,
    ]
    targets = [
        *({"boxes": b[:6], "labels": y[:6]} for b, y in zip(boxes, labels, strict=True)),
        {"boxes": torch.zeros(0), "labels": torch.zeros(0)},
    ]
    unusual = [
        {"boxes": preds[0]["boxes"].tolist(), "scores": scores[0].half(), "labels": labels[0].to(torch.uint16)},
        *preds[1:],
    ]
    values = []
    for given in (preds, unusual):
        evaluator = sg.Evaluator(3, "coco")
        evaluator.update(given, targets)
        values.append(evaluator.compute().ap.tolist())
    assert values[0] == values[1]
    assert 0.0 < values[0][0] < 1.0


def test_a_limit_on_detections_counts_in_images_without_objects_too() -> None:
    """Such images are taken together, but not where a limit per image leaves some of their detections out."""
    box, far = torch.tensor([[0.0, 0.0, 10.0, 10.0]]), torch.tensor([[50.0, 50.0, 60.0, 60.0]])
    wrong = {"boxes": far.repeat(3, 1), "scores": torch.tensor([0.9, 0.8, 0.7]), "labels": torch.zeros(3).long()}
    right = {"boxes": box, "scores": torch.tensor([0.5]), "labels": torch.tensor([0])}
    objects = [{"boxes": far[:0], "labels": torch.zeros(0).long()}, {"boxes": box, "labels": torch.tensor([0])}]
    for limit, above in ((None, 3), (3, 3), (2, 2), (1, 1)):
        evaluator = sg.Evaluator(1, replace(get_protocol("voc12"), max_detections=limit))
        evaluator.update([wrong, right], objects)
        assert evaluator.compute().map == 1 / (1 + above)
