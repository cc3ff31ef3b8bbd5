"""What the frozen detector gives for each image, computed once and kept in a folder; a stopped run continues from there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from stepgrad.errors import DataError, InputError
from stepgrad.extras import need
from stepgrad.models.fine_tuning.folder import claim, digest, expect_folder, fingerprint
from stepgrad.models.fine_tuning.windows import ImageWindows
from stepgrad.models.held_out import as_used
from stepgrad.models.new_head.frozen import Found, FrozenDetector, WindowChoice
from stepgrad.models.new_head.shapes import shapes_key, table_of, unlabelled
from stepgrad.overlaps import Overlap
from stepgrad.progress import Watch, ticker
from stepgrad.weights_file import map_tensors, write_tensors

IMAGES_PER_FILE = 25
_KEYS = ("boxes", "labels", "difficult", "iscrowd")
_OF_WINDOWS = ("features", "boxes", "overlaps", "oriented")


class LabelledData(Protocol):
    """Images (3, H, W), uint8 or in [0, 1], with targets: boxes in pixels and labels, counted from 0."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Any: ...


class KeptImage(NamedTuple):
    """What is kept of an image: its windows, and their numbers among all windows that the detector has there."""

    numbers: Tensor
    image: ImageWindows

    def joined(self, more: KeptImage) -> KeptImage:
        """With more windows of the same image."""
        mine, others = self.image, more.image
        joined = {
            name: torch.cat([getattr(mine, name), getattr(others, name)])
            for name in _OF_WINDOWS
            if getattr(mine, name) is not None
        }
        return KeptImage(torch.cat([self.numbers, more.numbers]), ImageWindows(target=mine.target, **joined))


@dataclass
class WindowReader:
    """Reads the windows of a run's images, in rounds."""

    folder: Path | None  # for the files; None: nothing is kept
    data: Mapping[str, LabelledData]  # by name: "train", "val", "test"
    choice: WindowChoice
    dtype: torch.dtype  # of the features kept
    num_classes: int  # labels are below it
    watch: Watch
    overlap: Overlap | None = None  # None: of boxes
    owner: str = ""
    """Digest of all that the features depend on, round by round; a folder takes no others."""

    def __post_init__(self) -> None:
        if self.folder is not None:
            need("safetensors", purpose="a cache of features")
            expect_folder(self.folder)

    def claim(self, settings: Mapping[str, Any]) -> None:
        """The folder holds features of these settings and of all images from now on; ConfigError if it holds others."""
        if self.folder is not None:
            data = {f"{name}_data": self._by_value(name) for name in self.data}
            self.owner = claim(self.folder / "settings.json", {**settings, **data})

    def claim_round(self, number: int, settings: Mapping[str, Any]) -> None:
        """The same for the windows that a round adds."""
        if self.folder is not None:
            self.owner = claim(self.folder / f"settings-{number}.json", {**settings, "round before": self.owner})

    def _by_value(self, name: str) -> dict[str, Any]:
        images = self.data[name]
        tick = ticker(self.watch, f"looking at {name} images", len(images))
        return data_by_value(images, name, tick, self.overlap)

    def read(
        self, detector: FrozenDetector, number: int, known: Mapping[str, list[KeptImage]]
    ) -> dict[str, list[KeptImage]]:
        """What is kept of each image after a round, by the name of its dataset: what is `known`, and the round's windows."""
        found = {name: self._round(name, detector, number, known.get(name)) for name in self.data}
        if not known:
            return found
        return {name: [k.joined(f) for k, f in zip(known[name], found[name], strict=True)] for name in found}

    def _round(
        self, name: str, detector: FrozenDetector, number: int, known: Sequence[KeptImage] | None
    ) -> list[KeptImage]:
        """The windows of a round; the detector runs for those that are not in the folder."""
        part = name if number == 1 else f"{name}-{number}"
        images = self.data[name]
        tick = ticker(self.watch, f"features of {part} images", len(images))
        choice = self.choice if number == 1 else WindowChoice(self.choice.best, 0)

        def read_image(n: int) -> KeptImage:
            kept = self._image(name, n, detector, choice, None if known is None else known[n].numbers)
            tick()
            return kept

        found: list[KeptImage] = []
        for first in range(0, len(images), IMAGES_PER_FILE):
            numbers = range(first, min(first + IMAGES_PER_FILE, len(images)))
            if self.folder is None:
                found += [read_image(n) for n in numbers]
            else:
                found += self._stored(self.folder / f"{part}-{first:06}.safetensors", numbers, read_image, tick)
        return found

    def _stored(
        self, file: Path, numbers: range, read_image: Callable[[int], KeptImage], tick: Callable[[], None]
    ) -> list[KeptImage]:
        """What a file holds; it is made first if it is not there. What was made is read, too: pages need no memory."""
        if not file.exists():
            made = {n: read_image(n) for n in numbers}
            tensors = {k: v for n, image in made.items() for k, v in _packed(n, image).items()}
            write_tensors(file, tensors, {"owner": self.owner})
        else:
            for _ in numbers:
                tick()
        try:
            tensors, facts = map_tensors(file)
            if facts.get("owner") != self.owner:
                raise DataError(f"{file}: holds features of another run")
            return [_unpacked(n, tensors) for n in numbers]
        except DataError as error:
            raise DataError(f"{error}; delete it, and it is made again") from error
        except KeyError as error:
            raise DataError(f"{file}: has no {error}; delete it, and it is made again") from error

    def _image(
        self, name: str, number: int, detector: FrozenDetector, choice: WindowChoice, known: Tensor | None
    ) -> KeptImage:
        image, target = pair(self.data[name], number, name, self.overlap)
        wrong = target["labels"][(target["labels"] < 0) | (target["labels"] >= self.num_classes)]
        if len(wrong):
            raise InputError(
                f"{name} image {number}: expected labels in [0, {self.num_classes}) but got {int(wrong[0])}; they count "
                "from 0, whatever the model calls its first class."
            )
        with as_used(detector.model):
            found = detector.windows(image, partial(choice.of, image=number, known=known))
            kept = found.features.to(self.dtype)
            if not bool(torch.isfinite(kept).all()):
                raise DataError(
                    f"{name} image {number}: features are not finite in {self.dtype}; choose dtype=torch.float32."
                )
            windows = self._windows(found, kept, target)
        return KeptImage(found.numbers, windows)

    def _windows(self, found: Found, features: Tensor, target: Mapping[str, Tensor]) -> ImageWindows:
        own = {key: target[key] for key in _KEYS if key in target}
        if self.overlap is None:
            return ImageWindows(features, found.boxes, own)
        nothing = unlabelled(self.overlap, target)
        own["difficult"] = own["difficult"].bool() | nothing if "difficult" in own else nothing
        oriented = None
        if shapes_key(self.overlap) == "oriented":
            assert found.shapes is not None
            oriented = found.shapes(torch.arange(len(found.boxes)))
        return ImageWindows(features, found.boxes, own, table_of(self.overlap, found, target), oriented)


def windows_of(
    detector: FrozenDetector,
    data: LabelledData,
    num_classes: int,
    windows: int = 300,
    others: int = 0,
    watch: Watch = lambda what, done, total: None,
    name: str = "train",
) -> list[ImageWindows]:
    """The windows of all images as `finetune` takes them: those that the detector is surest of, and some others.

    Args:
        detector: the detector as `frozen_detector` gives it.
        data: images with targets.
        num_classes: labels are below it.
        windows: number of windows per image.
        others: number of further windows per image, drawn at random.
        watch: is called with the work at hand, the images so far and all of them.
        name: of the images, for messages.
    """
    reader = WindowReader(None, {name: data}, WindowChoice(windows, others), torch.float16, num_classes, watch)
    return [kept.image for kept in reader.read(detector, 1, {})[name]]


def pair(
    data: LabelledData, number: int, name: str, overlap: Overlap | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Image and target; InputError where they are something else."""
    try:
        image, target = data[number]
    except (TypeError, ValueError):
        raise InputError(
            f"Expected {name} data to give (image, target) but got {type(data[number]).__name__}."
        ) from None
    if not isinstance(image, Tensor) or image.ndim != 3 or image.shape[0] != 3:
        came = str(list(image.shape)) if isinstance(image, Tensor) else type(image).__name__
        raise InputError(f"{name} image {number}: expected a tensor (3, H, W) but got {came}.")
    if not isinstance(target, Mapping) or not {"boxes", "labels"} <= set(target):
        came = str(sorted(target)) if isinstance(target, Mapping) else type(target).__name__
        raise InputError(f"{name} image {number}: expected a target with 'boxes' and 'labels' but got {came}.")
    key = shapes_key(overlap)
    if key not in target:
        raise InputError(f"{name} image {number}: expected a target with {key!r} but got {sorted(target)}.")
    return image, _kept(target, overlap)


def _kept(target: Mapping[str, Any], overlap: Overlap | None) -> dict[str, Any]:
    """The entries that count; masks may be lists of run lengths."""
    kept: dict[str, Any] = {key: torch.as_tensor(target[key]) for key in _KEYS if key in target}
    if overlap is not None:
        kept |= {key: target[key] for key in (shapes_key(overlap), "area") if key in target}
    return kept


def data_by_value(
    data: LabelledData, name: str, tick: Callable[[], None], overlap: Overlap | None = None
) -> dict[str, Any]:
    """How many images there are, and digests of all images and of all targets. `tick` after each image.

    A dataset that knows fingerprints of its images, such as of the bytes of their files, need not decode them.
    """
    images, targets = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
    known = getattr(data, "fingerprint", None)
    decoded = known is None or getattr(data, "transforms", None) is not None  # transforms may change both
    for n in range(len(data)):
        if decoded:
            image, target = pair(data, n, name, overlap)
            content = fingerprint([image])
        else:
            content = str(known(n))  # type: ignore[misc]
            target = _kept(data.target(n), overlap)  # type: ignore[attr-defined]  # as `known` is
        images.update(content.encode())
        targets.update(digest(target).encode())
        tick()
    return {"count": len(data), "images": images.hexdigest(), "targets": targets.hexdigest()}


def _packed(number: int, kept: KeptImage) -> dict[str, Tensor]:
    image = kept.image
    parts = {"numbers": kept.numbers, "features": image.features, "windows": image.boxes, **image.target}
    parts |= {name: value for name in _OF_WINDOWS[2:] if (value := getattr(image, name)) is not None}
    return {f"{number}.{name}": value.contiguous() for name, value in parts.items()}


def _unpacked(number: int, tensors: Mapping[str, Tensor]) -> KeptImage:
    target = {key: tensors[f"{number}.{key}"] for key in _KEYS if f"{number}.{key}" in tensors}
    more = [tensors.get(f"{number}.{name}") for name in _OF_WINDOWS[2:]]
    image = ImageWindows(tensors[f"{number}.features"], tensors[f"{number}.windows"], target, *more)
    return KeptImage(tensors[f"{number}.numbers"], image)
