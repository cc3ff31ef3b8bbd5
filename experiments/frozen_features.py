"""Window features from a frozen ImageNet AlexNet: conv5, RoI max-pooling to 6 x 6, then principal components.

They are computed once per split and kept in a cache folder, as float16, so that a head trains on them in seconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.models import alexnet
from torchvision.ops import roi_pool

from experiments.voc_subset import WindowedImage
from stepgrad.files import write_whole

T = TypeVar("T")
Chunk = list[tuple[Path, np.ndarray]]  # image files and their windows

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
STRIDE = 16
FIRST_CENTRE = 15  # input pixel at the centre of conv5's first cell: torchvision's AlexNet pads less than Caffe's


@dataclass(frozen=True)
class FeatureSettings:
    """What the cached features depend on besides the images."""

    zoom: float = 2.0  # the stored images are small; enlarged, a conv5 cell covers 8 of their pixels
    pooled: int = 6
    components: int = 512
    sample_per_image: int = 20  # windows per training image that the principal components are fitted to
    fit_images: int = 1000  # training images they are fitted to, from the first
    seed: int = 0


class FrozenFeatures:
    """Computes the features of images, with principal components fitted to a sample of training windows."""

    def __init__(self, weights: Path, settings: FeatureSettings) -> None:
        self.settings = settings
        trunk = alexnet(weights=None).features
        trunk.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
        self.trunk: nn.Module = trunk[:12].eval()  # up to conv5's ReLU, before the last pooling
        self.basis = torch.zeros(0)
        self.shift = torch.zeros(0)

    @torch.inference_mode()
    def pooled(self, file: Path, windows: np.ndarray) -> Tensor:
        """(N, 9216): the max-pooled conv5 activations of every window."""
        zoom, side = self.settings.zoom, self.settings.pooled
        conv5 = self.trunk(_read_pixels(file, zoom))
        rois = torch.from_numpy(windows) * zoom - FIRST_CENTRE
        return roi_pool(conv5, [rois], output_size=side, spatial_scale=1 / STRIDE).flatten(1)

    def sampled(self, chunk: Chunk, seed: int) -> np.ndarray:
        """(S, 9216): the pooled activations of a few random windows of each image."""
        rng, count = np.random.default_rng(seed), self.settings.sample_per_image
        return np.concatenate([self.pooled(file, rng.permutation(windows)[:count]).numpy() for file, windows in chunk])

    def fit(self, sample: Tensor) -> None:
        """Principal components of a sample of windows, scaled to a mean variance of one."""
        torch.manual_seed(self.settings.seed)  # pca_lowrank takes no generator
        _, spread, basis = torch.pca_lowrank(sample, q=self.settings.components, niter=3)
        variance = spread.square().mean() / (len(sample) - 1)
        self.basis = basis / variance.sqrt()
        self.shift = sample.mean(0) @ self.basis

    def project(self, chunk: Chunk) -> np.ndarray:
        """(all windows, components) float16, images one after the other."""
        found = [(self.pooled(file, windows) @ self.basis - self.shift).half() for file, windows in chunk]
        return torch.cat(found).numpy()


def cached_features(
    splits: dict[str, list[WindowedImage]], weights: Path, cache: Path, settings: FeatureSettings
) -> dict[str, list[Tensor]]:
    """Per split, the (N, components) float16 features of each image; the first split fits the components."""
    cache.mkdir(parents=True, exist_ok=True)
    tag = json.dumps({"sizes": {k: len(v) for k, v in splits.items()}, **asdict(settings)}, sort_keys=True)
    note = cache / "features.json"
    if not note.is_file() or note.read_text(encoding="utf-8") != tag:
        _fill_cache(splits, weights, cache, settings)
        write_whole(note, tag.encode())
    return {
        name: _split_by_image(np.load(cache / f"{name}.npy", mmap_mode="c"), images) for name, images in splits.items()
    }


def _fill_cache(splits: dict[str, list[WindowedImage]], weights: Path, cache: Path, settings: FeatureSettings) -> None:
    """Fit to the first split, then write every split; one process per core, each with a thread of its own."""
    extractor = FrozenFeatures(weights, settings)
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        first = _chunks(next(iter(splits.values()))[: settings.fit_images])
        sample = list(_counted(pool.map(extractor.sampled, first, range(len(first))), "sampling", first))
        extractor.fit(torch.from_numpy(np.concatenate(sample)))
        for name, images in splits.items():
            _write_split(cache / f"{name}.npy", name, images, extractor, pool)


def _write_split(
    file: Path, name: str, images: Sequence[WindowedImage], extractor: FrozenFeatures, pool: ProcessPoolExecutor
) -> None:
    shape = (sum(len(image.windows) for image in images), extractor.settings.components)
    rows = np.lib.format.open_memmap(file, mode="w+", dtype=np.float16, shape=shape)
    at, chunks = 0, _chunks(images)
    for found in _counted(pool.map(extractor.project, chunks), name, chunks):
        rows[at : at + len(found)] = found
        at += len(found)
    rows.flush()


def _chunks(images: Sequence[WindowedImage], size: int = 50) -> list[Chunk]:
    """Plain arrays: torch would keep a file open for every tensor on its way to another process."""
    pairs = [(image.file, image.windows.numpy()) for image in images]
    return [pairs[at : at + size] for at in range(0, len(pairs), size)]


def _split_by_image(rows: np.ndarray, images: Sequence[WindowedImage]) -> list[Tensor]:
    return list(torch.from_numpy(rows).split([len(image.windows) for image in images]))


def _read_pixels(file: Path, zoom: float) -> Tensor:
    """(1, 3, H, W), normalised as ImageNet weights expect."""
    with Image.open(file) as picture:
        size = (round(picture.width * zoom), round(picture.height * zoom))
        pixels = np.array(picture.convert("RGB").resize(size, Image.Resampling.BILINEAR))
    scaled = torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255
    return (scaled - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)


def _counted(done: Iterable[T], what: str, chunks: Sequence[Chunk]) -> Iterator[T]:
    count, total = 0, sum(map(len, chunks))
    for result, chunk in zip(done, chunks, strict=True):
        count += len(chunk)
        print(f"{what}: image {count} of {total}", flush=True)
        yield result
