"""DetectionLoss: the classes as one number, what its options mean, and where it runs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import stepgrad as sg
from stepgrad.errors import ConfigError, InputError, NonFiniteError
from stepgrad.losses.ragged import ragged_map_loss
from stepgrad.metric.metrics import AP, F1
from stepgrad.metric.over_classes import OverClasses
from stepgrad.metric.protocol import ULTRALYTICS_UNLIMITED, VOC12, get_protocol
from tests.losses.test_ragged import candidates_of
from tests.losses.threads_as_ranks import threads
from tests.metric.metric_cases import as_own
from tests.scenes import Batch, random_batch

NAMES = [
    "ap",
    "f1",
    "f1@threshold=0.25",
    "recall@precision=0.6",
    "precision@recall=0.5",
    "cost@threshold=0.25,false_alarm=1,miss=3",
    "miss_rate",
    "ap@max_recall=0.4",
]
M = sg.metrics


def scene(seed: int, **changes: Any) -> Batch:
    options = {"windows": 24, "images": 3, "K": 3, "objects": 12, "difficult": 0.1, **changes}
    return random_batch(np.random.default_rng([seed, 200]), **options)


def loss_and_gradient(loss_fn: Any, batch: Batch, dtype: torch.dtype = torch.float64) -> tuple[float, Tensor]:
    scores, boxes, targets = batch.tensors(dtype, requires_grad=True)
    loss = loss_fn(scores, boxes, targets)
    return float(loss.detach()), torch.cat([g.double() for g in torch.autograd.grad(loss, scores)])


@pytest.mark.parametrize("estimator", ["radius", "mee", "sde"])
@pytest.mark.parametrize("seed", range(3))
def test_ap_as_a_metric_is_map_loss_to_the_last_bit(seed: int, estimator: str) -> None:
    options: dict[str, Any] = {"estimator": estimator, "absent_classes": "zero", "clip": 0.2, "l4": 1e-3}
    ours, theirs = sg.DetectionLoss(3, "ap", **options), sg.MAPLoss(3, **options)
    (a, da), (b, db) = (loss_and_gradient(f, scene(seed)) for f in (ours, theirs))
    assert a == b
    assert torch.equal(da, db)
    assert ours.metrics["value"] == theirs.metrics["map"]
    assert torch.equal(ours.metrics["by_class"], theirs.metrics["ap"])


@pytest.mark.parametrize("absent", ["zero", "skip"])
def test_equal_class_weights_change_nothing_but_the_last_bits(absent: str) -> None:
    plain, weighted = (sg.MAPLoss(3, absent_classes=absent, class_weights=w) for w in (None, [2.0] * 3))
    (a, da), (b, db) = (loss_and_gradient(f, scene(1)) for f in (plain, weighted))
    assert a == pytest.approx(b, rel=1e-14)
    torch.testing.assert_close(da, db, rtol=1e-13, atol=1e-15)


def test_a_class_of_weight_zero_has_no_part_in_value_or_gradient() -> None:
    loss_fn = sg.MAPLoss(3, class_weights=[1.0, 0.0, 3.0])
    _, gradient = loss_and_gradient(loss_fn, scene(2))
    ap = loss_fn.metrics["ap"]
    assert loss_fn.metrics["map"] == pytest.approx((float(ap[0]) + 3 * float(ap[2])) / 4, rel=1e-15)
    assert (gradient[:, 1] == 0).all()
    assert (gradient[:, 2] != 0).any()


@pytest.mark.parametrize("name", NAMES)
def test_the_worst_class_alone_has_a_gradient(name: str) -> None:
    loss_fn = sg.DetectionLoss(3, name, classes="worst", log=False)
    for seed in range(4):
        _, gradient = loss_and_gradient(loss_fn, scene(seed))
        values = loss_fn.metrics["by_class"]
        better = loss_fn.objective.metric.higher_is_better
        worst = values[~values.isnan()].min() if better else values[~values.isnan()].max()
        assert loss_fn.metrics["value"] == float(worst)
        assert (gradient[:, values != worst] == 0).all()


@pytest.mark.parametrize("absent", ["zero", "skip"])
@pytest.mark.parametrize("name", ["ap", "f1", "recall@precision=0.5"])
def test_the_worst_class_is_never_one_without_objects(name: str, absent: str) -> None:
    box = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    targets = [{"boxes": box, "labels": torch.tensor([0])}]
    loss_fn = sg.DetectionLoss(2, name, classes="worst", absent_classes=absent)
    loss_fn([torch.tensor([[0.5, 0.9]])], [box], targets)
    assert loss_fn.metrics["value"] == 1.0
    assert loss_fn.metrics["by_class"].isnan().tolist() == [False, True]
    evaluator = sg.Evaluator(2, replace(VOC12, absent_classes=absent))
    preds = {"boxes": box.repeat(2, 1), "scores": torch.tensor([0.5, 0.9]), "labels": torch.tensor([0, 1])}
    evaluator.update([preds], targets)
    assert evaluator.compute().metric(name, classes="worst").value == 1.0


@given(
    values=st.lists(st.floats(0, 1), min_size=1, max_size=6),
    weights=st.lists(st.floats(0, 9), min_size=6, max_size=6).filter(any),
    present=st.lists(st.booleans(), min_size=6, max_size=6),
    absent=st.sampled_from(["zero", "skip"]),
)
def test_a_weighted_mean_lies_between_the_worst_and_the_best_class(
    values: list[float], weights: list[float], present: list[bool], absent: str
) -> None:
    K = len(values)
    values = [v if p else 0.0 for v, p in zip(values, present, strict=False)]
    objects = [int(p) for p in present[:K]]
    joined = OverClasses("mean", tuple(weights[:K]), absent).join(AP(), values, objects)
    counted = [v for v, p, w in zip(values, objects, weights, strict=False) if w > 0 and (p or absent == "zero")]
    if counted:
        assert min(counted) - 1e-12 <= joined.value <= max(counted) + 1e-12
        assert sum(joined.slopes(1.0)) == pytest.approx(1.0)
    else:
        assert joined.value == 0.0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(2))
def test_ragged_lists_of_all_pairs_have_the_loss_of_the_rectangle(seed: int, name: str) -> None:
    scores, boxes, targets = scene(seed, per_class_boxes=True).tensors(requires_grad=True)
    loss_fn = sg.DetectionLoss(3, name, estimator="mee" if seed else "radius")
    expected = loss_fn(scores, boxes, targets)
    gradients = torch.autograd.grad(expected, scores)
    everything = [torch.ones_like(s, dtype=torch.bool) for s in scores]
    loss = ragged_map_loss(loss_fn, candidates_of(scores, boxes, everything), targets)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-13)
    for a, b in zip(torch.autograd.grad(loss, scores), gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_float32_scores_are_compared_with_the_threshold_as_it_is() -> None:
    """0.1 is no float32: of the two nearest to it one passes the threshold 0.1 and one does not."""
    above = np.nextafter(np.float32(0.1), np.float32(1)) if np.float32(0.1) < 0.1 else np.float32(0.1)
    below = np.nextafter(above, np.float32(0))
    box = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    target = [{"boxes": box, "labels": torch.tensor([0])}]
    loss_fn = sg.DetectionLoss(1, F1(threshold=0.1))
    for score, passes in ((above, 1.0), (below, 0.0)):
        loss_fn([torch.tensor([[score]])], [box], target)
        assert loss_fn.metrics["value"] == passes


@pytest.mark.parametrize("name", [n for n in NAMES if not n.startswith("cost")])
def test_an_own_function_trains_like_the_built_in_metric(name: str) -> None:
    batch = scene(5, windows=14)
    metric = sg.DetectionLoss(3, name).objective.metric
    own = as_own(metric, len(batch.scores), get_protocol("voc12"))
    for estimator in ("radius", "mee"):
        options: dict[str, Any] = {"estimator": estimator, "log": False, "radius": 1.0}
        (a, da), (b, db) = (loss_and_gradient(sg.DetectionLoss(3, m, **options), batch) for m in (metric, own))
        assert a == pytest.approx(b, rel=1e-13)
        torch.testing.assert_close(da, db, rtol=1e-11, atol=1e-13)


def test_a_plain_function_is_a_metric() -> None:
    def hits_among_the_first_three(hits: np.ndarray, objects: int) -> float:
        return float(hits[:3].sum())

    loss_fn = sg.DetectionLoss(3, metric=hits_among_the_first_three, balance="none")
    loss, gradient = loss_and_gradient(loss_fn, scene(3))
    assert loss == pytest.approx(1.0 - loss_fn.metrics["value"])
    assert gradient.abs().sum() > 0
    assert "hits_among_the_first_three" in repr(loss_fn)


def test_a_function_below_zero_asks_for_no_logarithm() -> None:
    with pytest.raises(NonFiniteError, match="log=False"):
        loss_and_gradient(sg.DetectionLoss(3, lambda hits, objects: -1.0, log=True), scene(0))


@pytest.mark.parametrize("name", ["f1@threshold=0.5", "cost@threshold=0.5"])
def test_balance_is_refused_where_a_shift_of_the_scores_matters(name: str) -> None:
    assert sg.DetectionLoss(1, name).objective.balance == "none"
    with pytest.raises(ConfigError, match="balance 'none'"):
        sg.DetectionLoss(1, name, balance="class")


@pytest.mark.parametrize("name", [n for n in NAMES if "threshold" not in n])
def test_metrics_without_a_threshold_do_not_feel_a_shift_and_are_balanced(name: str) -> None:
    loss_fn = sg.DetectionLoss(3, name, estimator="radius", radius=1.0)
    assert loss_fn.objective.balance == "class"
    batch = scene(4)
    shifted = batch.with_scores([s + 8.0 for s in batch.scores])
    (a, da), (b, db) = (loss_and_gradient(loss_fn, x) for x in (batch, shifted))
    assert a == b
    torch.testing.assert_close(da, db, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(da.sum(dim=0), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in NAMES if "threshold" in n])
def test_a_threshold_moves_along_with_the_scores(name: str) -> None:
    batch = scene(4)
    moved = name.replace("threshold=0.25", "threshold=8.25")
    shifted = batch.with_scores([s + 8.0 for s in batch.scores])
    (a, da), (b, db) = (loss_and_gradient(sg.DetectionLoss(3, n), x) for n, x in ((name, batch), (moved, shifted)))
    assert a == b
    torch.testing.assert_close(da, db, rtol=1e-12, atol=1e-14)


def test_a_cost_is_followed_in_classes_without_objects() -> None:
    box = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    nothing = [{"boxes": box[:0], "labels": torch.zeros(0, dtype=torch.long)}]
    scores = torch.tensor([[1.0, -1.0]], requires_grad=True)
    loss_fn = sg.DetectionLoss(2, M.Cost(0.0, false_alarm=2.0, miss=5.0), radius=1.5)
    loss = loss_fn([scores], [box], nothing)
    loss.backward()
    assert loss.item() == 1.0  # the mean over classes of 2 and 0
    assert scores.grad is not None
    assert (scores.grad > 0).all()


def test_a_score_floor_above_the_threshold_leaves_the_threshold_where_it_is() -> None:
    batch = scene(6, ties=True)
    metric = F1(threshold=min(float(s.min()) for s in batch.scores) - 1.0)
    # Without NMS, what is far below the threshold does not exist either.
    lowered = batch.with_scores([np.where(s >= 0.5, s, -100.0) for s in batch.scores])
    floored, _ = loss_and_gradient(sg.DetectionLoss(3, metric, score_floor=0.5, nms_threshold=None), batch)
    without, _ = loss_and_gradient(sg.DetectionLoss(3, metric, nms_threshold=None), lowered)
    assert floored == without


@pytest.mark.parametrize("name", NAMES)
def test_nothing_at_all_is_a_loss_on_the_graph(name: str) -> None:
    loss = sg.DetectionLoss(2, name)([], [], [])
    loss.backward()
    assert math.isfinite(loss.item())


@pytest.mark.parametrize(
    ("weights", "error"),
    [
        ([1.0], InputError),
        ([1.0, -1.0], ConfigError),
        ([0.0, 0.0], ConfigError),
        ("ab", InputError),
        ([1.0, math.nan], ConfigError),
    ],
)
def test_class_weights_that_mean_nothing_are_refused(weights: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"class.weight"):
        sg.MAPLoss(2, class_weights=weights)


def test_options_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="worst"):
        sg.DetectionLoss(2, "ap", classes="worst", class_weights=[1.0, 2.0])
    with pytest.raises(ConfigError, match="paper"):
        sg.DetectionLoss(2, "f1", estimator="mee", through_nms="paper")
    with pytest.raises(ConfigError, match="COCO"):
        sg.DetectionLoss(2, "ap@area=small", "voc12")


@pytest.mark.parametrize("name", NAMES)
def test_processes_together_have_the_loss_of_the_joined_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = scene(7, images=4)
    alone, expected = loss_and_gradient(sg.DetectionLoss(3, name), batch)
    scores, boxes, targets = batch.tensors(requires_grad=True)
    halves = [slice(0, 2), slice(2, 4)]

    def part(rank: int) -> tuple[float, list[Tensor]]:
        loss_fn = sg.DistributedDetectionLoss(3, name, gradients="summed")
        own = halves[rank]
        loss = loss_fn(scores[own], boxes[own], targets[own])
        return loss.item(), list(torch.autograd.grad(loss, scores[own]))

    parts = threads(2, monkeypatch).run(part)
    assert all(loss == pytest.approx(alone, rel=1e-13) for loss, _ in parts)
    together = torch.cat([g for _, gradients in parts for g in gradients])
    torch.testing.assert_close(together, expected, rtol=1e-12, atol=1e-14)


def test_a_threshold_of_the_score_works_where_overlaps_are_single_and_must_be_whole() -> None:
    protocol = replace(ULTRALYTICS_UNLIMITED, name="whole", match_thresholds=(1.0,))
    box = torch.tensor([[0.0, 0.0, 100.0, 100.0]])
    loss_fn = sg.DetectionLoss(1, F1(0.5), protocol)
    loss_fn([torch.tensor([[0.75]])], [box], [{"boxes": box, "labels": torch.tensor([0])}])
    assert loss_fn.metrics["value"] == 1.0


@pytest.mark.parametrize("protocol", ["ultralytics", "ultralytics-old", "lvis"])
def test_protocols_of_final_detections_are_refused(protocol: str) -> None:
    with pytest.raises(ConfigError, match="judges final detections"):
        sg.DetectionLoss(1, "f1", protocol)
