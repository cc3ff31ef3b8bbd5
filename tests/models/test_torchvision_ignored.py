"""Crowds are regions that nobody judges: no objects and no background for any loss of a torchvision detector."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepgrad.errors import InputError
from stepgrad.models.held_out import held_out_map
from stepgrad.models.torchvision import train_for_map
from tests.models.tiny import (
    CLASSES,
    DENSE,
    FAMILIES,
    SIZE,
    TWO_STAGE,
    WITHOUT_BACKGROUND,
    classification_key,
    permissive,
    tiny_batch,
    tiny_model,
)

SEEN_BY_CLASS = ["loss_objectness", "loss_classifier", "classification"]  # the losses that know of background


def with_regions(
    family: str, regions: list[list[float]], columns: list[int]
) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """The batch with crowds in its first image."""
    images, targets = tiny_batch(family)
    first = 0 if family in WITHOUT_BACKGROUND else 1
    target, count = targets[0], len(regions)
    more = {"boxes": torch.tensor(regions).reshape(-1, 4), "labels": torch.tensor(columns, dtype=torch.long) + first}
    for key in ("masks", "keypoints"):
        if key in target:
            more[key] = target[key][:1].expand(count, *target[key].shape[1:])
    crowd = torch.cat([torch.zeros(len(target["labels"]), dtype=torch.long), torch.ones(count, dtype=torch.long)])
    targets[0] = {key: torch.cat([target[key], more[key]]) for key in target} | {"iscrowd": crowd}
    return images, targets


def losses_of(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    torch.manual_seed(7)  # the stock models sample with the global generator
    return model(*batch)


WHOLE = [[0.0, 0.0, SIZE, SIZE]] * CLASSES, list(range(CLASSES))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", ["mix", "replace"])
def test_targets_without_crowds_train_as_if_nobody_had_asked(family: str, mode: str) -> None:
    model = train_for_map(tiny_model(family), mode=mode)
    expected = losses_of(copy.deepcopy(model), tiny_batch(family))
    found = losses_of(model, with_regions(family, [], []))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_crowd_is_no_object_of_any_loss_and_hides_windows_from_those_of_background(family: str) -> None:
    model = train_for_map(tiny_model(family), enabled=False)
    expected = losses_of(copy.deepcopy(model), tiny_batch(family))
    found = losses_of(model, with_regions(family, *WHOLE))
    for name in expected:
        if name in SEEN_BY_CLASS:
            assert found[name] < expected[name]
        else:
            assert torch.equal(found[name], expected[name])
    model.map_loss_switch.measure = False
    again = losses_of(model, with_regions(family, *WHOLE))
    assert all(torch.equal(again[name], found[name]) for name in expected)


def gradient_at_logits(model: nn.Module, family: str, batch: Any) -> Tensor:
    """(windows, columns) of the first image, of the classification loss."""
    seen: list[Tensor] = []

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        output = output[0] if isinstance(output, tuple) else output
        output.retain_grad()
        seen.append(output)

    layer = model.roi_heads.box_predictor.cls_score if family in TWO_STAGE else model.head.classification_head
    hook = layer.register_forward_hook(keep)
    losses_of(model, batch)[classification_key(family)].backward()
    hook.remove()
    gradient = seen[0].grad
    return gradient[: len(gradient) // 2] if family in TWO_STAGE else gradient[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_windows_in_a_region_of_every_class_have_no_gradient_unless_they_show_an_object(family: str) -> None:
    model = train_for_map(tiny_model(family), enabled=False)
    before = gradient_at_logits(copy.deepcopy(model), family, tiny_batch(family))
    after = gradient_at_logits(model, family, with_regions(family, *WHOLE))
    objects = (before < 0)[:, 0 if family in WITHOUT_BACKGROUND else 1 :].any(dim=1)  # pushed up in some class
    assert objects.any()
    assert torch.equal((after != 0).any(dim=1), objects)
    assert ((before != 0).any(dim=1) & ~objects).any()


@pytest.mark.parametrize("family", ["retinanet", "fcos", "faster_rcnn"])
def test_a_region_of_one_class_hides_that_class_alone(family: str) -> None:
    model = train_for_map(tiny_model(family), enabled=False)
    before = gradient_at_logits(copy.deepcopy(model), family, tiny_batch(family))
    after = gradient_at_logits(model, family, with_regions(family, [[0.0, 0.0, SIZE, SIZE]], [1]))
    column = 1 if family in WITHOUT_BACKGROUND else 2
    others = [c for c in range(before.shape[1]) if c != column]
    assert ((after[:, column] == 0) | (before[:, column] < 0)).all()
    if family in WITHOUT_BACKGROUND:  # classes are apart
        assert torch.equal(after[:, others], before[:, others])
    else:
        assert ((before != 0).any(dim=1) == (after[:, others] != 0).any(dim=1)).all()


@pytest.mark.parametrize("family", ["retinanet", "fcos"])
def test_windows_beyond_a_region_keep_their_gradient(family: str) -> None:
    model = train_for_map(tiny_model(family), enabled=False)
    before = gradient_at_logits(copy.deepcopy(model), family, tiny_batch(family))
    half = [[0.0, 0.0, SIZE, SIZE / 2]] * CLASSES
    after = gradient_at_logits(model, family, with_regions(family, half, list(range(CLASSES))))
    assert torch.equal(after, torch.where(after == 0, 0.0, before))
    assert 0 < (after == 0).sum() < after.numel()
    assert ((after == 0) <= (before >= 0)).all()


@pytest.mark.parametrize("family", ["retinanet", "fcos", "ssd"])
@pytest.mark.parametrize("protocol", ["voc12", "coco"])
def test_mAP_counts_no_window_in_a_region_and_the_held_out_one_does_neither(family: str, protocol: str) -> None:
    model = train_for_map(permissive(family).train(), protocol=protocol, match_threshold=0.1)
    maps = []
    for batch in (tiny_batch(family), with_regions(family, *WHOLE)):
        losses_of(model, batch)
        metrics = model.map_loss.metrics
        maps.append((metrics["map"], held_out_map(model, [batch])))
        assert metrics["objects"] == 8
    assert maps[1][0] > maps[0][0]  # no false alarm in the first image any more
    assert maps[1][1] > maps[0][1]


@pytest.mark.parametrize("family", [*DENSE, "faster_rcnn"])
def test_crowds_are_objects_where_that_is_asked_for(family: str) -> None:
    batch = with_regions(family, [[4.0, 4.0, 40.0, 40.0]], [0])
    stock = losses_of(tiny_model(family), batch)
    found = losses_of(train_for_map(tiny_model(family), ignore=False), batch)
    assert all(torch.equal(found[name], stock[name]) for name in stock)


@pytest.mark.parametrize(("family", "task"), [("mask_rcnn", "masks"), ("keypoint_rcnn", "keypoints")])
def test_masks_and_poses_ignore_crowds_too(family: str, task: str) -> None:
    model = train_for_map(tiny_model(family), task=task if task == "masks" else _two_points(), weight=1.0)
    losses = losses_of(model, with_regions(family, *WHOLE))
    sum(losses.values()).backward()
    assert model.map_loss.metrics["objects"] == 8


def _two_points() -> Any:
    import stepgrad as sg

    return sg.overlaps.Keypoints([0.1, 0.1])


def test_flags_that_fit_no_labels_are_refused() -> None:
    images, targets = tiny_batch("retinanet")
    targets[0]["iscrowd"] = torch.tensor([True])
    with pytest.raises(InputError, match="image 0: expected 'iscrowd'"):
        train_for_map(tiny_model("retinanet"))(images, targets)
