"""Examples as the model wants them: images, or the remembered features of a trunk that does not train."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from stepgrad.data.base import Target
from stepgrad.train.feature_cache import FeatureCache, trunk_fingerprint
from stepgrad.train.inputs import Data, Example, mirrored_boxes

if TYPE_CHECKING:
    from stepgrad.detector import FastRCNN


class ImageSource:
    """Gives images; the trunk sees each of them at every step."""

    def example(self, data: Data, index: int, flipped: bool = False) -> Example:
        return data.example(index, flipped)


class FeatureSource(ImageSource):
    """Gives the features of a frozen trunk, computed once an image and kept on disk."""

    def __init__(self, model: FastRCNN, folder: Path, scaling: str) -> None:
        self.model = model
        self.cache = FeatureCache(folder, trunk_fingerprint(model.trunk, scaling))
        self._facts: dict[tuple[str, int], tuple[str, int]] = {}

    def example(self, data: Data, index: int, flipped: bool = False) -> Example:
        from stepgrad.detector import Features

        fingerprint, width = self._image_facts(data, index)
        key = f"{fingerprint}-mirrored" if flipped else fingerprint
        found = self.cache.get(key)
        if found is None:
            example = data.example(index, flipped)
            with torch.no_grad():
                (features,) = self.model.extract([example.image])
            self.cache.put(key, features)
            return example._replace(image=features)
        windows, target = data.facts(index)
        if flipped:
            windows = mirrored_boxes(windows, width)
            target = cast(Target, {**target, "boxes": mirrored_boxes(target["boxes"], width)})
        device = next(self.model.trunk.parameters()).device
        return Example(Features(found[0].to(device), found[1]), windows, target)

    def _image_facts(self, data: Data, index: int) -> tuple[str, int]:
        """Fingerprint and width of an image, read once a process."""
        place = (data.dataset.name, data.first + index)
        if place not in self._facts:
            self._facts[place] = data.picture_facts(index)
        return self._facts[place]


def source_for(model: FastRCNN, folder: Path, arithmetic: str = "cpu 32-true") -> ImageSource:
    """Features where the trunk never changes, images where it does.

    Args:
        arithmetic: device and precision, which decide the last bits of the features.
    """
    if any(p.requires_grad for p in model.trunk.parameters()):
        return ImageSource()
    return FeatureSource(model, folder, f"{model.shortest_side}-{model.longest_side} {arithmetic}")
