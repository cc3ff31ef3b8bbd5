"""Where evaluators are known to disagree: each point reproduced with the tool that has it, and our setting for it.

The numbers are the rows of the table in docs/evaluation.md. Row 18 is in test_evaluator.py, row 19 in
test_parity_decimals.py, row 20 in test_bad_input.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import stepgrad as sg
from stepgrad.data import load_dataset
from stepgrad.data.judged_files import evidence_from
from stepgrad.data.read_detections import read_detections
from stepgrad.data.write_detections import write_coco_results, write_voc_results
from stepgrad.errors import InputError, NonFiniteError
from stepgrad.evaluation import Evaluator
from stepgrad.evaluation.result import evaluate_under
from stepgrad.metric.protocol import COCO, VOC07, VOC07_DEVKIT, VOC07_PYTHON, VOC12, VOC12_DEVKIT
from tests.data.builders import coco_content, voc_xml, write_coco
from tests.evaluation.datasets import Entries, boxes_at, evaluate, pred, target
from tests.evaluation.references import pycocotools
from tests.oracles import voc_devkit
from tests.oracles.voc_devkit import Line, Truth

COCO50 = replace(COCO, name="coco50", match_thresholds=(0.5,))
NONE = target(boxes_at())


def torchmetrics_map(preds: Entries, targets: Entries, **options: object) -> dict[str, Tensor]:
    detection = pytest.importorskip("torchmetrics.detection", reason="a reference of the tests only")
    metric = detection.MeanAveragePrecision(**options)
    metric.warn_on_many_detections = False
    metric.update(preds, targets)
    return dict(metric.compute())


def devkit(
    curve: Callable[..., voc_devkit.Curve], found: dict[str, Tensor], there: dict[str, Tensor]
) -> voc_devkit.Curve:
    """One image under the devkit's rules, or the port's."""
    difficult = there["difficult"].tolist() if "difficult" in there else [False] * len(there["labels"])
    truths = {"a": Truth(there["boxes"].tolist(), difficult)}
    rows = zip(found["scores"].tolist(), found["boxes"].tolist(), strict=True)
    return curve(truths, [Line("a", score, box) for score, box in rows])


def test_row_01_an_iou_of_exactly_the_threshold() -> None:
    half = pred(boxes_at(0, width=9, height=4), [0.9])  # ten pixels by five, inside ten by ten
    whole = target(boxes_at(0, width=9, height=9))
    assert devkit(voc_devkit.devkit_curve, half, whole).true == [1]
    assert devkit(voc_devkit.port_curve, half, whole).true == [0]
    assert evaluate("voc07-devkit", [half], [whole]) == 1.0
    assert evaluate("voc07-python", [half], [whole]) == 0.0
    half, whole = pred(boxes_at(0, height=5), [0.9]), target(boxes_at(0))
    assert evaluate("coco", [half], [whole]) == pytest.approx(0.1)
    assert pycocotools([half], [whole], 1).stats[1] == pytest.approx(1.0)


@pytest.mark.parametrize(("height", "reached"), [(11.0, 2), (12.0, 3), (16.0, 7)])  # IoU 0.55, 0.60, 0.80
def test_row_01_torchmetrics_thresholds_are_single_precision_and_ours_are_not(height: float, reached: int) -> None:
    preds, targets = [pred(boxes_at(0, height=height), [0.9])], [target(boxes_at(0, height=20.0))]
    assert evaluate("coco", preds, targets) == pytest.approx(reached / 10)
    assert pycocotools(preds, targets, 1).stats[0] == pytest.approx(reached / 10)
    assert float(torchmetrics_map(preds, targets)["map"]) == pytest.approx((reached - 1) / 10)


def test_row_02_inclusive_pixels_are_one_wider() -> None:
    found, there = pred(boxes_at(0, width=9, height=4), [0.9]), target(boxes_at(0, width=9, height=9))
    assert evaluate("voc07-devkit", [found], [there]) == 1.0  # 10 x 5 in 10 x 10
    assert evaluate("voc07", [found], [there]) == 0.0  # 9 x 4 in 9 x 9
    assert pycocotools([found], [there], 1).stats[1] == 0.0


def test_row_02_the_offset_changes_about_one_decision_in_a_hundred() -> None:
    rng = np.random.default_rng(0)
    corner, size = rng.integers(0, 60, (40_000, 2)), rng.integers(10, 120, (40_000, 2))
    objects = np.concatenate([corner, corner + size], axis=1)
    windows = objects + rng.integers(-20, 21, objects.shape)
    good = (windows[:, 2:] > windows[:, :2]).all(axis=1)

    def matches(offset: float) -> np.ndarray:
        sides = np.minimum(windows, objects)[good, 2:] - np.maximum(windows, objects)[good, :2] + offset
        areas = [np.prod(b[good, 2:] - b[good, :2] + offset, axis=1) for b in (windows, objects)]
        shared = np.prod(np.maximum(sides, 0), axis=1)
        return np.asarray(shared / (areas[0] + areas[1] - shared) >= 0.5)

    assert 0.002 < np.mean(matches(0.0) != matches(1.0)) < 0.03


def test_row_03_a_detection_whose_best_object_is_taken() -> None:
    objects = target(torch.tensor([[0.0, 0, 10, 10], [0, 2, 10, 12]]))
    both_on_the_first = pred(torch.tensor([[0.0, 0, 10, 10], [0, 0.5, 10, 10.5]]), [0.9, 0.8])
    assert evaluate("voc12", [both_on_the_first], [objects]) == 0.5
    assert devkit(voc_devkit.devkit_curve, both_on_the_first, objects).true == [1, 1]
    assert evaluate(COCO50, [both_on_the_first], [objects]) == 1.0
    assert pycocotools([both_on_the_first], [objects], 1).stats[1] == pytest.approx(1.0)


def test_row_04_pycocotools_overwrites_ignore_and_difficult_is_what_we_ignore() -> None:
    found = pred(boxes_at(0, 30), [0.9, 0.8])
    there = target(boxes_at(0, 30), difficult=[True, False])
    assert evaluate("voc12", [found], [there]) == 1.0
    assert devkit(voc_devkit.devkit_curve, found, there).false == [0, 0]
    only_the_second = pred(boxes_at(30), [0.8])
    ignored = pycocotools([only_the_second], [target(boxes_at(0, 30))], 1, ignore=[1, 0])
    assert ignored.stats[1] == pytest.approx(51 / 101)  # the ignored object counts as missed
    assert evaluate(COCO50, [only_the_second], [there]) == 1.0


def test_row_05_a_crowd_is_no_difficult_object() -> None:
    region, part = boxes_at(0, width=100, height=100), boxes_at(0, width=30, height=100)
    objects = torch.cat([region, boxes_at(200)])
    found = pred(torch.cat([part, boxes_at(200)]), [0.9, 0.8])
    crowd = target(objects, iscrowd=[1, 0])
    assert evaluate(COCO50, [found], [crowd]) == 1.0  # 30 % of the region, all of it inside: absorbed
    assert pycocotools([found], [crowd], 1).stats[1] == pytest.approx(1.0)
    assert evaluate("voc12", [found], [target(objects, difficult=[True, False])]) == 0.5
    several = pred(torch.cat([part, part + 30.0, boxes_at(200)]), [0.9, 0.85, 0.8])
    assert evaluate(COCO50, [several], [crowd]) == 1.0  # and as often as one likes
    twice = pred(torch.cat([region, region, boxes_at(200)]), [0.9, 0.85, 0.8])
    for protocol in ("voc12", COCO50):  # any number of detections may find a difficult object, too, but by their IoU
        assert evaluate(protocol, [twice], [target(objects, difficult=[True, False])]) == 1.0
        assert evaluate(protocol, [several], [target(objects, difficult=[True, False])]) == pytest.approx(
            1 / 3, abs=0.01
        )


def test_row_06_the_order_of_equal_scores_decides() -> None:
    hit, miss = pred(boxes_at(0), [0.5]), pred(boxes_at(50), [0.5])
    hits_first, misses_first = [hit] * 5 + [miss] * 5, [miss] * 5 + [hit] * 5
    objects = [target(boxes_at(0))] * 10
    best, worst = (evaluate(COCO50, preds, objects) for preds in (hits_first, misses_first))
    assert (best, worst) == (pytest.approx(51 / 101), pytest.approx(51 / 202))
    for preds, expected in ((hits_first, best), (misses_first, worst)):
        assert pycocotools(preds, objects, 1).stats[1] == pytest.approx(expected)


def test_row_06_files_rank_ties_by_line_for_voc_and_by_image_for_coco(tmp_path: Path) -> None:
    data = write_coco(tmp_path)  # images 4 and 9, dogs in both, the one in 9 a crowd
    hit = {"image_id": 4, "category_id": 18, "bbox": [0, 0, 60, 40], "score": 0.5}
    miss = {"image_id": 9, "category_id": 18, "bbox": [40, 30, 10, 5], "score": 0.5}
    (tmp_path / "found.json").write_text(json.dumps([miss, hit]))
    dataset = load_dataset(data, need_images=False)
    evidence = evidence_from(dataset, read_detections(tmp_path / "found.json", dataset))
    by_file, by_image = (evaluate_under(evidence, replace(COCO50, ties=ties)) for ties in ("file", "image"))
    assert by_file.of_class("dog").ap == 0.5
    assert by_image.of_class("dog").ap == 1.0
    assert VOC12.tie_order == "file"
    assert COCO.tie_order == "image"


def test_row_07_three_decimals_make_ties_that_six_do_not(tmp_path: Path) -> None:
    preds = [pred(boxes_at(50), [0.90011], [0]), pred(boxes_at(0), [0.90012], [0])]
    ids, names = ["a", "b"], ["dog"]
    root = tmp_path / "VOC"
    (root / "Annotations").mkdir(parents=True)
    for image in ids:
        (root / f"Annotations/{image}.xml").write_text(voc_xml([("dog", 1, 1, 10, 10)]))
    dataset = load_dataset(root, class_names=names, need_images=False)
    ap = {}
    for decimals in (3, 6):
        folder = tmp_path / str(decimals)
        write_voc_results(folder, preds, ids, names, decimals=decimals)
        evidence = evidence_from(dataset, read_detections(folder, dataset))
        ap[decimals] = evaluate_under(evidence, VOC12_DEVKIT).map
    assert ap == {3: 0.25, 6: 0.5}


def test_row_08_a_limit_on_detections_is_an_option() -> None:
    left = torch.arange(101) * 20.0
    objects = [target(boxes_at(2000.0))]  # found by the lowest of 101 detections
    found = [pred(boxes_at(*left.tolist()), np.linspace(0.9, 0.1, 101).tolist())]
    assert evaluate("coco", found, objects) == 0.0
    assert pycocotools(found, objects, 1).stats[0] == 0.0
    assert evaluate(replace(COCO, max_detections=None), found, objects) == pytest.approx(1 / 101)
    assert evaluate("voc12", found, objects) == pytest.approx(1 / 101)
    per_class = [pred(boxes_at(*left.tolist()), np.linspace(0.9, 0.1, 101).tolist(), [0] * 100 + [1])]
    assert evaluate("coco", per_class, [target(boxes_at(2000.0), [1])], K=2) == pytest.approx(1.0)


def test_row_09_a_summary_with_other_limits_is_a_number_here() -> None:
    found, there = [pred(boxes_at(0), [0.9])], [target(boxes_at(0))]
    assert pycocotools(found, there, 1, max_detections=(1, 10, 1000)).stats[0] == -1.0
    evaluator = Evaluator(1, "coco")
    evaluator.update(found, there)
    numbers = evaluator.coco_numbers(max_detections=(1, 10, 1000))
    assert (numbers["AP"], numbers["AR1000"]) == (pytest.approx(1.0), 1.0)
    assert evaluate(replace(COCO, max_detections=1000), found, there) == 1.0


def test_row_10_recall_levels_as_floats_lose_three_tenths() -> None:
    left = torch.arange(10) * 20.0
    there, found = target(boxes_at(*left.tolist())), pred(boxes_at(*left[:3].tolist()), [0.9, 0.8, 0.7])
    assert evaluate("voc07", [found], [there]) == pytest.approx(4 / 11)  # levels 0, .1, .2, .3
    assert evaluate("voc07-python", [found], [there]) == pytest.approx(3 / 11)
    assert voc_devkit.port_ap11(devkit(voc_devkit.port_curve, found, there)) == pytest.approx(3 / 11)
    assert evaluate(replace(VOC07_PYTHON, recall_grid="exact"), [found], [there]) == pytest.approx(4 / 11)
    assert evaluate("voc12", [found], [there]) == pytest.approx(3 / 10)
    assert evaluate(COCO50, [found], [there]) == pytest.approx(pycocotools([found], [there], 1).stats[1], abs=1e-12)


def test_row_11_a_class_without_objects() -> None:
    found, there = [pred(boxes_at(0, 30), [0.9, 0.8], [0, 1])], [target(boxes_at(0), [0])]
    assert evaluate("voc12", found, there, K=2) == 0.5  # counts as 0
    assert evaluate(replace(VOC12, absent_classes="skip"), found, there, K=2) == 1.0
    assert evaluate("coco", found, there, K=2) == 1.0
    assert pycocotools(found, there, 2).ap(0, 1) == -1.0
    empty = devkit(voc_devkit.port_curve, found[0], NONE)
    assert voc_devkit.port_ap11(empty) == 0.0
    assert math.isnan(voc_devkit.port_area(empty))
    assert evaluate(VOC12_DEVKIT, found, [NONE], K=2) == 0.0
    classes = torchmetrics_map(found, there, class_metrics=True)["classes"]
    assert classes.tolist() == [0, 1]  # those seen; a third class would be unknown to it
    assert Evaluator(3).compute().ap.shape == (3,)


def test_row_12_the_first_detection_hits_a_difficult_object() -> None:
    found, there = pred(boxes_at(0, 30), [0.9, 0.8]), target(boxes_at(0, 30), difficult=[True, False])
    curve = devkit(voc_devkit.port_curve, found, there)
    assert math.isnan(voc_devkit.port_ap11(curve, safe=False))
    assert voc_devkit.port_ap11(curve) == pytest.approx(1.0)
    assert voc_devkit.devkit_ap11(devkit(voc_devkit.devkit_curve, found, there)) == pytest.approx(1.0)
    for protocol in (VOC07, VOC12, VOC07_DEVKIT, VOC07_PYTHON):
        assert evaluate(protocol, [found], [there]) == pytest.approx(1.0)


def test_row_13_annotation_number_zero(tmp_path: Path) -> None:
    found, there = [pred(boxes_at(0), [0.9])], [target(boxes_at(0))]
    assert pycocotools(found, there, 1, first_id=0).stats[0] == 0.0
    assert pycocotools(found, there, 1, first_id=1).stats[0] == pytest.approx(1.0)
    content = coco_content()
    content["annotations"] = [{"id": 0, "image_id": 4, "category_id": 18, "bbox": [0, 0, 60, 40]}]
    dataset = load_dataset(write_coco(tmp_path, content), need_images=False)
    write_coco_results(tmp_path / "found.json", [pred(torch.tensor([[0.0, 0, 60, 40]]), [0.9], [0])], [4], [18, 17])
    evidence = evidence_from(dataset, read_detections(tmp_path / "found.json", dataset))
    assert evaluate_under(evidence, COCO).map == 1.0


def test_row_14_area_ranges_go_by_the_area_field_and_include_both_ends() -> None:
    boxes = boxes_at(0, width=40, height=40)
    found = [pred(boxes, [0.9])]
    for area, expected in ((1023.0, "s"), (1024.0, "sm"), (1025.0, "m"), (9216.0, "ml"), (9217.0, "l")):
        there = [target(boxes, area=[area])]
        evaluator = Evaluator(1, "coco")
        evaluator.update(found, there)
        numbers = evaluator.coco_numbers()
        assert [size for size in "sml" if numbers[f"AR{size}"] == 1.0] == list(expected)
        theirs = pycocotools(found, there, 1).stats
        np.testing.assert_allclose(np.nan_to_num(numbers.values, nan=-1.0), theirs, atol=1e-12)


def test_row_15_voc_files_count_pixels_from_one_and_zero_does_not_wrap_around(tmp_path: Path) -> None:
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations/a.xml").write_text(voc_xml([("dog", 0, 1, 10, 10)]))  # xmin 0: outside by a pixel
    (tmp_path / "comp4_det_test_dog.txt").write_text("a 0.9 0 1 10 10\n")
    dataset = load_dataset(tmp_path, class_names=["dog"], need_images=False)
    found = read_detections(tmp_path, dataset)
    assert found.detections.boxes.tolist() == [[0, 1, 10, 10]]
    assert found.boxes(inclusive=False).boxes.tolist() == [[-1, 0, 10, 10]]
    assert dataset.target(0)["boxes"].tolist() == [[-1, 0, 10, 10]]
    assert evaluate_under(evidence_from(dataset, found), VOC07_DEVKIT).map == 1.0
    assert evaluate_under(evidence_from(dataset, found), VOC07).map == 1.0


def test_row_16_what_cannot_be_judged_is_refused_at_the_door() -> None:
    nan = float("nan")
    found = pred(boxes_at(0, 30), [nan, 0.8])
    assert pycocotools([found], [target(boxes_at(0, 30))], 1).stats[1] > 0  # elsewhere it passes through
    with pytest.raises(NonFiniteError, match=r"image 0: expected finite scores but scores\[0\] is nan"):
        evaluate("coco", [found], [NONE])
    with pytest.raises(NonFiniteError, match="image 0: expected finite boxes"):
        evaluate("coco", [pred(boxes_at(float("inf")), [0.8])], [NONE])
    with pytest.raises(InputError, match=r"image 0: .*no negative width and height"):
        evaluate("coco", [pred(boxes_at(0, width=-5), [0.8])], [NONE])


def test_row_17_both_average_precisions_of_2007_are_reported() -> None:
    found, there = pred(boxes_at(0, 50, 20), [0.9, 0.8, 0.7]), target(boxes_at(0, 20))
    evaluator = Evaluator(1, "voc07-devkit")
    evaluator.update([found], [there])
    result = evaluator.compute()
    curve = devkit(voc_devkit.devkit_curve, found, there)
    assert result.map == pytest.approx(voc_devkit.devkit_ap11(curve), abs=1e-15)
    assert result.area_map == pytest.approx(voc_devkit.devkit_area(curve), abs=1e-15)
    assert result.map != result.area_map
    table = str(result).splitlines()
    assert table[1].split()[-3:] == ["AP", "AP", "(area)"]
    assert table[2].split()[-2:] == [f"{100 * result.map:.1f}", f"{100 * result.area_map:.1f}"]
    assert (
        result.area_map
        == sg.mean_average_precision(
            [found["scores"][:, None]], [found["boxes"]], [there], protocol="voc12-devkit", nms_threshold=None
        ).map
    )
