"""What the frozen detector gives for each image, computed once and kept in a folder; a stopped run continues from there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepgrad.errors import DataError, InputError
from stepgrad.extras import need
from stepgrad.models.fine_tuning.identity import digest, expect_folder, fingerprint
from stepgrad.models.fine_tuning.windows import ImageWindows
from stepgrad.models.held_out import as_used
from stepgrad.models.new_head.frozen import FrozenDetector, WindowChoice

IMAGES_PER_FILE = 25
_KEYS = ("boxes", "labels", "difficult", "iscrowd")
Tick = Callable[[], object]
Data = Sequence[tuple[Any, Mapping[str, Any]]]
"""Images (3, H, W), uint8 or in [0, 1], with targets: boxes in pixels and labels, counted from 0."""


class KeptImage(NamedTuple):
    """What is kept of an image: its windows, and their numbers among all windows that the detector has there."""

    numbers: Tensor
    image: ImageWindows

    def joined(self, more: KeptImage) -> KeptImage:
        """With more windows of the same image."""
        numbers = torch.cat([self.numbers, more.numbers])
        features = torch.cat([self.image.features, more.image.features])
        boxes = torch.cat([self.image.boxes, more.image.boxes])
        return KeptImage(numbers, ImageWindows(features, boxes, self.image.target))


class WindowCache:
    """The windows of a dataset's images.

    Args:
        folder: for the files; None: nothing is kept.
        part: which dataset of a run this is: "train", "val".
        data: the images.
        owner: digest of all that the features depend on; a folder takes no others.
        detector: what reads them.
        choice: which windows are kept.
        dtype: of the features kept.
        num_classes: labels are below it.
        known: what is kept of each image already.
    """

    def __init__(
        self,
        folder: Path | None,
        part: str,
        data: Data,
        owner: str,
        detector: FrozenDetector,
        choice: WindowChoice,
        dtype: torch.dtype,
        num_classes: int,
        known: Sequence[KeptImage] | None = None,
    ) -> None:
        self.folder, self.part, self.data, self.owner, self.detector = folder, part, data, owner, detector
        self.choice, self.dtype, self.num_classes = choice, dtype, num_classes
        self.known = known
        if folder is not None:
            need("safetensors", purpose="a cache of features")
            expect_folder(folder)

    def read(self, tick: Tick) -> list[KeptImage]:
        """The windows of all images; the detector runs for those that are not there. `tick` after each image."""
        found: list[KeptImage] = []
        for first in range(0, len(self.data), IMAGES_PER_FILE):
            numbers = range(first, min(first + IMAGES_PER_FILE, len(self.data)))
            found += self._stored(first, numbers, tick) if self.folder else [self._image(n, tick) for n in numbers]
        return found

    def _stored(self, first: int, numbers: range, tick: Tick) -> list[KeptImage]:
        from stepgrad.weights_file import write_tensors

        assert self.folder is not None
        file = self.folder / f"{self.part}-{first:06}.safetensors"
        if not file.exists():
            made = {n: self._image(n, tick) for n in numbers}
            tensors = {k: v for n, image in made.items() for k, v in _packed(n, image).items()}
            write_tensors(file, tensors, {"owner": self.owner})
        else:
            for _ in numbers:
                tick()
        try:
            return self._read(file, numbers)
        except DataError as error:
            raise DataError(f"{error}; delete it, and it is made again") from error

    def _read(self, file: Path, numbers: range) -> list[KeptImage]:
        """Also what was made just now: pages of the file need no memory of their own."""
        from stepgrad.weights_file import map_tensors

        tensors, facts = map_tensors(file)
        if facts.get("owner") != self.owner:
            raise DataError(f"{file}: holds features of another run")
        try:
            return [_unpacked(n, tensors) for n in numbers]
        except KeyError as error:
            raise DataError(f"{file}: has no {error}") from error

    def _image(self, number: int, tick: Tick) -> KeptImage:
        image, target = pair(self.data, number, self.part)
        self._check_labels(target["labels"], number)
        with as_used(self.detector.model):
            found = self.detector.windows(image, partial(self.choice.of, image=number, known=self._known(number)))
        kept = found.features.to(self.dtype)
        if not bool(torch.isfinite(kept).all()):
            raise DataError(
                f"{self.part} image {number}: features are not finite in {self.dtype}; choose dtype=torch.float32."
            )
        tick()
        return KeptImage(found.numbers, ImageWindows(kept, found.boxes, target))

    def _known(self, number: int) -> Tensor | None:
        return None if self.known is None else self.known[number].numbers

    def _check_labels(self, labels: Tensor, number: int) -> None:
        wrong = labels[(labels < 0) | (labels >= self.num_classes)]
        if len(wrong):
            raise InputError(
                f"{self.part} image {number}: expected labels in [0, {self.num_classes}) but got {int(wrong[0])}; they count "
                "from 0, whatever the model calls its first class."
            )


def pair(data: Data, number: int, part: str) -> tuple[Tensor, dict[str, Tensor]]:
    """Image and target; InputError where they are something else."""
    try:
        image, target = data[number]
    except (TypeError, ValueError):
        raise InputError(
            f"Expected {part} data to give (image, target) but got {type(data[number]).__name__}."
        ) from None
    if not isinstance(image, Tensor) or image.ndim != 3 or image.shape[0] != 3:
        came = str(list(image.shape)) if isinstance(image, Tensor) else type(image).__name__
        raise InputError(f"{part} image {number}: expected a tensor (3, H, W) but got {came}.")
    if not isinstance(target, Mapping) or not {"boxes", "labels"} <= set(target):
        came = str(sorted(target)) if isinstance(target, Mapping) else type(target).__name__
        raise InputError(f"{part} image {number}: expected a target with 'boxes' and 'labels' but got {came}.")
    return image, _kept(target)


def _kept(target: Mapping[str, Any]) -> dict[str, Tensor]:
    return {key: torch.as_tensor(target[key]) for key in _KEYS if key in target}


def data_by_value(data: Data, part: str, tick: Tick) -> dict[str, Any]:
    """How many images there are, and digests of all images and of all targets. `tick` after each image.

    A dataset that knows fingerprints of its images, such as of the bytes of their files, need not decode them.
    """
    images, targets = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
    known = getattr(data, "fingerprint", None)
    decoded = known is None or getattr(data, "transforms", None) is not None  # transforms may change both
    for n in range(len(data)):
        if decoded:
            image, target = pair(data, n, part)
            content = fingerprint([image])
        else:
            content, target = str(known(n)), _kept(data.target(n))  # type: ignore[attr-defined, misc]  # as `known` is
        images.update(content.encode())
        targets.update(digest(target).encode())
        tick()
    return {"count": len(data), "images": images.hexdigest(), "targets": targets.hexdigest()}


def _packed(number: int, kept: KeptImage) -> dict[str, Tensor]:
    image = kept.image
    parts = {"numbers": kept.numbers, "features": image.features, "windows": image.boxes, **image.target}
    return {f"{number}.{name}": value.contiguous() for name, value in parts.items()}


def _unpacked(number: int, tensors: Mapping[str, Tensor]) -> KeptImage:
    target = {key: tensors[f"{number}.{key}"] for key in _KEYS if f"{number}.{key}" in tensors}
    image = ImageWindows(tensors[f"{number}.features"], tensors[f"{number}.windows"], target)
    return KeptImage(tensors[f"{number}.numbers"], image)
