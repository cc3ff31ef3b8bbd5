"""The share of the objects that the windows cover: no detector built on them can have a larger recall."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepgrad.data.base import DetectionDataset
from stepgrad.data.proposals.windows import Proposals
from stepgrad.errors import InputError
from stepgrad.metric.boxes import areas_of, overlap_table
from stepgrad.number_text import counted


@dataclass(frozen=True)
class Recall:
    """Shares of the objects covered by some window; T thresholds, K classes."""

    thresholds: tuple[float, ...]
    class_names: tuple[str, ...]
    objects: NDArray[np.int64]
    """(K,) countable objects: neither difficult nor crowds."""
    covered: NDArray[np.int64]
    """(T, K) those whose best IoU reaches the threshold."""
    windows: NDArray[np.int64]
    """(images,) number of windows."""

    @property
    def recall(self) -> NDArray[np.float64]:
        """(T,) over all objects; NaN if there are none."""
        total = int(self.objects.sum())
        return self.covered.sum(axis=1) / total if total else np.full(len(self.thresholds), np.nan)

    def __str__(self) -> str:
        shares = ", ".join(f"{share:.1%} at IoU {t:g}" for t, share in zip(self.thresholds, self.recall, strict=True))
        mean = self.windows.mean() if len(self.windows) else 0.0
        return f"recall {shares} ({counted(int(self.objects.sum()), 'object')}, {mean:.0f} windows per image)"


def best_overlaps(boxes: ArrayLike, windows: ArrayLike) -> NDArray[np.float64]:
    """(G,) the largest IoU of each box with any window, 0 without windows; continuous boxes, float64.

    >>> best_overlaps([[0, 0, 2, 2]], [[0, 0, 2, 1], [5, 5, 6, 6]])
    array([0.5])
    """
    rows, others = (np.asarray(corners, dtype=np.float64).reshape(-1, 4) for corners in (boxes, windows))
    areas, other_areas = (areas_of(corners[:, 2:] - corners[:, :2], 0.0) for corners in (rows, others))
    return overlap_table(rows, areas, others, other_areas, np.zeros(len(others), dtype=np.bool_)).max(
        axis=1, initial=0.0
    )


def recall(proposals: Proposals, dataset: DetectionDataset, thresholds: Sequence[float] = (0.5, 0.7)) -> Recall:
    """Measure the windows of a dataset against its countable objects.

    >>> from stepgrad.data import ShapesDataset, load_proposals
    >>> dataset = ShapesDataset("val", length=20)
    >>> bool(recall(load_proposals("built-in", dataset), dataset).recall[0] > 0.9)
    True
    """
    if not thresholds or not all(0.0 < t <= 1.0 for t in thresholds):
        raise InputError(f"Expected thresholds in (0, 1] but got {thresholds!r}.")
    K, T = len(dataset.class_names), np.asarray(thresholds, dtype=np.float64)
    objects, covered = np.zeros(K, dtype=np.int64), np.zeros((len(T), K), dtype=np.int64)
    counts = []
    for index, image_id in enumerate(dataset.ids):
        target, windows = dataset.target(index), proposals[image_id]
        countable = ~target["difficult"] & (target["iscrowd"] == 0)
        labels = target["labels"][countable].numpy()
        best = best_overlaps(target["boxes"][countable].numpy(), windows.numpy())
        objects += np.bincount(labels, minlength=K)
        for row, threshold in zip(covered, T, strict=True):
            row += np.bincount(labels[best >= threshold], minlength=K)
        counts.append(len(windows))
    return Recall(tuple(T.tolist()), dataset.class_names, objects, covered, np.array(counts, dtype=np.int64))
