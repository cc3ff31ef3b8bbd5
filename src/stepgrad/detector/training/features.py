"""Examples as the model wants them: images, or the remembered features of a trunk that does not train."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from stepgrad.data.base import DatasetTarget
from stepgrad.detector.training.inputs import Data, Example, mirrored_boxes
from stepgrad.errors import DataError
from stepgrad.files import WriteError
from stepgrad.names import to_utf8
from stepgrad.weights_file import bytes_of, read_tensors, write_tensors

if TYPE_CHECKING:
    from stepgrad.detector import FastRCNN


class ImageSource:
    """Gives images; the trunk sees each of them at every step."""

    def example(self, data: Data, index: int, flipped: bool = False) -> Example:
        return data.example(index, flipped)


class FeatureSource(ImageSource):
    """Gives the features of a frozen trunk, computed once per image and kept on disk."""

    def __init__(self, model: FastRCNN, folder: Path, scaling: str) -> None:
        self.model = model
        self.cache = FeatureCache(folder, trunk_fingerprint(model.trunk, scaling))
        self._facts: dict[tuple[str, int], tuple[str, int, int]] = {}

    def example(self, data: Data, index: int, flipped: bool = False) -> Example:
        from stepgrad.detector import Features

        fingerprint, width, height = self._image_facts(data, index)
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
            target = cast(DatasetTarget, {**target, "boxes": mirrored_boxes(target["boxes"], width)})
        device = next(self.model.trunk.parameters()).device
        return Example(Features(found.map.to(device), found.scale, (height, width)), windows, target)

    def _image_facts(self, data: Data, index: int) -> tuple[str, int, int]:
        """Fingerprint, width and height of an image, read once per process."""
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


if TYPE_CHECKING:
    from stepgrad.detector import Features


class FeatureCache:
    """One file per image, exact to the bit, under the fingerprint of the trunk that made it.

    A damaged file counts as absent and is written again. A disk that is full, or cannot be written to, is reported once
    as a warning; from then on features are only read.
    """

    def __init__(self, folder: str | Path, trunk_fingerprint: str) -> None:
        self.folder = Path(folder) / trunk_fingerprint[:16]
        self.trunk_fingerprint = trunk_fingerprint
        self.can_write = True

    def get(self, key: str) -> Features | None:
        """The features kept under a key, on the CPU; None if there are none."""
        try:
            tensors, facts = read_tensors(self._path(key))
        except DataError:
            return None
        if (facts.get("trunk"), facts.get("key")) != (self.trunk_fingerprint, key):
            return None  # names of files are shortened hashes
        from stepgrad.detector import Features  # brings torchvision, which a cache that is only named can do without

        try:
            x, y = json.loads(facts["scale"])
            return Features(tensors["map"], (float(x), float(y)))
        except (KeyError, ValueError, TypeError, OverflowError, RecursionError):
            return None  # written by something else

    def put(self, key: str, features: Features) -> None:
        """Keep features under a key, instead of those that were there."""
        if not self.can_write:
            return
        feature_map, (x, y) = features.map, features.scale
        facts = {"trunk": self.trunk_fingerprint, "key": key, "scale": json.dumps([float(x), float(y)])}
        try:  # nobody waits for the disk: what a power cut damages will be told by its digest
            write_tensors(self._path(key), {"map": feature_map}, facts, durable=False)
        except WriteError as error:
            self.can_write = False
            warnings.warn(f"{error}; continuing without storing features", stacklevel=2)

    def _path(self, key: str) -> Path:
        name = hashlib.sha256(to_utf8(key)).hexdigest()[:32]
        return self.folder / name[:2] / f"{name}.safetensors"


def trunk_fingerprint(module: nn.Module, extra: str) -> str:
    """A digest of layers and weights, and of whatever else decides the features: `extra`, for one the scale of images.

    >>> one, other = nn.Conv2d(3, 8, 3, stride=1), nn.Conv2d(3, 8, 3, stride=2)
    >>> _ = other.load_state_dict(one.state_dict())
    >>> trunk_fingerprint(one, "600 px") == trunk_fingerprint(other, "600 px")
    False
    """
    digest = hashlib.sha256()
    state: dict[str, Tensor] = module.state_dict()
    table = [(name, str(tensor.dtype), list(tensor.shape)) for name, tensor in state.items()]
    digest.update(json.dumps([str(module), extra, table]).encode())
    for tensor in state.values():
        digest.update(bytes_of(tensor))
    return digest.hexdigest()
