"""Windows of VOC 2012 with the features of a frozen ImageNet AlexNet: conv5, RoI max-pooling, then principal components.

Images, objects and windows come from `stepgrad.detector.training.inputs`; the trunk, its weights and the pooling are the
detector's. Two things differ from what the detector does with an image, because the runs on record were made so, and other
features would be another experiment: images are enlarged by Pillow, in whole grey values, and windows are
rounded to cells by their corners,
not by their first and last pixel, and not clipped to the map.

`stepgrad.detector.training.features` keeps the trunk's map of each image. Here a step takes windows of 64 images in
milliseconds, so it is their pooled and projected features that are kept, as float16, in one file per split that is
mapped into memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from experiments.window_head import NUM_CLASSES, Part, make_part
from stepgrad.data.images import image_to_tensor
from stepgrad.detector import FastRCNN
from stepgrad.detector.pooling import pool_cells
from stepgrad.detector.training.features import trunk_fingerprint
from stepgrad.detector.training.inputs import Images, open_data
from stepgrad.files import write_whole

SAMPLE_SEED_IMAGES = 50  # images whose windows are drawn by one generator


@dataclass(frozen=True)
class FeatureSettings:
    """What the cached features depend on besides the images and the trunk."""

    zoom: float = 2.0  # the stored images are small; enlarged, a conv5 cell covers 8 of their pixels
    components: int = 512
    sample_per_image: int = 20  # windows per training image that the principal components are fitted to
    fit_images: int = 1000  # training images they are fitted to, from the first
    seed: int = 0


def load_parts(data: Path, cache: Path, train: int, val: int) -> tuple[Part, Part]:
    """The first so many training and val images (the lists are shuffled, so any prefix is a fair sample)."""
    voc, weights = data / "VOC2012-320", data / "weights" / "alexnet_features_imagenet.pt"
    windows = str(voc / "selective_search_fast.npz")
    splits = {name: open_data(str(voc), name, windows, count) for name, count in (("train", train), ("val", val))}
    features = cached_features(splits, weights, cache, FeatureSettings())
    return make_part(splits["train"], features["train"]), make_part(splits["val"], features["val"])


class FrozenFeatures:
    """Computes the features of windows, with principal components fitted to a sample of training windows."""

    def __init__(self, weights: Path, settings: FeatureSettings) -> None:
        self.settings = settings
        self.model = FastRCNN(
            NUM_CLASSES, "alexnet", weights=weights, hidden=1, freeze="trunk", shortest_side=None, longest_side=None
        ).eval()
        self.basis = torch.zeros(0)
        self.shift = torch.zeros(0)

    @torch.inference_mode()
    def pooled(self, image: Image.Image, windows: Tensor) -> Tensor:
        """(N, 9216): the max-pooled conv5 activations of every window."""
        zoom, geometry = self.settings.zoom, self.model.geometry
        size = (round(image.width * zoom), round(image.height * zoom))
        enlarged = image_to_tensor(image.resize(size, Image.Resampling.BILINEAR))
        (features,) = self.model.extract([enlarged])
        cells = (windows * zoom - geometry.first_centre) / geometry.stride
        return pool_cells(features.map, cells, self.model.pool)

    def sampled(self, data: Images) -> Tensor:
        """(S, 9216): the pooled activations of a few random windows of each of the first images."""
        drawn, rng = [], np.random.default_rng(0)
        for i in range(min(len(data), self.settings.fit_images)):
            if i % SAMPLE_SEED_IMAGES == 0:
                rng = np.random.default_rng(i // SAMPLE_SEED_IMAGES)
            rows = rng.permutation(data.windows(i).numpy())[: self.settings.sample_per_image]
            drawn.append(torch.from_numpy(rows))
        work = lambda i: self.pooled(data.dataset.image(data.first + i), drawn[i])  # noqa: E731
        return torch.cat(list(side_by_side(work, len(drawn), "sampling")))

    def fit(self, sample: Tensor) -> None:
        """Principal components of a sample of windows, scaled to a mean variance of one."""
        torch.manual_seed(self.settings.seed)  # pca_lowrank takes no generator
        _, spread, basis = torch.pca_lowrank(sample, q=self.settings.components, niter=3)
        variance = spread.square().mean() / (len(sample) - 1)
        self.basis = basis / variance.sqrt()
        self.shift = sample.mean(0) @ self.basis

    def project(self, data: Images, index: int) -> np.ndarray:
        """(N, components) float16: the features of all windows of an image."""
        pooled = self.pooled(data.dataset.image(data.first + index), data.windows(index))
        return (pooled @ self.basis - self.shift).half().numpy()


def cached_features(
    splits: dict[str, Images], weights: Path, cache: Path, settings: FeatureSettings
) -> dict[str, list[Tensor]]:
    """Per split, the (N, components) float16 features of each image; the first split fits the components."""
    cache.mkdir(parents=True, exist_ok=True)
    extractor = FrozenFeatures(weights, settings)
    facts = {"sizes": {name: len(data) for name, data in splits.items()}, **asdict(settings)}
    tag = json.dumps({**facts, "trunk": trunk_fingerprint(extractor.model.trunk, "")}, sort_keys=True)
    note = cache / "features.json"
    if not note.is_file() or note.read_text(encoding="utf-8") != tag:
        extractor.fit(extractor.sampled(next(iter(splits.values()))))
        for name, data in splits.items():
            _write_split(cache / f"{name}.npy", name, data, extractor)
        write_whole(note, tag.encode())
    return {
        name: list(torch.from_numpy(np.load(cache / f"{name}.npy", mmap_mode="c")).split(window_counts(data)))
        for name, data in splits.items()
    }


def _write_split(file: Path, name: str, data: Images, extractor: FrozenFeatures) -> None:
    shape = (sum(window_counts(data)), extractor.settings.components)
    rows = np.lib.format.open_memmap(file, mode="w+", dtype=np.float16, shape=shape)
    at = 0
    for found in side_by_side(lambda i: extractor.project(data, i), len(data), name):
        rows[at : at + len(found)] = found
        at += len(found)
    rows.flush()


def window_counts(data: Images) -> list[int]:
    return [len(data.windows(i)) for i in range(len(data))]


def side_by_side(work: Callable[[int], Any], count: int, what: str) -> Iterator[Any]:
    """work(0), work(1), ...: an image per core at a time, each on one thread, which also fixes the order of its sums."""
    with ThreadPoolExecutor(os.cpu_count(), what, torch.set_num_threads, (1,)) as pool:
        for i, found in enumerate(pool.map(work, range(count)), 1):
            if i % 50 == 0 or i == count:
                print(f"{what}: image {i} of {count}", flush=True)
            yield found
