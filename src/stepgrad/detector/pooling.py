"""Images as a trunk takes them, where the cells of its map lie in the picture, and RoI max-pooling of windows from the map.

Cell i of a map is centred on input pixel `first_centre + stride * i` (pixels count from 0, centres are whole numbers). A
layer with kernel k, stride s, padding p and dilation d on a map of stride S and first centre c gives stride S s and
first centre c + S (d (k - 1) / 2 - p).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import roi_pool

from stepgrad.threads import run_threads

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet, by which torchvision's weights are normalised."""
LEAST_SIDE = 80
"""Smaller inputs are padded to this: every torchvision trunk makes at least one cell of it."""
_LEAST_PIECE = 16  # windows that are worth a thread


class Features(NamedTuple):
    """A trunk's output for one image; it can be passed instead of the image if the trunk does not train."""

    map: Tensor
    """(C, h, w)"""
    scale: tuple[float, float]
    """From image pixels to the trunk's input pixels, along x and y."""
    size: tuple[int, int] | None = None
    """Height and width of the image; a model that moves boxes clips them to it."""


def scaled_size(height: int, width: int, shortest_side: int | None, longest_side: int | None) -> tuple[int, int]:
    """Height and width after scaling to a shortest side, but never beyond a longest side.

    >>> scaled_size(375, 500, 600, 1000), scaled_size(300, 900, 600, 1000), scaled_size(300, 900, None, None)
    ((600, 800), (333, 1000), (300, 900))
    """
    scale = 1.0 if shortest_side is None else shortest_side / min(height, width)
    if longest_side is not None:
        scale = min(scale, longest_side / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def trunk_input(image: Tensor, size: tuple[int, int]) -> Tensor:
    """(3, H, W) uint8, or float in [0, 1], as (3, *size) normalised float32, padded where it is very small.

    Shrinking averages (antialias), so that large photographs keep no moiré; enlarging is plain bilinear.
    """
    pixels = image.float() / 255 if image.dtype == torch.uint8 else image.float()
    if tuple(pixels.shape[1:]) != size:
        pixels = F.interpolate(pixels[None], size=size, mode="bilinear", antialias=True)[0]
    mean, std = (pixels.new_tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    normal = (pixels - mean) / std
    right, below = max(0, LEAST_SIDE - size[1]), max(0, LEAST_SIDE - size[0])
    return F.pad(normal, (0, right, 0, below)) if right or below else normal


@dataclass(frozen=True)
class Geometry:
    """A map's place in the picture, the same along both axes."""

    stride: int = 1
    first_centre: float = 0.0

    def after(self, kernel: int, stride: int, padding: int, dilation: int = 1) -> Geometry:
        """The geometry of the map a layer makes of this one.

        >>> Geometry().after(kernel=11, stride=4, padding=2).after(kernel=3, stride=2, padding=0)
        Geometry(stride=8, first_centre=7.0)
        """
        reach = dilation * (kernel - 1) / 2
        return Geometry(self.stride * stride, self.first_centre + self.stride * (reach - padding))

    def cells(self, windows: Tensor) -> Tensor:
        """Windows (continuous x1, y1, x2, y2 in input pixels) in units of cells: of their first and last pixel.

        >>> Geometry(16, 0.0).cells(torch.tensor([[0.0, 0.0, 17.0, 33.0]]))
        tensor([[0., 0., 1., 2.]])
        """
        last_pixel = windows.new_tensor([0.0, 0.0, 1.0, 1.0])
        return (windows - last_pixel - self.first_centre) / self.stride


def pool_windows(
    features: Sequence[Features], windows: Sequence[Tensor], geometry: Geometry, side: int
) -> list[Tensor]:
    """Per image, (N, C * side * side): the largest activation in each of side x side parts of a window.

    Windows are clipped to the map, so that one at the rim takes the cells next to it. torchvision's kernel uses one thread, so
    the windows of an image are pooled in pieces of at most a thread's share.
    """
    rois = [_cells_inside(f, w, geometry) for f, w in zip(features, windows, strict=True)]
    on_cpu = all(f.map.device.type == "cpu" for f in features)
    threads = torch.get_num_threads() if on_cpu else 1
    share = max(_LEAST_PIECE, -(-sum(map(len, rois)) // threads))
    pieces = [(i, piece) for i, cells in enumerate(rois) for piece in cells.split(share)]
    gradient, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def pool(job: tuple[int, Tensor]) -> Tensor:
        image, piece = job
        with torch.inference_mode(inference), torch.set_grad_enabled(gradient):  # a thread starts with its own modes
            return pool_cells(features[image].map, piece, side)

    pooled = run_threads(pool, pieces, threads)
    return [
        torch.cat([p for (i, _), p in zip(pieces, pooled, strict=True) if i == image]) for image in range(len(rois))
    ]


def _cells_inside(features: Features, windows: Tensor, geometry: Geometry) -> Tensor:
    """(N, 4) windows in cells, between the map's first and last cell."""
    height, width = features.map.shape[-2:]
    wide = windows.double()
    cells = geometry.cells(wide * wide.new_tensor(features.scale * 2)).float()  # one rounding, at the end
    last = cells.new_tensor([width - 1, height - 1] * 2)
    return torch.minimum(cells.clamp(min=0.0), last).to(features.map.device, non_blocking=True)


def pool_cells(feature_map: Tensor, cells: Tensor, side: int) -> Tensor:
    """(N, C * side * side) of windows in units of the map's cells; what lies beyond the map counts as 0.

    torchvision's kernel rounds both ends of a window to cells and takes a cell at least; float32 under autocast too.
    """
    return roi_pool(feature_map[None].float(), [cells], output_size=side, spatial_scale=1.0).flatten(1)
