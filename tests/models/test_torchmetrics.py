"""The metric is the evaluator, whichever way torchmetrics hands it the images."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import stepgrad as sg

pytest.importorskip("torchmetrics", reason='needs torchmetrics: pip install ".[torchmetrics]"')

from torchmetrics import MetricCollection
from torchmetrics.detection import MeanAveragePrecision

from stepgrad.models.frameworks.torchmetrics import MAPMetric, _home
from tests.detector.training.ranks import run_ranks

CLASSES = 4
Images = list[dict[str, torch.Tensor]]


def images(seed: int, count: int = 6, classes: int = CLASSES) -> tuple[Images, Images]:
    """Detections around objects; the second image has no objects, the third no detections, the fourth nothing."""
    generator = torch.Generator().manual_seed(seed)
    preds, target = [], []
    for i in range(count):
        there, found = 0 if i in (1, 3) else 5, 0 if i in (2, 3) else 12
        corner = 50 * torch.rand(5, 2, generator=generator)
        objects = torch.cat([corner, corner + 10 + 20 * torch.rand(5, 2, generator=generator)], dim=1)
        labels = torch.randint(classes - 1, (5,), generator=generator)  # of the last class there are no objects
        near = torch.randint(5, (found,), generator=generator)
        boxes = objects[near] + 2 * torch.randn(found, 4, generator=generator)
        mixed = torch.where(torch.rand(found, generator=generator) < 0.7, labels[near], classes - 1)
        preds.append({"boxes": boxes, "scores": torch.rand(found, generator=generator), "labels": mixed})
        target.append({"boxes": objects[:there], "labels": labels[:there]})
    return preds, target


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert list(found) == list(expected)
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.fixture
def in_one_go() -> dict[str, torch.Tensor]:
    metric = MAPMetric(CLASSES)
    metric.update(*(a + b for a, b in zip(images(0), images(1), strict=True)))
    return metric.compute()


def exact_reference() -> MeanAveragePrecision:
    """Of torchmetrics, with COCO's thresholds and recall levels in double precision: its own are rounded to float32."""
    thresholds, levels = np.linspace(0.5, 0.95, 10).tolist(), np.linspace(0.0, 1.0, 101).tolist()
    return MeanAveragePrecision(iou_thresholds=thresholds, rec_thresholds=levels, class_metrics=True)


@pytest.mark.parametrize("seed", range(5))
def test_equals_mean_average_precision_of_torchmetrics(seed: int) -> None:
    ours, theirs = MAPMetric(CLASSES), exact_reference()
    for metric in (ours, theirs):
        metric.update(*images(seed))
    found, expected = ours.compute(), theirs.compute()
    for key in ("map", "map_50", "map_75", "map_per_class"):
        torch.testing.assert_close(found[key], expected[key], atol=1e-6, rtol=0)
    assert found["classes"].tolist() == expected["classes"].tolist()
    assert 0.1 < float(found["map"]) < 0.9


def test_iou_on_a_threshold_counts() -> None:
    object_box = torch.tensor([[0.0, 0.0, 10.0, 20.0]])
    metric = MAPMetric(1)
    metric.update(
        [{"boxes": torch.tensor([[0.0, 0.0, 10.0, 11.0]]), "scores": torch.ones(1), "labels": torch.zeros(1).long()}],
        [{"boxes": object_box, "labels": torch.zeros(1).long()}],
    )
    assert float(metric.compute()["map"]) == pytest.approx(0.2)  # IoU 0.55: thresholds .50 and .55


@pytest.mark.parametrize("protocol", ["voc07", "voc12", "coco", "voc07-devkit"])
def test_equals_the_evaluator(protocol: str) -> None:
    metric, evaluator = MAPMetric(CLASSES, protocol), sg.Evaluator(CLASSES, protocol)
    preds, target = images(3)
    for entry in target:
        entry["difficult"] = torch.arange(len(entry["labels"])) == 0
    for one in (metric, evaluator):
        one.update(preds, target)
    result = evaluator.compute()
    assert metric.evaluator().compute().to_dict() == result.to_dict()
    assert float(metric.compute()["map"]) == pytest.approx(result.map, abs=1e-7)
    assert ("map_75" in metric.compute()) == (protocol == "coco")


def test_updates_and_forward_amount_to_the_same(in_one_go: dict[str, torch.Tensor]) -> None:
    stepwise, by_forward = MAPMetric(CLASSES), MAPMetric(CLASSES)
    for seed in (0, 1):
        stepwise.update(*images(seed))
        alone = MAPMetric(CLASSES)
        alone.update(*images(seed))
        same(by_forward(*images(seed)), alone.compute())
    for metric in (stepwise, by_forward):
        same(metric.compute(), in_one_go)


@pytest.mark.skipif(not hasattr(MAPMetric, "merge_state"), reason="this torchmetrics cannot merge metrics")
def test_merged_metrics_are_one_of_all_images(in_one_go: dict[str, torch.Tensor]) -> None:
    merged, other = MAPMetric(CLASSES), MAPMetric(CLASSES)
    merged.update(*images(1))
    other.update(*images(0))
    merged.merge_state(other)
    same(merged.compute(), in_one_go)


def test_reset_forgets() -> None:
    metric, fresh = MAPMetric(CLASSES), MAPMetric(CLASSES)
    metric.update(*images(0))
    metric.compute()
    metric.reset()
    for one in (metric, fresh):
        one.update(*images(1))
    same(metric.compute(), fresh.compute())


def test_works_in_a_collection_beside_the_metric_of_torchmetrics() -> None:
    both = MetricCollection({"ours": MAPMetric(CLASSES), "theirs": exact_reference()})
    both.update(*images(0))
    both.update(*images(1))
    found = both.compute()
    assert float(found["ours_map"]) == pytest.approx(float(found["theirs_map"]), abs=1e-6)


def test_where_nothing_was_there_to_find_the_number_is_minus_one() -> None:
    metric = MAPMetric(CLASSES)
    metric.update([images(0)[0][0]], [{"boxes": torch.zeros(0, 4), "labels": torch.zeros(0).long()}])
    found = metric.compute()
    assert {key: set(found[key].reshape(-1).tolist()) for key in ("map", "map_50", "map_per_class")} == {
        "map": {-1.0},
        "map_50": {-1.0},
        "map_per_class": {-1.0},
    }


def test_bad_input_leaves_the_metric_as_it_was() -> None:
    metric = MAPMetric(CLASSES)
    metric.update(*images(0))
    before = metric.compute()
    preds, target = images(1)
    preds[0]["labels"][0] = CLASSES
    with pytest.raises(sg.errors.InputError, match=r"labels in \[0, 4\)"):
        metric.update(preds, target)
    same(metric.compute(), before)


def test_bad_options_are_named_at_once() -> None:
    with pytest.raises(sg.errors.ConfigError, match="num_classes"):
        MAPMetric(0)
    with pytest.raises(sg.errors.ConfigError, match="coco"):
        MAPMetric(1, "cocos")


def shaped_images(task: str, seed: int, count: int = 6) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The images with a mask, a pose of two points, an oriented box or a segment in the place of each box."""

    def shape(entry: dict[str, Any]) -> dict[str, Any]:
        boxes = entry["boxes"]
        if task == "segments":
            return {**entry, "boxes": boxes[:, [0, 2]]}
        if task == "oriented":
            turned = torch.cat(
                [(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2], boxes[:, :1] / 50], dim=1
            )
            return {**entry, "boxes": turned}
        if task == "keypoints":
            points = boxes.view(-1, 2, 2)
            return {**entry, "keypoints": torch.cat([points, 2 * torch.ones_like(points[..., :1])], dim=2)}
        masks = torch.zeros(len(boxes), 90, 100, dtype=torch.bool)
        for mask, (x1, y1, x2, y2) in zip(masks, boxes.int().clamp(min=0).tolist(), strict=True):
            mask[y1:y2, x1:x2] = True
            mask[y1, x1] = False
        return {key: value for key, value in entry.items() if key != "boxes"} | {"masks": masks}

    preds, target = images(seed, count)
    return [shape(entry) for entry in preds], [shape(entry) for entry in target]


def of_task(task: str, **options: Any) -> MAPMetric:
    return MAPMetric(CLASSES, task=sg.overlaps.Keypoints([0.1, 0.1]) if task == "keypoints" else task, **options)


@pytest.mark.parametrize("task", ["masks", "keypoints", "oriented", "segments"])
def test_shapes_are_judged_as_the_evaluator_judges_them(task: str) -> None:
    metric = of_task(task, interval=0.9)
    evaluator = sg.Evaluator(CLASSES, "coco", task=metric.overlap)
    for seed in (0, 1):
        metric.update(*shaped_images(task, seed))
        evaluator.update(*shaped_images(task, seed))
    result = evaluator.compute()
    found = {key: value.tolist() for key, value in metric.compute().items()}
    assert 0.0 < result.map < 1.0
    assert found["map"] == pytest.approx(result.map, rel=1e-6)
    assert (found["map_low"], found["map_high"]) == pytest.approx(result.interval(0.9), rel=1e-6)
    assert str(metric.evaluator().compute()) == str(result)


def test_an_interval_of_nothing_is_absent_like_the_number() -> None:
    metric = MAPMetric(CLASSES, interval=0.95)
    metric.update([images(0)[0][2]], [{"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long)}])
    assert {metric.compute()[key].item() for key in ("map", "map_low", "map_high")} == {-1.0}


def test_an_overlap_that_cannot_be_exchanged_and_a_bad_level_are_refused() -> None:
    with pytest.raises(sg.errors.ConfigError, match="of your own"):
        MAPMetric(1, task=sg.overlaps.Own(lambda windows, target: None))
    with pytest.raises(sg.errors.ConfigError, match="interval"):
        MAPMetric(1, interval=95)


def test_rows_stay_where_double_precision_is() -> None:
    assert _home(torch.device("mps")) == torch.device("cpu")
    assert _home(torch.device("cuda", 1)) == torch.device("cuda", 1)


def on_two_processes(rank: int) -> Iterator[dict[str, Any]]:
    warnings.filterwarnings("ignore", ".*was called before the ``update``.*")  # as one of them was
    uneven, lazy = MAPMetric(CLASSES), MAPMetric(CLASSES)
    uneven.update(*images(rank, count=6 - rank))
    yield {"uneven": uneven.compute()}
    if rank == 1:
        lazy.update(*images(0))
    yield {"lazy": lazy.compute(), "own": lazy.evaluator().compute().images}
    lazy.update(*images(2 + rank))
    yield {"later": lazy.compute()}
    for task in ("masks", "keypoints"):
        shaped = of_task(task, interval=0.95)
        if rank == 1:
            shaped.update(*shaped_images(task, 0))
        shaped.update(*shaped_images(task, 2 + rank, count=6 - rank))
        yield {task: shaped.compute()}


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(on_two_processes, 2, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize(
    ("what", "parts"),
    [("uneven", [(0, 6), (1, 5)]), ("lazy", [(0, 6)]), ("later", [(2, 6), (0, 6), (3, 6)])],
)
def test_two_processes_give_the_number_of_all_images(
    two_processes: list[dict[str, Any]], what: str, parts: list[tuple[int, int]]
) -> None:
    expected = MAPMetric(CLASSES)
    for seed, count in parts:
        expected.update(*images(seed, count))
    for found in two_processes:
        same(found[what], expected.compute())


@pytest.mark.parametrize("task", ["masks", "keypoints"])
def test_two_processes_exchange_shapes(two_processes: list[dict[str, Any]], task: str) -> None:
    expected = of_task(task, interval=0.95)
    for seed, count in ((2, 6), (0, 6), (3, 5)):
        expected.update(*shaped_images(task, seed, count))
    for found in two_processes:
        same(found[task], expected.compute())


def test_after_the_exchange_each_process_has_its_own_images(two_processes: list[dict[str, Any]]) -> None:
    assert [found["own"] for found in two_processes] == [0, 6]
