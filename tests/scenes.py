"""Random batches for the tests: small and crowded, so that ties, duplicates, cascades and exact IoUs are common."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from stepgrad.reference.mean_ap import Batch as ReferenceBatch

Array = np.ndarray
Target = dict[str, Array]


@dataclass(frozen=True)
class Batch(ReferenceBatch):
    """The reference's batch, handed to the library too."""

    def tensors(self, dtype: torch.dtype = torch.float64, requires_grad: bool = False) -> tuple[Any, Any, Any]:
        """(scores, boxes, targets) as the library wants them; scores in `dtype`, boxes always float64."""
        scores = [torch.tensor(s).to(dtype).requires_grad_(requires_grad) for s in self.scores]
        targets = [{key: torch.tensor(value) for key, value in t.items()} for t in self.targets]
        return scores, [torch.tensor(b) for b in self.boxes], targets

    def with_scores(self, scores: Sequence[Array]) -> Batch:
        return replace(self, scores=list(scores))


def clustered_boxes(rng: np.random.Generator, centres: Array, count: int, jitter: int) -> Array:
    """Integer boxes scattered around the centres, (count, 4)."""
    middle = centres[rng.integers(len(centres), size=count)] + rng.integers(-jitter, jitter + 1, size=(count, 2))
    half = rng.integers(2, 6, size=(count, 2))
    return np.concatenate([middle - half, middle + half], axis=1).astype(np.float64)


def windows_near(rng: np.random.Generator, objects: Array, centres: Array, count: int) -> Array:
    """Two thirds of the windows sit on an object, give or take a pixel per side; the others anywhere, (count, 4)."""
    windows = clustered_boxes(rng, centres, count, jitter=3)
    near = (rng.random(count) < 0.67) & (len(objects) > 0)
    if near.any():
        chosen = objects[rng.integers(len(objects), size=int(near.sum()))]
        windows[near] = chosen + rng.integers(-1, 2, size=chosen.shape)
    return windows


def random_target(
    rng: np.random.Generator, centres: Array, objects: int, K: int, difficult: float, crowd: float
) -> Target:
    """Objects around the same centres as the windows; `difficult` and `crowd` are shares."""
    target: Target = {
        "boxes": clustered_boxes(rng, centres, objects, jitter=1),
        "labels": rng.integers(K, size=objects),
    }
    if difficult > 0:
        target["difficult"] = rng.random(objects) < difficult
    if crowd > 0:
        target["iscrowd"] = rng.random(objects) < crowd
    return target


def random_scores(rng: np.random.Generator, counts: Sequence[int], K: int, ties: bool) -> list[Array]:
    """Small integers when ties are wanted; otherwise distinct multiples of 1/8, with gaps of different sizes."""
    total = sum(counts)
    if ties:
        values = rng.integers(-2, 4, size=(total, K)).astype(np.float64)
    else:
        ladder = np.cumsum(rng.integers(1, 12, size=(total, K)), axis=0) / 8.0 - total / 2
        values = rng.permuted(ladder, axis=0)
    return np.split(values, np.cumsum(counts)[:-1]) if len(counts) else []


def random_batch(
    rng: np.random.Generator,
    windows: int = 8,
    images: int = 1,
    K: int = 1,
    objects: int = 4,
    ties: bool = False,
    difficult: float = 0.0,
    crowd: float = 0.0,
    clusters: int = 2,
    per_class_boxes: bool = False,
) -> Batch:
    """A batch with `windows` and at most `objects` objects in all, shared among the images at random."""
    counts = np.bincount(rng.integers(images, size=windows), minlength=images).tolist()
    boxes, targets = [], []
    for n in counts:
        centres = rng.integers(6, 7 + 8 * clusters, size=(clusters, 2))
        share = int(rng.integers(objects // images + 2))
        targets.append(random_target(rng, centres, share, K, difficult, crowd))
        own = windows_near(rng, targets[-1]["boxes"], centres, n * (K if per_class_boxes else 1))
        boxes.append(own.reshape(n, K, 4) if per_class_boxes else own)
    return Batch(random_scores(rng, counts, K, ties), boxes, targets)


def small_batch(rng: np.random.Generator, crowds: bool = False, most_windows: int = 8) -> Batch:
    """A small batch of a random kind: 1-3 images, 1-2 classes, with or without ties and difficult objects."""
    return random_batch(
        rng,
        windows=int(rng.integers(most_windows // 2, most_windows + 1)),
        images=int(rng.integers(1, 4)),
        K=int(rng.integers(1, 3)),
        objects=int(rng.integers(2, 9)),
        ties=bool(rng.random() < 0.4),
        difficult=0.25 if rng.random() < 0.4 else 0.0,
        crowd=0.2 if crowds and rng.random() < 0.4 else 0.0,
        clusters=int(rng.integers(1, 3)),
        per_class_boxes=bool(rng.random() < 0.2),
    )


def with_empty_windows(rng: np.random.Generator, batch: Batch, share: float = 0.4) -> Batch:
    """The same batch with some windows squeezed to a line or a point, as clipping to the image leaves them."""
    squeezed = []
    for boxes in batch.boxes:
        keep = rng.random((*boxes.shape[:-1], 1)) >= share
        length = rng.integers(0, 2, size=(*boxes.shape[:-1], 2)) * (boxes[..., 2:] - boxes[..., :2])
        length[..., 1] *= length[..., 0] == 0  # at least one side goes
        narrow = np.concatenate([boxes[..., :2], boxes[..., :2] + length], axis=-1)
        squeezed.append(np.where(keep, boxes, narrow))
    return replace(batch, boxes=squeezed)


def over_seeds(ci: int, nightly: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for `ci` seeds, one test each; further seeds up to `nightly` in ten long runs with that marker."""
    bounds = np.linspace(ci, nightly, 11).astype(int).tolist()
    runs: list[Any] = [pytest.param(range(seed, seed + 1), id=str(seed)) for seed in range(ci)]
    for a, b in itertools.pairwise(bounds):
        runs.append(pytest.param(range(a, b), id=f"{a} to {b - 1}", marks=pytest.mark.nightly))

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def every_seed(seed: range, **parameters: Any) -> None:
            for one in seed:
                test(seed=one, **parameters)

        return pytest.mark.parametrize("seed", runs)(every_seed)

    return decorate
