"""Checks of the images, proposals and targets that the detector is called with; each error names the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stepgrad.detector.pooling import Features
from stepgrad.errors import InputError, NonFiniteError
from stepgrad.metric.batch import Target, make_batch


def check_lists(**lists: Sequence[Any]) -> None:
    """Raise InputError unless all are lists of the same length."""
    for name, entries in lists.items():
        if isinstance(entries, (Tensor, Mapping, Features)) or not isinstance(entries, Sequence):
            raise InputError(f"Expected {name} to be a list with one entry per image but got {type(entries).__name__}.")
    if len({len(entries) for entries in lists.values()}) > 1:
        lengths = ", ".join(f"{len(entries)} {name}" for name, entries in lists.items())
        raise InputError(f"Expected one entry per image in each list but got {lengths}.")


def check_images(images: Sequence[Tensor | Features], channels: int) -> None:
    """Raise InputError unless each is a (3, H, W) uint8 image, a float one in [0, 1], or Features of this trunk."""
    for i, image in enumerate(images):
        if isinstance(image, Features):
            _check_features(image, channels, i)
        elif not isinstance(image, Tensor) or image.ndim != 3 or len(image) != 3 or image.numel() == 0:
            raise InputError(f"image {i}: expected a tensor of shape (3, H, W) but got {_describe(image)}.")
        elif image.dtype != torch.uint8:
            _check_range(image, i)


def image_size(image: Tensor | Features, i: int) -> tuple[int, int]:
    """Height and width of an image, which its features have to know."""
    size = image.size if isinstance(image, Features) else image.shape[1:]
    if size is None:
        raise InputError(
            f"image {i}: expected features with the size of their image, to clip boxes to it, but got None; "
            "pass size=(height, width)."
        )
    height, width = size
    return int(height), int(width)


def _check_features(features: Features, channels: int, i: int) -> None:
    shape = tuple(features.map.shape)
    if len(shape) != 3 or shape[0] != channels or 0 in shape:
        raise InputError(
            f"image {i}: expected features of shape ({channels}, h, w) but got {shape}; were they made by another trunk?"
        )


def _check_range(image: Tensor, i: int) -> None:
    if not image.is_floating_point():
        raise InputError(f"image {i}: expected a uint8 or floating-point image but got {image.dtype}.")
    low, high = torch.stack(torch.aminmax(image.detach())).tolist()  # NaN comes through
    if not (low > float("-inf") and high < float("inf")):
        raise NonFiniteError(f"image {i}: expected finite pixels but they go from {low} to {high}.")
    if low < -1e-3 or high > 1.001:
        raise InputError(
            f"image {i}: expected a uint8 image, or a float one with pixels in [0, 1], but they go from {low:g} to "
            f"{high:g}; divide by 255, and leave normalising to the model."
        )


def windows_on_cpu(proposals: Sequence[Tensor]) -> list[Tensor]:
    """(N, 4) float32 windows of each image on the CPU, checked."""
    return [_windows(given, i) for i, given in enumerate(proposals)]


def _windows(given: Tensor, i: int) -> Tensor:
    none = isinstance(given, Tensor) and given.numel() == 0
    if not isinstance(given, Tensor) or (not none and (given.ndim != 2 or given.shape[1] != 4)):
        raise InputError(f"image {i}: expected proposals of shape (N, 4) but got {_describe(given)}.")
    if given.dtype == torch.bool or given.is_complex():
        raise InputError(f"image {i}: expected proposals of a real dtype but got {given.dtype}.")
    windows = given.detach().cpu().reshape(-1, 4).float()
    finite = windows.isfinite().all(dim=1)
    if not finite.all():
        first = int(finite.int().argmin())
        raise NonFiniteError(f"image {i}: expected finite proposals but proposal {first} is {windows[first].tolist()}.")
    empty = (windows[:, 2] <= windows[:, 0]) | (windows[:, 3] <= windows[:, 1])
    if empty.any():
        first = int(empty.int().argmax())
        raise InputError(
            f"image {i}: expected proposals (x1, y1, x2, y2) with x2 > x1 and y2 > y1 but proposal {first} is "
            f"{windows[first].tolist()}."
        )
    return windows


def check_finite(scores: Tensor, image: int) -> None:
    """Raise NonFiniteError before a NaN wins NMS."""
    bad = ~scores.isfinite()
    if bad.any():
        window, label = bad.nonzero()[0].tolist()
        raise NonFiniteError(
            f"image {image}: expected finite scores but window {window} has {scores[window, label].item()} for class "
            f"{label}; look for a diverged model."
        )


def objects_on_cpu(targets: Sequence[Target], num_classes: int) -> list[tuple[Tensor, Tensor]]:
    """Per image, (G, 4) float32 boxes and (G,) labels of its objects, checked. COCO's crowd regions are no objects."""
    no_scores, no_boxes = torch.zeros(0, num_classes), torch.zeros(0, 4)
    batch = make_batch([no_scores] * len(targets), [no_boxes] * len(targets), targets, num_classes)
    single = ~batch.crowd
    boxes, labels = (torch.from_numpy(a[single]) for a in (batch.object_boxes, batch.object_labels))
    images = torch.from_numpy(batch.object_images[single])
    return [(boxes[images == i].float(), labels[images == i]) for i in range(len(targets))]


def _describe(value: object) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
