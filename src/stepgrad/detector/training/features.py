"""Examples as the model wants them: images, or the remembered features of a trunk that does not train."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from stepgrad.detector.training.inputs import Example, Images, mirrored
from stepgrad.errors import DataError
from stepgrad.files import WriteError
from stepgrad.names import to_utf8
from stepgrad.weights_file import bytes_of, read_tensors, write_tensors

if TYPE_CHECKING:  # brings torchvision, which a cache that is only named can do without
    from stepgrad.detector import FastRCNN, Features

Source = Callable[[Images, int, bool], Example]
"""Gives an image by its number, mirrored or not."""


def source_for(model: FastRCNN, folder: Path, arithmetic: str = "cpu 32-true") -> Source:
    """Features where the trunk never changes, computed once per image and kept on disk; images where it does.

    Args:
        arithmetic: device and precision, which decide the last bits of the features.
    """
    if not model.trunk_is_frozen:
        return Images.example
    scaling = f"{model.shortest_side}-{model.longest_side} {arithmetic}"
    cache = FeatureCache(folder, trunk_fingerprint(model.trunk, scaling))
    fingerprints: dict[tuple[str, int], str] = {}

    def features_of(images: Images, index: int, flipped: bool) -> Example:
        place = (images.dataset.name, images.first + index)
        if place not in fingerprints:
            fingerprints[place] = images.fingerprint(index)
        key = fingerprints[place] + ("-mirrored" if flipped else "")
        features = cache.get(key)
        if features is None or features.size is None:
            example = images.example(index, flipped)
            with torch.no_grad():
                (features,) = model.extract([example.image])
            cache.put(key, features)
            return example._replace(image=features)
        device = next(model.trunk.parameters()).device
        example = Example(features._replace(map=features.map.to(device)), *images.facts(index))
        return mirrored(example, features.size[1]) if flipped else example

    return features_of


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
        from stepgrad.detector import Features

        try:
            tensors, facts = read_tensors(self._path(key))
            if (facts["trunk"], facts["key"]) != (self.trunk_fingerprint, key):
                return None  # names of files are shortened hashes
            x, y = json.loads(facts["scale"])
            height, width = json.loads(facts["size"])
            return Features(tensors["map"], (float(x), float(y)), (int(height), int(width)))
        except (DataError, KeyError, ValueError, TypeError, OverflowError, RecursionError):
            return None  # absent, damaged, or written by something else

    def put(self, key: str, features: Features) -> None:
        """Keep features under a key, instead of those that were there."""
        if not self.can_write:
            return
        facts = {"trunk": self.trunk_fingerprint, "key": key}
        facts |= {"scale": json.dumps(features.scale), "size": json.dumps(features.size)}
        try:  # nobody waits for the disk: what a power cut damages will be told by its digest
            write_tensors(self._path(key), {"map": features.map}, facts, durable=False)
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
