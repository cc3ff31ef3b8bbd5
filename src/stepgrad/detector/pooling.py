"""RoI max-pooling of windows, on several threads where torchvision's kernel uses one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.ops import roi_pool

from stepgrad.detector.geometry import Geometry
from stepgrad.detector.resize import Features, scale_windows
from stepgrad.threads import run_threads

_LEAST_PIECE = 16  # windows that are worth a thread


def pool_windows(
    features: Sequence[Features], windows: Sequence[Tensor], geometry: Geometry, side: int
) -> list[Tensor]:
    """Per image, (N, C * side * side): the largest activation in each of side x side parts of a window.

    Windows are clipped to the map, so that one at the rim takes the cells next to it.
    """
    rois = [_cells_inside(f, w, geometry) for f, w in zip(features, windows, strict=True)]
    on_cpu = all(f.map.device.type == "cpu" for f in features)
    threads = torch.get_num_threads() if on_cpu else 1
    pieces = [(i, piece) for i, r in enumerate(rois) for piece in _pieces(r, sum(map(len, rois)), threads)]
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
    cells = geometry.cells(scale_windows(windows.double(), features.scale)).float()  # one rounding, at the end
    last = cells.new_tensor([width - 1, height - 1] * 2)
    return torch.minimum(cells.clamp(min=0.0), last).to(features.map.device, non_blocking=True)


def _pieces(rois: Tensor, total: int, threads: int) -> tuple[Tensor, ...]:
    """The windows of an image in pieces of at most a thread's share."""
    share = max(_LEAST_PIECE, -(-total // threads))
    return rois.split(share) if threads > 1 and len(rois) > share else (rois,)


def pool_cells(feature_map: Tensor, cells: Tensor, side: int) -> Tensor:
    """(N, C * side * side) of windows in units of the map's cells; what lies beyond the map counts as 0.

    torchvision's kernel rounds both ends of a window to cells and takes a cell at least; float32 under autocast too.
    """
    return roi_pool(feature_map[None].float(), [cells], output_size=side, spatial_scale=1.0).flatten(1)
