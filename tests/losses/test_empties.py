"""Empty is ordinary: a finite loss on the graph, and a gradient that is zero."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stepgrad as sg

K = 2
BOX = [0.0, 0.0, 8.0, 8.0]
FAR = [50.0, 50.0, 58.0, 58.0]


def image(
    windows: list[list[float]], objects: list[list[float]], labels: list[int], difficult: bool = False
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    scores = torch.linspace(1.0, 0.0, 2 * len(windows)).reshape(-1, K)
    target = {"boxes": torch.tensor(objects).reshape(-1, 4), "labels": torch.tensor(labels, dtype=torch.int64)}
    if difficult:
        target["difficult"] = torch.ones(len(labels), dtype=torch.bool)
    return scores, torch.tensor(windows).reshape(-1, 4), target


NOTHING = image([], [], [])
CASES: dict[str, list[Any]] = {
    "no images": [],
    "one image without windows or objects": [NOTHING],
    "two images without windows or objects": [NOTHING, NOTHING],
    "objects but no windows": [image([], [BOX, FAR], [0, 1])],
    "windows but no objects": [image([BOX, FAR], [], [])],
    "one window, no objects": [image([BOX], [], [])],
    "no window reaches an object": [image([BOX], [FAR], [0])],
    "one window on its object": [image([BOX], [BOX], [0])],
    "one class absent": [image([BOX], [BOX], [1])],
    "only difficult objects": [image([BOX, FAR], [BOX], [0], difficult=True)],
    "an image without windows beside a perfect one": [NOTHING, image([BOX], [BOX], [0])],
    "windows in one image, objects in the other": [image([BOX, FAR], [], []), image([], [BOX], [0])],
}
ESTIMATORS = ["mee", "sde", "radius"]
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS)


def arguments(case: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    scores = [s.clone().requires_grad_() for s, _, _ in case]
    return scores, [b for _, b, _ in case], [t for _, _, t in case]


@every_case
@every_estimator
@pytest.mark.parametrize("through_nms", ["exact", "none"])
def test_loss_is_finite_on_the_graph_and_the_gradient_zero(case: list[Any], estimator: str, through_nms: str) -> None:
    scores, boxes, targets = arguments(case)
    loss = sg.MAPLoss(K, estimator=estimator, radius=0.5, through_nms=through_nms, l4=None)(scores, boxes, targets)
    assert loss.shape == ()
    assert torch.isfinite(loss)
    assert loss.requires_grad
    loss.backward()
    for s in scores:
        assert s.grad is not None
        assert (s.grad == 0).all()  # in none of the cases does any single score change AP


@every_case
@every_estimator
def test_l4_alone_still_pulls(case: list[Any], estimator: str) -> None:
    scores, boxes, targets = arguments(case)
    loss = sg.MAPLoss(K, estimator=estimator, radius=0.5, l4=0.25)(scores, boxes, targets)
    loss.backward()
    for s in scores:
        torch.testing.assert_close(s.grad, s.detach() ** 3)


@every_case
@pytest.mark.parametrize("protocol", ["voc07", "voc12", "coco"])
def test_metric_and_steps_are_defined(case: list[Any], protocol: str) -> None:
    scores, boxes, targets = arguments(case)
    options = {"protocol": protocol, "nms_threshold": 0.3, "match_threshold": 0.5}
    if not case:
        assert float(sg.mean_average_precision(scores, boxes, targets, **options).map) == 0.0
        return
    result = sg.mean_average_precision(scores, boxes, targets, **options)
    assert 0.0 <= float(result.map) <= 1.0
    steps = sg.map_steps(scores, boxes, targets, **options)
    assert steps.value.shape == (K,)
    for s, up, down in zip(scores, steps.up_at, steps.down_at, strict=True):
        assert up.shape == down.shape == s.shape
        assert (up == torch.inf).all()
        assert (down == -torch.inf).all()


@pytest.mark.parametrize("absent", ["zero", "skip"])
def test_absent_class_counts_as_zero_or_not_at_all(absent: str) -> None:
    scores, boxes, targets = arguments(CASES["one class absent"])
    options = {"protocol": "voc12", "nms_threshold": 0.3, "absent_classes": absent}
    value = float(sg.mean_average_precision(scores, boxes, targets, **options).map)
    assert value == (0.5 if absent == "zero" else 1.0)


@every_estimator
def test_a_window_suppressed_for_good_gets_nothing(estimator: str) -> None:
    """Both windows are equally good: whichever is kept, AP is one."""
    boxes = torch.tensor([BOX, BOX])
    scores = torch.tensor([[2.0, 0.0], [1.0, 0.0]], requires_grad=True)
    targets = [{"boxes": torch.tensor([BOX]), "labels": torch.tensor([0])}]
    sg.MAPLoss(K, estimator=estimator, radius=5.0, l4=None, nms_threshold=0.3)([scores], [boxes], targets).backward()
    assert (scores.grad == 0).all()
