"""mAP against the oracle: every protocol, threshold and kind of scene; and the conventions one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.metric.protocol import COCO, PROTOCOLS, VOC07, VOC12, Protocol
from stepgrad.reference.mean_ap import batch_ap, batch_map, shown_ap
from tests.oracles.options import Options
from tests.scenes import Batch, over_seeds, random_batch, small_batch

WINDOW = torch.tensor([[0.0, 0.0, 10.0, 10.0]], dtype=torch.float64)


def library_ap(batch: Batch, options: Options) -> sg.MAPResult:
    extra = options.call("absent_classes")
    return sg.mean_average_precision(*batch.tensors(), **extra)


def assert_same_ap(batch: Batch, options: Options) -> None:
    result = library_ap(batch, options)
    np.testing.assert_array_equal(result.ap, shown_ap(batch, options))
    assert float(result.map) == pytest.approx(batch_map(batch, options), rel=0, abs=1e-15)


@pytest.mark.parametrize("nms_threshold", [None, 0.3, 0.5])
@pytest.mark.parametrize("protocol", ["voc07", "voc12", "coco"])
@over_seeds(5, 200)
def test_ap_is_bit_equal_to_the_oracle(seed: int, protocol: str, nms_threshold: float | None) -> None:
    rng = np.random.default_rng([seed, 1])
    for _ in range(10):
        batch = small_batch(rng, crowds=protocol == "coco", most_windows=20)
        assert_same_ap(batch, Options(protocol, nms_threshold, match_threshold=float(rng.choice([0.5, 0.6, 0.75]))))


@pytest.mark.parametrize("absent", ["zero", "skip"])
@over_seeds(10, 200)
def test_iou_averaged_ap_is_the_mean_over_thresholds(seed: int, absent: str) -> None:
    batch = random_batch(np.random.default_rng([seed, 2]), windows=30, images=3, K=3, objects=9, crowd=0.2)
    options = Options("coco", 0.5, absent_classes=absent)
    result = library_ap(batch, options)
    np.testing.assert_allclose(result.ap, shown_ap(batch, options), rtol=0, atol=1e-15)
    assert float(result.map) == pytest.approx(batch_map(batch, options), rel=0, abs=1e-15)


@pytest.mark.parametrize("name", sorted(p.name for p in PROTOCOLS.values() if not p.for_final_detections))
@over_seeds(5, 100)
def test_every_named_protocol_without_nms(name: str, seed: int) -> None:
    rng = np.random.default_rng([seed, 3])
    batch = random_batch(rng, windows=40, images=2, K=2, objects=12, ties=seed % 2 == 0, difficult=0.2)
    assert_same_ap(batch, Options(name, None, match_threshold=0.5))


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("base", [VOC12, COCO], ids=lambda p: p.name)
@over_seeds(5, 100)
def test_only_the_highest_detections_of_each_image_count(seed: int, base: Protocol, limit: int) -> None:
    batch = small_batch(np.random.default_rng([seed, 4]), most_windows=16)
    assert_same_ap(batch, Options(replace(base, name="limited", max_detections=limit), 0.5, match_threshold=0.5))


@over_seeds(10, 100)
def test_difficult_objects_can_be_counted(seed: int) -> None:
    rng = np.random.default_rng([seed, 5])
    batch = random_batch(rng, windows=20, images=2, objects=8, difficult=0.5)
    assert_same_ap(batch, Options(replace(VOC07, name="all", difficult="count"), 0.5))


def hit(window: list[float], protocol: str, threshold: float) -> float:
    """AP of one window on the object 0, 0, 10, 10."""
    target = {"boxes": WINDOW, "labels": torch.tensor([0])}
    boxes = torch.tensor([window], dtype=torch.float64)
    options = {"protocol": protocol, "nms_threshold": 0.3, "match_threshold": threshold}
    return float(sg.mean_average_precision([torch.ones(1, 1)], [boxes], [target], **options).map)


def test_overlap_equal_to_the_threshold_is_a_match() -> None:
    assert hit([0.0, 0.0, 10.0, 5.0], "voc12", 0.5) == 1.0
    assert hit([0.0, 0.0, 10.0, 5.0], "voc12", np.nextafter(0.5, 1.0)) == 0.0
    assert hit([0.0, 0.0, 10.0, 6.0], "coco", 0.6) == 1.0


def test_the_python_port_of_voc_wants_more_than_the_threshold() -> None:
    inclusive = [0.0, 0.0, 10.0, 4.5]  # 11 x 5.5 of 11 x 11 pixels: IoU 1/2
    assert hit(inclusive, "voc07-devkit", 0.5) == 1.0
    assert hit(inclusive, "voc07-python", 0.5) == 0.0


def test_recall_of_three_tenths_reaches_its_level() -> None:
    boxes = torch.tensor([[20.0 * j, 0.0, 20.0 * j + 10, 10.0] for j in range(10)])
    target = {"boxes": boxes, "labels": torch.zeros(10, dtype=torch.int64)}
    scores = torch.tensor([[3.0], [2.0], [1.0]])
    result = sg.mean_average_precision([scores], [boxes[:3]], [target], protocol="voc07", nms_threshold=None)
    assert float(result.map) == 4 / 11


def test_crowds_absorb_detections_by_their_own_area_and_difficult_objects_by_iou() -> None:
    region = torch.tensor([[0.0, 0.0, 40.0, 40.0], [50.0, 0.0, 60.0, 10.0]])
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [50.0, 0.0, 60.0, 10.0]])
    scores, labels = torch.tensor([[2.0], [1.0]]), torch.tensor([0, 0])
    flags = torch.tensor([True, False])
    ap, options = {}, {"protocol": "coco", "nms_threshold": None}
    for flag in ("iscrowd", "difficult"):
        target = {"boxes": region, "labels": labels, flag: flags}
        ap[flag] = float(sg.mean_average_precision([scores], [boxes], [target], **options).map)
    assert ap == {"iscrowd": pytest.approx(1.0), "difficult": pytest.approx(0.5)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_scores_are_ranked_as_they_are(dtype: torch.dtype) -> None:
    batch = random_batch(np.random.default_rng(11), windows=60, images=2, K=2, objects=10)
    batch = batch.with_scores([s / 7 for s in batch.scores])  # thirds of eighths round in every narrow type
    narrow = batch.with_scores([torch.tensor(s).to(dtype).double().numpy() for s in batch.scores])
    result = sg.mean_average_precision(*batch.tensors(dtype), protocol="voc12", nms_threshold=0.3)
    assert [float(v) for v in result.ap] == batch_ap(narrow, Options())


def test_boxes_of_each_class_are_used_for_that_class() -> None:
    rng = np.random.default_rng(5)
    batch = random_batch(rng, windows=30, images=2, K=3, objects=12, per_class_boxes=True)
    assert_same_ap(batch, Options("voc12", 0.3))
    shared = replace(batch, boxes=[np.repeat(b[:, :1], 3, axis=1) for b in batch.boxes])
    single = replace(batch, boxes=[b[:, 0] for b in batch.boxes])
    options = Options("voc12", 0.3)
    assert torch.equal(torch.as_tensor(library_ap(shared, options).ap), torch.as_tensor(library_ap(single, options).ap))
