"""A DETR's criterion with mAP among its losses, in training only, is otherwise the stock one."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stepgrad as sg
from stepgrad.errors import ConfigError, InputError
from stepgrad.models.detr.set_criterion import restore, train_for_map
from stepgrad.models.switch import FINE_TUNING, find_switch

CLASSES, QUERIES, GROUPS, LOW = 3, 10, 2, 0.05


class SetCriterion(nn.Module):
    """As the repositories of DETRs have it, without a matching."""

    def __init__(self, groups: int = GROUPS) -> None:
        super().__init__()
        self.num_classes = CLASSES
        self.weight_dict = {"loss_ce": 2.0, "loss_bbox": 5.0}
        self.group_detr = groups

    def forward(
        self, outputs: dict[str, Tensor], targets: list[dict[str, Tensor]], num_boxes: float = 1.0
    ) -> dict[str, Tensor]:
        return {
            "loss_ce": outputs["pred_logits"].sigmoid().square().sum() / num_boxes,
            "loss_bbox": outputs["pred_boxes"].square().sum() / num_boxes,
            "cardinality_error": torch.ones(()),
        }


class Holder(nn.Module):
    """What trains, as Lightning's module does."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(1, 1)
        self.criterion = SetCriterion()


def batch(groups: int = GROUPS) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(2, QUERIES * groups, CLASSES, generator=g, dtype=torch.float64, requires_grad=True)
    boxes = 0.2 + 0.5 * torch.rand(2, QUERIES * groups, 4, generator=g, dtype=torch.float64)
    targets = [
        {"boxes": 0.2 + 0.5 * torch.rand(4, 4, generator=g, dtype=torch.float64), "labels": torch.tensor([0, 1, 2, 1])}
        for _ in range(2)
    ]
    return {"pred_logits": logits, "pred_boxes": boxes}, targets


def total(criterion: Any, losses: dict[str, Tensor]) -> Tensor:
    """As all of these repositories add them up."""
    return torch.stack([losses[k] * criterion.weight_dict[k] for k in losses if k in criterion.weight_dict]).sum()


def corners(boxes: Tensor) -> Tensor:
    centre, sides = boxes.split(2, dim=-1)
    return torch.cat([centre - sides / 2, centre + sides / 2], dim=-1)


def test_the_sum_of_losses_grows_by_MAPLoss_of_the_first_group_of_queries() -> None:
    outputs, targets = batch()
    stock, criterion = SetCriterion(), train_for_map(SetCriterion(), weight=0.5, match_threshold=LOW)
    loss_fn = sg.MAPLoss(CLASSES, nms_threshold=None, match_threshold=LOW, **FINE_TUNING)
    by_hand = loss_fn(
        list(outputs["pred_logits"][:, :QUERIES].sigmoid().log()),
        list(corners(outputs["pred_boxes"][:, :QUERIES])),
        [{"boxes": corners(t["boxes"]), "labels": t["labels"]} for t in targets],
    )
    expected = total(stock, stock(outputs, targets)) + 0.5 * by_hand
    found = total(criterion, criterion(outputs, targets))
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(loss, outputs["pred_logits"], retain_graph=True)[0] for loss in (found, expected)]
    torch.testing.assert_close(*gradients)
    assert 0 < find_switch(criterion).metrics["map"] == loss_fn.metrics["map"]


def test_in_eval_mode_the_losses_are_stock() -> None:
    outputs, targets = batch()
    criterion = train_for_map(Holder(), match_threshold=LOW).eval().criterion
    assert criterion(outputs, targets) == SetCriterion()(outputs, targets)


def test_an_automatic_weight_pulls_as_hard_as_the_class_loss_with_its_coefficient() -> None:
    outputs, targets = batch(groups=1)
    holder = train_for_map(Holder(), match_threshold=LOW)
    holder.criterion.group_detr = 1
    losses = holder.criterion(outputs, targets, num_boxes=3.0)  # further arguments reach the stock criterion
    lengths = [
        torch.autograd.grad(loss, outputs["pred_logits"], retain_graph=True)[0].norm()
        for loss in (2.0 * losses["loss_ce"], losses["loss_map"])
    ]
    torch.testing.assert_close(*lengths)


def test_a_switch_that_is_off_only_measures_and_restore_brings_the_stock_criterion_back() -> None:
    outputs, targets = batch()
    holder = train_for_map(Holder(), enabled=False, match_threshold=LOW)
    assert list(holder.criterion(outputs, targets)) == ["loss_ce", "loss_bbox", "cardinality_error"]
    assert find_switch(holder).metrics["map"] > 0
    assert isinstance(pickle.loads(pickle.dumps(holder)).criterion, SetCriterion)
    restore(holder)
    assert type(holder.criterion) is SetCriterion
    assert holder.criterion.weight_dict == SetCriterion().weight_dict
    assert list(holder.state_dict()) == list(Holder().state_dict())


def test_what_is_no_criterion_is_refused() -> None:
    with pytest.raises(InputError, match="SetCriterion itself"):
        train_for_map(nn.Linear(1, 1))
    with pytest.raises(ConfigError, match="Did you mean 'weight'"):
        train_for_map(SetCriterion(), weigth=1.0)
