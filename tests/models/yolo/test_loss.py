"""The loss of a YOLO with mAP beside it is the stock loss plus MAPLoss of all its windows."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

import stepgrad as sg
from stepgrad.errors import ConfigError
from stepgrad.models.switch import FINE_TUNING
from stepgrad.models.yolo.heads import HeadOutput, ranked_pairs, targets_of
from stepgrad.models.yolo.loss import WithMAP, make_switches
from stepgrad.models.yolo.settings import NAME, YoloSettings
from tests.models.yolo.small import EASY, NMS_FREE, SIZE, STRIDES, batch_of, needs_ultralytics, network

pytestmark = needs_ultralytics
EVERY_PAIR = 10_000
NO_PART = -1e4  # a score below any floor


def with_map(model: Any, shown: str = "", **options: Any) -> WithMAP:
    """The criterion of a model, with mAP switched on."""
    settings = YoloSettings(**{"weight": 0.7, "candidates": EVERY_PAIR, "loss": {**FINE_TUNING, **EASY}, **options})
    stock = model.init_criterion()
    switches = make_switches(settings, stock, model.args)
    for switch in switches.values():
        switch.enabled = switch.measure = True
    return WithMAP(stock, switches, shown)


def sources(part: Any) -> list[Tensor]:
    """What the network says of the classes, and maybe of more."""
    return [part["scores"]] if isinstance(part, dict) else list(part)


def raw(part: Any, classes: int) -> tuple[Tensor, Tensor]:
    """(B, K, A) logits and (B, 4R, A) distances."""
    if isinstance(part, dict):
        return part["scores"], part["boxes"]
    joined = torch.cat([level.flatten(2) for level in part], dim=2)
    return joined[:, -classes:], joined[:, :-classes]


def boxes_by_hand(distances: Tensor) -> Tensor:
    """(A, 4) boxes of an image, cut at its edges: distances from the cells' centres to the four sides, in cells."""
    cells = [(x + 0.5, y + 0.5, s) for s in STRIDES for y in range(SIZE // s) for x in range(SIZE // s)]
    x, y, stride = torch.tensor(cells, dtype=torch.float64).T
    bins = distances.detach().reshape(4, -1, distances.shape[-1])
    left, top, right, bottom = (bins.softmax(1) * torch.arange(float(bins.shape[1]))[:, None]).sum(1)
    if bins.shape[1] == 1:  # no distribution
        left, top, right, bottom = bins[:, 0]
    return (torch.stack([x - left, y - top, x + right, y + bottom], dim=1) * stride[:, None]).clamp(0, SIZE)


def gradient_by_hand(
    part: Any, batch: dict[str, Tensor], nms: float | None, best: int | None = None
) -> tuple[list[Tensor], float]:
    """That of MAPLoss, called with lists per image; only the `best` pairs and, of each object, its nearest window."""
    K = 3
    logits, distances = raw(part, K)
    centre, sides = batch["bboxes"].double().split(2, dim=1)
    corners = torch.cat([centre - sides / 2, centre + sides / 2], dim=1) * SIZE
    scores, boxes, targets = [], [], []
    for i in range(len(logits)):
        mine = batch["batch_idx"] == i
        targets.append({"boxes": corners[mine], "labels": batch["cls"][mine, 0].long()})
        windows = boxes_by_hand(distances[i])
        of_image = logsigmoid(logits[i].T)
        if best is not None:
            of_image = left_out_below(of_image, windows, targets[-1], best)
        is_box = (windows[:, 2:] > windows[:, :2]).all(dim=1, keepdim=True)  # distances may be negative
        boxes.append(windows * is_box)
        scores.append(torch.where(is_box, of_image, NO_PART))
    loss_fn = sg.MAPLoss(K, nms_threshold=nms, score_floor=NO_PART / 10, **{**FINE_TUNING, **EASY})
    loss = loss_fn(scores, boxes, targets)
    return list(torch.autograd.grad(loss, sources(part), retain_graph=True)), loss_fn.metrics["map"]


def left_out_below(scores: Tensor, boxes: Tensor, target: dict[str, Tensor], best: int) -> Tensor:
    """The scores, with pairs that take no part below any floor."""
    from torchvision.ops import box_iou

    takes_part = torch.zeros_like(scores, dtype=torch.bool)
    takes_part.view(-1)[scores.flatten().topk(best).indices] = True
    takes_part[box_iou(target["boxes"], boxes).argmax(dim=1), target["labels"]] = True
    return torch.where(takes_part, scores, NO_PART)


def gradients(criterion: Any, preds: Any, batch: dict[str, Tensor], at: list[Tensor]) -> list[Tensor]:
    loss, _ = criterion(preds, batch)
    return list(torch.autograd.grad(loss.sum(), at, retain_graph=True))


def assert_close(found: list[Tensor], expected: list[Tensor], also: list[Tensor]) -> None:
    """Up to the rounding of adding a third and taking it away again."""
    for left, right, third in zip(found, expected, also, strict=True):
        assert (left - right).abs().max() <= 1e-14 * (1 + third.abs().max() + right.abs().max())


@pytest.mark.parametrize("model", ["yolov8n.yaml", "yolo11n.yaml"])
def test_mAP_adds_the_gradient_of_MAPLoss_called_by_hand(model: str) -> None:
    detector, batch = network(model), batch_of()
    preds = detector(batch["img"])
    criterion = with_map(detector)
    stock = gradients(criterion.stock, preds, batch, sources(preds))
    joint = gradients(criterion, preds, batch, sources(preds))
    by_hand, value = gradient_by_hand(preds, batch, nms=0.7)
    assert 0 < value < 1
    assert any(part.count_nonzero() for part in by_hand)
    images = len(batch["img"])
    assert_close(
        [a - b for a, b in zip(joint, stock, strict=True)], [0.7 * images * part for part in by_hand], also=stock
    )
    assert float(items(criterion, preds, batch)[1]) == pytest.approx(value, rel=1e-6)


def items(criterion: WithMAP, preds: Any, batch: dict[str, Tensor]) -> tuple[Any, Tensor]:
    """The stock items, and mAP's."""
    found = criterion(preds, batch)[1]
    return (
        ({k: v for k, v in found.items() if k != NAME}, found[NAME])
        if isinstance(found, dict)
        else (found[:-1], found[-1])
    )


def test_each_head_of_a_network_without_NMS_has_its_own_mAP() -> None:
    detector, batch = network(NMS_FREE), batch_of()
    detector.args.max_det = 40
    preds = detector(batch["img"])
    criterion = with_map(detector, shown="one2one")
    images = len(batch["img"])
    for name, nms, best, gain in (("one2many", 0.7, None, "o2m"), ("one2one", None, 40, "o2o")):
        at = sources(preds[name])
        stock = gradients(criterion.stock, preds, batch, at)
        joint = gradients(criterion, preds, batch, at)
        by_hand, value = gradient_by_hand(preds[name], batch, nms, best)
        assert any(part.count_nonzero() for part in by_hand), name
        scale = 0.7 * images * getattr(criterion.stock, gain, 1.0)
        assert_close([a - b for a, b in zip(joint, stock, strict=True)], [scale * part for part in by_hand], also=stock)
    assert float(items(criterion, preds, batch)[1]) == pytest.approx(value, rel=1e-6)  # that of one2one


def test_the_trunk_learns_from_mAP_through_one2many_only() -> None:
    detector, batch = network(NMS_FREE), batch_of()
    trunk = next(detector.parameters())
    preds = detector(batch["img"])
    criterion = with_map(detector, shown="one2many")
    for name, reaches in (("one2many", True), ("one2one", False)):
        for other, switch in criterion.switches.items():
            switch.enabled = other == name
        with_it, without = (
            torch.autograd.grad(c(preds, batch)[0].sum(), trunk, retain_graph=True)[0]
            for c in (criterion, criterion.stock)
        )
        assert (not torch.equal(with_it, without)) == reaches


@pytest.mark.parametrize("model", ["yolov8n.yaml", NMS_FREE])
def test_an_automatic_weight_makes_both_gradients_equally_long_at_the_class_logits(model: str) -> None:
    detector, batch = network(model), batch_of()
    preds = detector(batch["img"])
    criterion = with_map(detector, shown="one2one" if model == NMS_FREE else "", weight="auto")
    for name in criterion.switches:
        part = preds[name] if name else preds
        at = sources(part)
        stock = gradients(criterion.stock, preds, batch, at)
        joint = gradients(criterion, preds, batch, at)
        lengths = [
            torch.cat([g[:, -3:].flatten() for g in found]).norm()
            for found in (stock, [a - b for a, b in zip(joint, stock, strict=True)])
        ]
        torch.testing.assert_close(*lengths, rtol=1e-6, atol=0.0)


def test_weight_zero_and_a_switch_that_is_off_leave_the_loss_as_it_is() -> None:
    detector, batch = network(), batch_of()
    preds = detector(batch["img"])
    measured = with_map(detector, weight=0)
    off = with_map(detector)
    off.switches[""].enabled = off.switches[""].measure = False
    expected = measured.stock(preds, batch)[0]
    assert torch.equal(measured(preds, batch)[0], expected)
    assert torch.equal(off(preds, batch)[0], expected)
    assert float(items(measured, preds, batch)[1]) > 0
    assert float(items(off, preds, batch)[1]) == 0


def test_validation_sees_the_stock_loss_and_its_items() -> None:
    detector, batch = network(), batch_of()
    criterion = with_map(detector)
    with torch.no_grad():
        preds = detector(batch["img"])
        loss, found = criterion(preds, batch)
        stock, expected = criterion.stock(preds, batch)
    assert torch.equal(loss, stock)
    assert len(found) == len(expected)


def test_a_batch_without_objects_has_no_gradient_from_mAP() -> None:
    detector, batch = network(), batch_of()
    empty = {**batch, **{key: batch[key][:0] for key in ("batch_idx", "cls", "bboxes")}}
    preds = detector(empty["img"])
    criterion = with_map(detector)
    at = sources(preds)
    for joint, stock in zip(
        gradients(criterion, preds, empty, at), gradients(criterion.stock, preds, empty, at), strict=True
    ):
        assert torch.equal(joint, stock)


def test_a_network_that_has_diverged_is_left_to_its_trainer() -> None:
    detector, batch = network(), batch_of()
    with torch.no_grad():
        next(detector.parameters()).fill_(torch.nan)
    preds = detector(batch["img"])
    loss, _ = with_map(detector)(preds, batch)
    assert not loss.sum().isfinite()


def test_half_precision_logits_are_ranked_in_single() -> None:
    logits = torch.randn(2, 3, 84).bfloat16().requires_grad_()
    boxes = torch.tensor([0.0, 0.0, 30.0, 30.0]).expand(2, 84, 4)
    pairs = ranked_pairs(HeadOutput(logits, boxes, [logits], 0), targets_of(batch_of(), boxes.dtype), 50, 1)
    assert pairs.scores.dtype == torch.float32
    pairs.scores.sum().backward()
    assert logits.grad is not None


def test_what_is_asked_of_the_criterion_the_stock_one_answers() -> None:
    criterion = with_map(network())
    assert criterion.hyp is criterion.stock.hyp
    assert not hasattr(criterion, "update")
    nms_free = with_map(network(NMS_FREE), shown="one2one")
    assert hasattr(nms_free, "update") == hasattr(nms_free.stock, "update")
    assert isinstance(copy.deepcopy(criterion), WithMAP)
    assert isinstance(pickle.loads(pickle.dumps(criterion)), WithMAP)


def test_a_criterion_of_another_kind_is_refused_by_name() -> None:
    model = network()
    with pytest.raises(ConfigError, match="loss is Linear, without 'bbox_decode'"):
        make_switches(YoloSettings(), torch.nn.Linear(1, 1), model.args)
