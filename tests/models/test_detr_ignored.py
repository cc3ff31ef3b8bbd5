"""Regions that nobody judges: queries in them are no background for a DETR, and count in no mAP."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from stepgrad.errors import ConfigError, InputError
from stepgrad.models.detr import set_criterion
from stepgrad.models.detr.ignored import crowds_apart, pairs_of, regions_of
from tests.double_precision import double_precision

WHOLE = torch.tensor([[0.5, 0.5, 1.0, 1.0]])


def test_a_region_without_labels_is_one_of_every_class() -> None:
    boxes, labels = regions_of({"boxes": WHOLE, "ignored_boxes": WHOLE.repeat(2, 1)}, 3)
    assert boxes.shape == (6, 4)
    assert labels.bincount().tolist() == [2, 2, 2]
    with pytest.raises(InputError, match="ignored_labels"):
        regions_of({"boxes": WHOLE, "ignored_boxes": WHOLE, "ignored_labels": torch.tensor([0, 1])}, 3)


def test_crowds_join_the_regions_that_are_there() -> None:
    label = {
        "boxes": WHOLE.repeat(2, 1),
        "class_labels": torch.tensor([2, 1]),
        "iscrowd": torch.tensor([0, 1]),
        "ignored_boxes": WHOLE / 2,
        "ignored_labels": torch.tensor([0]),
    }
    (apart,) = crowds_apart([label])
    assert apart["class_labels"].tolist() == [2]
    assert apart["ignored_labels"].tolist() == [0, 1]
    assert torch.equal(apart["ignored_boxes"], torch.cat([WHOLE / 2, WHOLE]))


def test_candidates_are_every_query_in_every_class() -> None:
    scores = [torch.arange(6.0).view(2, 3), torch.arange(6.0, 9.0).view(1, 3)]
    pairs = pairs_of(scores, [torch.ones(2, 4), 2 * torch.ones(1, 4)])
    assert pairs.scores.tolist() == list(range(9))
    assert pairs.classes.tolist() == [0, 1, 2] * 3
    assert pairs.images.tolist() == [0] * 6 + [1] * 3
    assert pairs.boxes[:, 0].tolist() == [1] * 6 + [2] * 3


class Criterion(nn.Module):
    """As the repositories of DETRs have it: the first queries are matched with the objects in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.num_classes, self.weight_dict, self.matcher = 3, {"loss_bce": 1.0}, None

    def loss_labels(self, outputs: Any, targets: Any, indices: Any) -> dict[str, Tensor]:
        aims = torch.zeros_like(outputs["pred_logits"])
        for i, (queries, objects) in enumerate(indices):
            aims[i, queries, targets[i]["labels"][objects]] = 1.0
        return {"loss_bce": binary_cross_entropy_with_logits(outputs["pred_logits"], aims, reduction="sum")}

    def get_loss(self, loss: str, outputs: Any, targets: Any, indices: Any, num_boxes: float) -> dict[str, Tensor]:
        return {"labels": self.loss_labels}[loss](outputs, targets, indices)

    def forward(self, outputs: Any, targets: Any) -> dict[str, Tensor]:
        indices = [(torch.arange(len(t["labels"])),) * 2 for t in targets]
        return self.get_loss("labels", outputs, targets, indices, 1.0)


class WithoutLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_classes, self.weight_dict = 3, {"loss_bce": 1.0}

    def forward(self, outputs: Any, targets: Any) -> dict[str, Tensor]:
        return {"loss_bce": outputs["pred_logits"].sum()}


def outputs_and_targets() -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 8, 3, generator=g, dtype=torch.float64, requires_grad=True)
    boxes = 0.2 + 0.3 * torch.rand(2, 8, 4, generator=g, dtype=torch.float64)
    targets = [{"boxes": boxes[i, :2].clone(), "labels": torch.tensor([0, 2])} for i in range(2)]
    return {"pred_logits": logits, "pred_boxes": boxes}, targets


@pytest.mark.parametrize("as_crowd", [False, True])
@pytest.mark.parametrize("protocol", ["voc12", "coco"])
def test_a_criterion_does_not_see_unmatched_queries_in_a_region(as_crowd: bool, protocol: str) -> None:
    outputs, targets = outputs_and_targets()
    criterion = set_criterion.train_for_map(Criterion().train(), weight=1.0, protocol=protocol, match_threshold=0.9)
    (before,) = torch.autograd.grad(criterion(outputs, targets)["loss_bce"], outputs["pred_logits"])
    map_before = criterion.map_loss_switch.metrics["map"]
    if as_crowd:
        targets[0]["boxes"] = torch.cat([targets[0]["boxes"], WHOLE.double()])
        targets[0]["labels"] = torch.tensor([0, 2, 1])
        targets[0]["iscrowd"] = torch.tensor([0, 0, 1])
    else:
        targets[0] |= {"ignored_boxes": WHOLE.double(), "ignored_labels": torch.tensor([1])}
    losses = criterion(outputs, targets)
    (after,) = torch.autograd.grad(losses["loss_bce"], outputs["pred_logits"], retain_graph=True)
    hidden = torch.zeros_like(after, dtype=torch.bool)
    hidden[0, :, 1] = True
    assert torch.equal(after, before.masked_fill(hidden, 0.0))
    (of_map,) = torch.autograd.grad(losses["loss_map"], outputs["pred_logits"])
    assert (of_map[0, :, 1] == 0).all()
    assert criterion.map_loss_switch.metrics["objects"] == 4
    assert criterion.map_loss_switch.metrics["map"] >= map_before
    assert not hasattr(pickle.loads(pickle.dumps(criterion)), "handed")
    assert criterion.regions == ()


def test_regions_that_a_criterion_cannot_ignore_are_refused() -> None:
    outputs, targets = outputs_and_targets()
    targets[0]["ignored_boxes"] = WHOLE
    with pytest.raises(ConfigError, match="get_loss"):
        set_criterion.train_for_map(WithoutLayers().train())(outputs, targets)
    targets[0]["iscrowd"] = torch.tensor([1, 0])
    with pytest.raises(InputError, match="denoising"):
        set_criterion.train_for_map(Criterion().train())({**outputs, "dn_outputs": []}, targets)


hf_models = pytest.importorskip("tests.models.hf_models", reason="needs transformers", exc_type=ImportError)


@pytest.fixture(autouse=True)
def _in_double_precision() -> Iterator[None]:
    with double_precision():
        yield


def run(model: nn.Module, regions: dict[str, Tensor] | None = None, crowd: bool = False) -> Any:
    pixels, labels = hf_models.batch(images=3)
    if crowd and regions is not None:
        count = len(regions["ignored_boxes"])
        flags = torch.arange(3 + count) >= 3
        labels[0]["boxes"] = torch.cat([labels[0]["boxes"], regions["ignored_boxes"]])
        labels[0]["class_labels"] = torch.cat([labels[0]["class_labels"], regions["ignored_labels"]])
        labels[0]["iscrowd"] = flags.long()
    elif regions is not None:
        labels[0] |= regions
    torch.manual_seed(1)  # of dropout and denoising queries
    return model(pixel_values=pixels, labels=labels)


def prepared(name: str, **options: Any) -> nn.Module:
    from stepgrad.models.detr.transformers import train_for_map

    return train_for_map(hf_models.make(name), match_threshold=0.005, **options)


def class_loss(output: Any) -> Tensor:
    return next(output.loss_dict[name] for name in ("loss_mal", "loss_vfl", "loss_ce") if name in output.loss_dict)


def everywhere() -> dict[str, Tensor]:
    return {"ignored_boxes": WHOLE.double().repeat(3, 1), "ignored_labels": torch.arange(3)}


every_family = pytest.mark.parametrize("name", hf_models.MODELS)


@every_family
def test_labels_without_regions_train_as_if_nobody_had_asked(name: str) -> None:
    model = prepared(name)
    expected = run(copy.deepcopy(model))
    nothing = {"ignored_boxes": torch.zeros(0, 4), "ignored_labels": torch.zeros(0, dtype=torch.long)}
    for crowd in (False, True):
        found = run(copy.deepcopy(model), nothing, crowd)
        assert all(torch.equal(found.loss_dict[key], expected.loss_dict[key]) for key in expected.loss_dict)


@every_family
def test_queries_in_a_region_of_every_class_are_no_background(name: str) -> None:
    model = prepared(name, enabled=False)
    before, after = run(copy.deepcopy(model)), run(model, everywhere())
    gradients = [torch.autograd.grad(class_loss(output), output.logits)[0] for output in (before, after)]
    rows_before, rows_after = ((g[0] != 0).any(dim=1).sum() for g in gradients)
    groups = 3 if name in ("lw_detr", "rf_detr") else 1
    assert rows_after == 3 * groups < rows_before  # one query is matched with each object
    if groups == 1 and name not in [build.__name__ for build in hf_models.SOFTMAX]:
        torch.testing.assert_close(gradients[0][1:], gradients[1][1:])
    for key in before.loss_dict:  # boxes learn what they learnt
        if "bbox" in key or "giou" in key or "fgl" in key:
            torch.testing.assert_close(before.loss_dict[key], after.loss_dict[key])


@every_family
def test_crowds_are_such_regions_and_no_objects(name: str) -> None:
    model = prepared(name, weight=1.0)
    apart, crowds = run(copy.deepcopy(model), everywhere()), run(model, everywhere(), crowd=True)
    assert all(torch.equal(apart.loss_dict[key], crowds.loss_dict[key]) for key in apart.loss_dict)
    assert model.map_loss_switch.metrics["objects"] == 6


@pytest.mark.parametrize("name", ["detr", "rt_detr", "conditional_detr"])
def test_crowds_are_objects_where_that_is_asked_for_and_after_restore(name: str) -> None:
    from stepgrad.models.detr.transformers import restore

    stock = run(hf_models.make(name), everywhere(), crowd=True)
    for model in (prepared(name, ignore=False, enabled=False), restore(prepared(name))):
        found = run(model, everywhere(), crowd=True)
        assert all(torch.equal(found.loss_dict[key], stock.loss_dict[key]) for key in stock.loss_dict)
    model = pickle.loads(pickle.dumps(prepared(name)))
    again = run(restore(model), everywhere(), crowd=True)
    assert torch.equal(again.loss, stock.loss)


@pytest.mark.parametrize("protocol", ["voc12", "coco"])
def test_held_out_mAP_ignores_regions(protocol: str) -> None:
    from stepgrad.models.held_out import held_out_map

    model = prepared("rt_detr", protocol=protocol)
    pixels, labels = hf_models.batch()
    plain = held_out_map(model, [(pixels, labels)])
    ignoring = held_out_map(model, [(pixels, [label | everywhere() for label in labels])])
    assert ignoring > plain
