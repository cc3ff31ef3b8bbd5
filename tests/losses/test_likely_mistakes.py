"""Input that runs and trains nothing is warned of once; ordinary input, and what is too little to judge, is not."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stepgrad as sg
from stepgrad.errors import LikelyMistakeWarning
from stepgrad.losses.likely_mistakes import LEAST_WINDOWS
from stepgrad.losses.ragged import ScoredPairs, ragged_map_loss

Arguments = tuple[list[Tensor], list[Tensor], list[dict[str, Tensor]]]
SIDE = 100.0  # of the images, in pixels


def ordinary(windows: int = LEAST_WINDOWS, images: int = 2, seed: int = 0) -> Arguments:
    """Log-probabilities of windows of which the first few sit on the objects."""
    g = torch.Generator().manual_seed(seed)
    scores, boxes, targets = [], [], []
    for _ in range(images):
        corner, size = torch.rand(windows, 2, generator=g) * 60, torch.rand(windows, 2, generator=g) * 30 + 10
        boxes.append(torch.cat([corner, corner + size], dim=1))
        scores.append(torch.randn(windows, 2, generator=g).log_softmax(dim=1).requires_grad_())
        targets.append({"boxes": boxes[-1][:3] + 1.0, "labels": torch.tensor([0, 1, 0])})
    return scores, boxes, targets


def complaints(loss_fn: sg.MAPLoss, *batches: Arguments) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in batches:
            loss_fn(*batch)
    assert all(issubclass(w.category, LikelyMistakeWarning) for w in caught)
    return [str(w.message) for w in caught]


def windows_elsewhere(arguments: Arguments) -> Arguments:
    scores, boxes, targets = arguments
    return scores, [b + 10 * SIDE for b in boxes], targets


def windows_normalised(arguments: Arguments) -> Arguments:
    scores, boxes, targets = arguments
    return scores, [b / SIDE for b in boxes], targets


def objects_normalised(arguments: Arguments) -> Arguments:
    scores, boxes, targets = arguments
    return scores, boxes, [{**t, "boxes": t["boxes"] / SIDE} for t in targets]


def all_normalised(arguments: Arguments) -> Arguments:
    return objects_normalised(windows_normalised(arguments))


def windows_normalised_beyond_the_image(arguments: Arguments) -> Arguments:
    """As a detector gives them that does not clip; one object lies in the corner where such windows are."""
    scores, boxes, targets = windows_normalised(arguments)
    corner = {**targets[0], "boxes": torch.cat([torch.tensor([[0.0, 0.0, 9.0, 9.0]]), targets[0]["boxes"][1:]])}
    return scores, [1.2 * b - 0.1 for b in boxes], [corner, *targets[1:]]


def objects_normalised_and_resized(arguments: Arguments) -> Arguments:
    """As torchvision's models make them of normalised ones, whose proposals have the objects among them."""
    scores, boxes, targets = arguments
    targets = [{**t, "boxes": 2.5 * t["boxes"] / SIDE} for t in targets]
    return scores, [torch.cat([b[3:], t["boxes"]]) for b, t in zip(boxes, targets, strict=True)], targets


def probabilities(arguments: Arguments) -> Arguments:
    scores, boxes, targets = arguments
    return [s.exp() for s in scores], boxes, targets


MISTAKES: dict[str, tuple[Callable[[Arguments], Arguments], dict[str, Any], str]] = {
    "another frame": (windows_elsewhere, {}, "No window overlaps any object.*different coordinates"),
    "normalised windows": (windows_normalised, {}, "windows look normalised, the objects do not.*between 0"),
    "normalised objects": (objects_normalised, {}, "objects look normalised, the windows do not"),
    "normalised windows beyond the image": (
        *(windows_normalised_beyond_the_image, {}),
        "windows look normalised, the objects do not",
    ),
    "normalised and resized objects": (
        *(objects_normalised_and_resized, {}),
        "objects look normalised, the windows do not",
    ),
    "normalised and inclusive pixels": (all_normalised, {"protocol": "voc12-devkit"}, "adds 1 pixel to each side"),
    "probabilities": (probabilities, {}, r"\[0, 1\].*radius is 3.*log_softmax"),
}
every_mistake = pytest.mark.parametrize(("change", "options", "says"), MISTAKES.values(), ids=MISTAKES.keys())


@every_mistake
def test_a_likely_mistake_is_said_once_with_its_cause_and_how_to_silence_it(
    change: Callable[[Arguments], Arguments], options: dict[str, Any], says: str
) -> None:
    with pytest.warns(LikelyMistakeWarning, match=f"{says}.*filterwarnings"):
        sg.MAPLoss(2, **options)(*change(ordinary()))
    loss_fn = sg.MAPLoss(2, **options)
    assert len(complaints(loss_fn, *(change(ordinary(seed=seed)) for seed in range(3)))) == 1
    assert complaints(copy.deepcopy(loss_fn), change(ordinary())) == []


@every_mistake
def test_a_few_windows_are_too_little_to_judge_by_and_many_small_batches_are_not(
    change: Callable[[Arguments], Arguments], options: dict[str, Any], says: str
) -> None:
    few = [change(ordinary(windows=LEAST_WINDOWS // 4, images=1, seed=seed)) for seed in range(4)]
    loss_fn = sg.MAPLoss(2, **options)
    assert complaints(loss_fn, *few[:3]) == []
    assert len(complaints(loss_fn, few[3])) == 1


@every_mistake
def test_a_batch_that_shows_all_is_well_ends_the_watch(
    change: Callable[[Arguments], Arguments], options: dict[str, Any], says: str
) -> None:
    loss_fn = sg.MAPLoss(2, **options)
    assert complaints(loss_fn, ordinary(), *(change(ordinary(seed=seed)) for seed in range(3))) == []


@every_mistake
def test_without_a_gradient_nothing_is_said(
    change: Callable[[Arguments], Arguments], options: dict[str, Any], says: str
) -> None:
    with torch.no_grad():
        assert complaints(sg.MAPLoss(2, **options), change(ordinary())) == []


@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("protocol", ["voc12", "coco", "voc12-devkit"])
def test_ordinary_batches_are_passed_in_silence(protocol: str, by_class: bool) -> None:
    scores, boxes, targets = ordinary()
    boxes = [b[:, None].expand(-1, 2, 4) for b in boxes] if by_class else boxes
    assert complaints(sg.MAPLoss(2, protocol=protocol), (scores, boxes, targets)) == []


def test_normalised_boxes_on_both_sides_are_fine_where_boxes_are_continuous() -> None:
    assert complaints(sg.MAPLoss(2, protocol="coco"), all_normalised(ordinary())) == []


@pytest.mark.parametrize("options", [{"estimator": "mee"}, {"radius": 0.2}], ids=str)
def test_probabilities_are_fine_where_lengths_fit_them(options: dict[str, Any]) -> None:
    assert complaints(sg.MAPLoss(2, **options), probabilities(ordinary())) == []


def as_pairs(arguments: Arguments) -> tuple[ScoredPairs, list[dict[str, Tensor]]]:
    """Every window with every class, as detectors without a rectangle of scores hand them to the loss."""
    scores, boxes, targets = arguments
    K = scores[0].shape[1]
    images = torch.cat([torch.full((len(s) * K,), i) for i, s in enumerate(scores)])
    classes = torch.arange(K).repeat(sum(map(len, scores)))
    flat = torch.cat([s.reshape(-1) for s in scores])
    return ScoredPairs(flat, torch.cat([b.repeat_interleave(K, dim=0) for b in boxes]), images, classes), targets


@every_mistake
def test_lists_that_differ_from_class_to_class_are_watched_too(
    change: Callable[[Arguments], Arguments], options: dict[str, Any], says: str
) -> None:
    loss_fn = sg.MAPLoss(2, **options)
    with pytest.warns(LikelyMistakeWarning, match=f"{says}.*filterwarnings"):
        ragged_map_loss(loss_fn, *as_pairs(change(ordinary())))
    ragged_map_loss(loss_fn, *as_pairs(change(ordinary())))  # warnings are errors here: it is said once
    ragged_map_loss(sg.MAPLoss(2, **options), *as_pairs(ordinary()))


def test_normalised_targets_of_a_torchvision_model_are_warned_of() -> None:
    torchvision = pytest.importorskip("torchvision", reason="needs torchvision: pip install .[train]")
    from stepgrad.models.torchvision import train_for_map

    make = torchvision.models.detection.ssdlite320_mobilenet_v3_large
    model = train_for_map(make(weights=None, weights_backbone=None, num_classes=3)).train()
    target = {"boxes": torch.tensor([[0.1, 0.1, 0.4, 0.5], [0.5, 0.5, 0.9, 0.8]]), "labels": torch.tensor([1, 2])}
    with pytest.warns(LikelyMistakeWarning, match="objects look normalised, the windows do not"):
        model([torch.rand(3, 120, 160), torch.rand(3, 120, 160)], [target, target])


def test_scores_that_are_all_alike_say_nothing() -> None:
    scores, boxes, targets = ordinary()
    loss_fn = sg.MAPLoss(2)
    assert complaints(loss_fn, ([torch.zeros_like(s, requires_grad=True) for s in scores], boxes, targets)) == []
    assert len(complaints(loss_fn, probabilities(ordinary()))) == 1


def test_batches_without_windows_or_objects_say_nothing() -> None:
    scores, boxes, targets = windows_elsewhere(ordinary())
    no_objects = [{"boxes": t["boxes"][:0], "labels": t["labels"][:0]} for t in targets]
    no_windows = [s[:0] for s in scores], [b[:0] for b in boxes], targets
    loss_fn = sg.MAPLoss(2)
    assert complaints(loss_fn, ([], [], []), (scores, boxes, no_objects), no_windows) == []
    assert len(complaints(loss_fn, (scores, boxes, targets))) == 1


def test_a_window_in_an_image_without_objects_is_no_sign_of_health() -> None:
    scores, boxes, targets = windows_elsewhere(ordinary())
    boxes[0] = boxes[0] - 10 * SIDE
    targets[0] = {"boxes": targets[0]["boxes"][:0], "labels": targets[0]["labels"][:0]}
    assert len(complaints(sg.MAPLoss(2), (scores, boxes, targets))) == 1
