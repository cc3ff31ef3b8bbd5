"""train_for_map with task="masks" or "keypoints": the class score learns how well the predicted mask or pose fits."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads
from torchvision.models.detection.roi_heads import heatmaps_to_keypoints, paste_masks_in_image

import stepgrad as sg
from stepgrad.data import ShapesDataset
from stepgrad.errors import ConfigError, InputError
from stepgrad.losses.ragged import ScoredPairs
from stepgrad.models.held_out import held_out_map
from stepgrad.models.torchvision import detector as _detector
from stepgrad.models.torchvision import keep_best, train_for_map
from stepgrad.models.torchvision.shaped import best_pairs, mask_overlaps
from tests.models.tiny import CHANNELS, CLASSES, KEYPOINTS, SIZE, classifier_weight, tiny_batch, tiny_model

SIGMAS = [0.05, 0.2]
TASKS = {"mask_rcnn": "masks", "keypoint_rcnn": sg.overlaps.Keypoints(SIGMAS)}
FAMILIES = list(TASKS)
EVERYTHING = 10**6


def batch_of(family: str, seed: int = 1, size: int = SIZE) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Objects whose masks are ellipses, a crowd among them, or whose keypoints lie apart, some of them not labelled."""
    images, targets = tiny_batch(family, seed=seed)
    images = [nn.functional.interpolate(image[None], size)[0] for image in images]
    for target in targets:
        target["boxes"] = target["boxes"] * size / SIZE
        low, high = target["boxes"].split(2, dim=1)
        middle, half = (low + high) / 2, (high - low) / 2
        target["area"] = half.prod(dim=1) * 3
        if family == "mask_rcnn":
            place = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="xy"), dim=-1) + 0.5
            apart = (place - middle[:, None, None]) / half[:, None, None]
            target["masks"] = (apart.square().sum(dim=-1) < 1).to(torch.uint8)
            target["iscrowd"] = torch.tensor([0, 0, 0, 1])
        else:
            target["keypoints"][..., :2] = torch.stack([middle - half / 2, middle + half / 3], dim=1)
            target["keypoints"][0, 1, 2] = 0
            target["keypoints"][1, :, 2] = 0
    return images, targets


def losses_of(model: nn.Module, family: str, **options: Any) -> dict[str, Tensor]:
    torch.manual_seed(7)  # the stock models sample with the global generator
    return model(*batch_of(family, **options))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[ScoredPairs]:
    """The candidates of every call."""
    found: list[ScoredPairs] = []
    original = _detector.ragged_map_loss

    def spy(loss_fn: sg.MAPLoss, candidates: ScoredPairs, targets: Any) -> Tensor:
        found.append(candidates)
        return original(loss_fn, candidates, targets)

    monkeypatch.setattr(_detector, "ragged_map_loss", spy)
    return found


def test_overlaps_of_masks_are_those_of_the_masks_that_torchvision_pastes() -> None:
    g = torch.Generator().manual_seed(3)
    low = torch.rand(40, 2, generator=g) * torch.tensor([50.0, 30.0])
    boxes = torch.cat([low, low + torch.rand(40, 2, generator=g) * 25], dim=1)
    boxes[::4, :2], boxes[1::4, 2:] = 0.0, torch.tensor([60.0, 40.0])  # at the edges of the image
    boxes[2, 2:] = boxes[2, :2] + 0.02
    probabilities = torch.rand(40, 14, 14, generator=g)
    target = {"masks": torch.rand(5, 40, 60, generator=g) < 0.6, "iscrowd": torch.tensor([0, 1, 0, 0, 0])}
    target["masks"][4] = False
    pasted = paste_masks_in_image(probabilities[:, None], boxes, (40, 60))[:, 0] > 0.5
    expected = sg.overlaps.Masks()(pasted, target["masks"], target["iscrowd"])
    assert (expected > 0.2).sum() > 20
    assert torch.equal(mask_overlaps(probabilities, boxes, target), expected)


def oks_by_hand(points: Tensor, target: dict[str, Tensor], areas: Tensor) -> Tensor:
    """(n, G) for objects that have labelled keypoints."""
    squares = (points[:, None, :, :2] - target["keypoints"][None, :, :, :2]).double().square().sum(dim=-1)  # (n, G, k)
    alike = torch.exp(-squares / (2 * areas[:, None] * (2 * torch.tensor(SIGMAS)) ** 2))
    labelled = target["keypoints"][:, :, 2] > 0
    return (alike * labelled).sum(dim=2) / labelled.sum(dim=1).clamp(min=1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", ["mix", "replace"])
def test_overlaps_are_those_of_the_models_own_predictions(family: str, mode: str, seen: list[ScoredPairs]) -> None:
    model = train_for_map(tiny_model(family), mode=mode, task=TASKS[family], topk=20, protocol="coco")
    features: dict[str, Tensor] = {}
    model.backbone.register_forward_hook(lambda _module, _inputs, out: features.update(out))
    losses_of(model, family, size=2 * SIZE)  # the model makes them smaller by half
    images, targets = model.transform(*batch_of(family, size=2 * SIZE))
    (pairs,) = seen
    heads = model.roi_heads.eval()
    assert pairs.overlaps is not None
    for i, target in enumerate(targets):
        mine = pairs.images == i
        boxes, labels = pairs.boxes[mine], pairs.classes[mine] + 1
        lists = [boxes if i == j else boxes[:0] for j in range(len(targets))]
        found = pairs.overlaps[i]
        assert len(found) >= 20
        with torch.no_grad():
            if family == "mask_rcnn":
                logits = heads.mask_predictor(heads.mask_head(heads.mask_roi_pool(features, lists, images.image_sizes)))
                own = logits.sigmoid()[torch.arange(len(labels)), labels][:, None]
                masks = paste_masks_in_image(own, boxes, images.image_sizes[i])[:, 0] > 0.5
                expected = sg.overlaps.Masks()(masks, target["masks"], target["iscrowd"])
                assert torch.equal(found, expected)
            else:
                pooled = heads.keypoint_roi_pool(features, lists, images.image_sizes)
                points = heatmaps_to_keypoints(heads.keypoint_predictor(heads.keypoint_head(pooled)), boxes)[0]
                labelled = (target["keypoints"][:, :, 2] > 0).any(dim=1)
                expected = oks_by_hand(points, target, target["area"] / 4)
                np.testing.assert_allclose(found[:, labelled], expected[:, labelled], rtol=1e-5, atol=1e-12)
    assert max(float(table.max()) for table in pairs.overlaps) > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_reaches_the_class_score_only_and_all_other_losses_are_stock(family: str) -> None:
    stock = tiny_model(family)
    options = {"weight": 1.0, "match_threshold": 0.1, "ignore": False}  # the batch has a crowd, for stock an object
    model = train_for_map(copy.deepcopy(stock), task=TASKS[family], **options)
    expected, found = losses_of(stock, family), losses_of(model, family)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    found["loss_map"].backward()
    assert classifier_weight(model).grad.abs().sum() > 0
    with_gradient = [name for name, p in model.roi_heads.named_parameters() if p.grad is not None and p.grad.any()]
    assert all(name.startswith(("box_head", "box_predictor.cls_score")) for name in with_gradient)


def test_batch_normalisation_of_the_mask_head_does_not_see_the_candidates() -> None:
    heads = MaskRCNNHeads(CHANNELS, (16,), 1, norm_layer=nn.BatchNorm2d)
    stock = tiny_model("mask_rcnn", mask_head=heads)
    model = train_for_map(copy.deepcopy(stock), task="masks", ignore=False)  # the batch has a crowd
    for one in (stock, model):
        losses_of(one, "mask_rcnn")
    statistics = {
        name: value for name, value in stock.state_dict().items() if "mask_head" in name and "running" in name
    }
    assert statistics
    assert all(torch.equal(model.state_dict()[name], value) for name, value in statistics.items())
    assert model.roi_heads.mask_head.training


def test_the_best_pairs_of_each_image_take_part_and_the_positives() -> None:
    scores, images = torch.tensor([0.1, 0.9, 0.5, 0.2, 0.7]), torch.tensor([0, 0, 0, 1, 1])
    pairs = ScoredPairs(scores, torch.zeros(5, 4), images, torch.zeros(5).long())
    positive = torch.tensor([True, False, False, False, False])
    assert best_pairs(pairs, positive, 1, images=3).tolist() == [0, 1, 4]


@pytest.mark.parametrize("family", FAMILIES)
def test_an_image_without_objects_trains(family: str) -> None:
    model = train_for_map(tiny_model(family), task=TASKS[family])
    images, targets = batch_of(family)
    targets[0] = {name: value[:0] for name, value in targets[0].items()}
    assert model(images, targets)["loss_map"].isfinite()


def test_a_pose_without_labelled_keypoints_is_not_an_object_to_find() -> None:
    model = train_for_map(tiny_model("keypoint_rcnn"), task=TASKS["keypoint_rcnn"])
    losses_of(model, "keypoint_rcnn")
    assert model.map_loss.metrics["objects"] == 6  # of eight


@pytest.mark.parametrize("family", FAMILIES)
def test_held_out_map_is_that_of_the_detected_shapes(family: str) -> None:
    model = tiny_model(family, box_score_thresh=0.0, box_detections_per_img=50)
    train_for_map(model, task=TASKS[family], match_threshold=0.1)
    data = [batch_of(family, seed=seed) for seed in (11, 12)]
    evaluator = sg.Evaluator(CLASSES, model.map_loss.objective.protocol, task=TASKS[family])
    with torch.no_grad():
        for images, targets in data:
            found = copy.deepcopy(model).eval()(images)
            shown = [{**f, "masks": f["masks"][:, 0] > 0.5} if "masks" in f else f for f in found]
            evaluator.update(
                [{**f, "labels": f["labels"] - 1} for f in shown], [{**t, "labels": t["labels"] - 1} for t in targets]
            )
    of_boxes = held_out_map(train_for_map(model, match_threshold=0.1), data)
    assert 0.0 < held_out_map(train_for_map(model, task=TASKS[family], match_threshold=0.1), data) != of_boxes
    assert held_out_map(model, data) == evaluator.compute().map
    assert (
        f"({model.map_loss.objective.protocol.name}, {model.map_loss.objective.overlap.key})"
        in keep_best(model, data).summary
    )


def test_training_the_class_layer_for_masks_of_shapes_lowers_the_loss_of_its_batch() -> None:
    data = ShapesDataset("train", length=4, size=SIZE, task="masks")
    batch = [data[i] for i in range(len(data.ids))]
    images = [image.float() / 255 for image, _ in batch]
    targets = [{"boxes": t["boxes"], "labels": t["labels"] % CLASSES + 1, "masks": t["masks"].byte()} for _, t in batch]
    options = {"task": "masks", "mode": "replace", "weight": 1.0, "match_threshold": 0.1, "topk": EVERYTHING}
    model = train_for_map(tiny_model("mask_rcnn").requires_grad_(False), **options)
    layer = model.roi_heads.box_predictor.cls_score.requires_grad_(True)
    optimizer = torch.optim.SGD(layer.parameters(), 0.5)
    losses = []
    for _ in range(25):
        torch.manual_seed(0)  # the same windows, whose masks and boxes are fixed
        losses.append(model(images, targets)["loss_classifier"])
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize(
    ("family", "options", "expected"),
    [
        ("faster_rcnn", {"task": "masks"}, "Expected a MaskRCNN for task 'masks' but FasterRCNN"),
        ("mask_rcnn", {"task": "keypoints"}, "Expected a KeypointRCNN for task 'keypoints' but MaskRCNN"),
        ("retinanet", {"task": "masks"}, "Expected a MaskRCNN"),
        ("mask_rcnn", {"task": "oriented"}, "'boxes', 'masks' or 'keypoints'"),
        ("mask_rcnn", {"task": sg.overlaps.Masks(nms="own")}, "nms='boxes'"),
        ("keypoint_rcnn", {"task": "keypoints"}, f"each of the model's {KEYPOINTS} keypoints but there are 17"),
        ("mask_rcnn", {"task": "masks", "loss_fn": sg.MAPLoss(CLASSES)}, r"made with overlap=Masks"),
        ("mask_rcnn", {"overlap": sg.overlaps.Masks()}, "'overlap'"),
        ("mask_rcnn", {"topk": 5}, "dense"),
    ],
)
def test_a_task_that_does_not_fit_is_refused(family: str, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        train_for_map(tiny_model(family), **options)


def test_targets_without_masks_are_refused() -> None:
    model = train_for_map(tiny_model("mask_rcnn"), task="masks")
    images, targets = batch_of("mask_rcnn")
    del targets[1]["masks"]
    with pytest.raises(InputError, match=r"image 1: .*'masks' \(G, H, W\)"):
        model(images, targets)
