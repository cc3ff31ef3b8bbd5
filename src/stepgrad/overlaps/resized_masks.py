"""Masks as tools change them before they compare them: at another size, painted over each other, or cut at their edges."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from stepgrad.overlaps.base import Flags
from stepgrad.overlaps.masks import Ints, Runs, dense_of, join_runs, no_runs, runs_of_dense, take_runs


def resized_runs(runs: Runs, longer: int) -> Runs:
    """The same masks with this many pixels along the longer side of their images: interpolated, and inside where that exceeds
    a half. Smaller ones are enlarged."""
    parts = []
    for i in range(runs.masks):
        scale = longer / float(runs.sizes[i].max())
        size = [max(1, round(side * scale)) for side in runs.sizes[i].tolist()]
        parts.append(runs_of_dense(interpolate(_pixels(runs, i), size, mode="bilinear")[0] > 0.5, "a mask"))
    return join_runs(parts)


def painted_runs(runs: Runs, images: NDArray[np.int32], hide: Flags) -> Runs:
    """The masks of objects, painted one over the other in each image, large ones first: a pixel is the smallest object's.

    Args:
        runs: the masks of all images.
        images: (n,) the image of each.
        hide: (n,) objects that are painted; others stay as they are.
    """
    parts, order = [], []
    for image in np.unique(images):
        rows = np.flatnonzero((images == image) & hide)
        if len(rows):
            parts.append(_painted(runs, rows[np.argsort(-runs.counts[rows], kind="stable")]))
            order.append(rows)
    rest = np.flatnonzero(~hide)
    order.append(rest)
    return take_runs(join_runs([*parts, take_runs(runs, rest)]), np.argsort(np.concatenate(order), kind="stable"))


def _painted(runs: Runs, order: Ints) -> Runs:
    """The masks of one image in the order of their rows, painted in this one."""
    owner = np.full(runs.sizes[order[0]], -1)
    for row in order:
        owner[dense_of(runs, row).astype(np.bool_)] = row
    return runs_of_dense(owner[None] == np.sort(order)[:, None, None], "the masks")


def at_image_size(runs: Runs, resizing: NDArray[np.float64], sizes: Ints, whole: bool) -> Runs:
    """Masks of resized images with borders, brought back to the images.

    Args:
        runs: masks of the resized images.
        resizing: (n, 4) factors of x and y, then what is added, from each image to its masks.
        sizes: (n, 2) height and width of the image of each mask.
        whole: inside is where interpolation gives 1, as where a tool cuts off decimals; otherwise where it exceeds a half.
    """
    parts = [
        runs_of_dense(from_border(_pixels(runs, i)[0], resizing[i].tolist(), sizes[i].tolist(), whole), "a mask")
        for i in range(runs.masks)
    ]
    return join_runs(parts) if parts else no_runs()


def from_border(masks: Tensor, resizing: list[float], size: list[int], whole: bool = False) -> Tensor:
    """Masks (n, h, w) of a resized image with a border, as booleans (n, H, W) of the image itself."""
    if not len(masks):
        return torch.zeros((0, *size), dtype=torch.bool)
    x, y, right, down = resizing
    pixels = masks[None].float()
    if right % 1 or down % 1:  # the border ends inside a pixel: of finer ones it ends between two
        pixels = interpolate(pixels, scale_factor=4, mode="bilinear")
        x, y, right, down = (4.0 * number for number in resizing)
    top, left = round(down - 0.1), round(right - 0.1)
    inner = pixels[..., top : top + max(round(size[0] * y), 1), left : left + max(round(size[1] * x), 1)]
    values = interpolate(inner, size, mode="bilinear")[0] if list(inner.shape[2:]) != size else inner[0]
    return values >= 1.0 if whole else values > 0.5


def _pixels(runs: Runs, i: int) -> Tensor:
    """Mask i as (1, 1, H, W) numbers."""
    return torch.from_numpy(dense_of(runs, i).astype(np.float32))[None, None]
