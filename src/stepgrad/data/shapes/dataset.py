"""`shapes`: a synthetic detection set that needs no download and is far from trivial."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from PIL import Image

from stepgrad.data.base import DatasetTarget, DetectionDataset, Transforms, make_target
from stepgrad.data.shapes.draws import Draws
from stepgrad.data.shapes.outlines import CLASSES
from stepgrad.data.shapes.scene import DrawnScene, draw_scene
from stepgrad.data.shapes.windows import draw_windows
from stepgrad.errors import ConfigError, one_of, suggest

SPLITS = {"train": 2000, "val": 500, "test": 500}
"""Name and default number of images."""
WINDOW_STREAM = 1


class ShapesDataset(DetectionDataset):
    """Six shapes among look-alikes, drawn from a seed: the same images on every machine, each drawn by itself.

    Colour and texture say nothing about the class; objects span some 10 to 100 pixels, overlap, and are cut by the
    edges. Those mostly hidden are marked difficult. Boxes hold the visible part, as in VOC.

    Args:
        split: "train", "val" or "test"; splits share no image.
        length: number of images; any number, images of a shorter set are the first of a longer one.
        seed: another seed is another set.
        size: width and height in pixels.
        transforms: called with (image, target).

    >>> dataset = ShapesDataset("val", length=3)
    >>> image, target = dataset[0]
    >>> image.shape, target["boxes"].shape == (len(target["labels"]), 4)
    (torch.Size([3, 160, 160]), True)
    """

    def __init__(
        self,
        split: str = "train",
        length: int | None = None,
        seed: int = 0,
        size: int = 160,
        transforms: Transforms | None = None,
    ) -> None:
        one_of("the split of shapes", split, list(SPLITS))
        length = SPLITS[split] if length is None else length
        for name, value, least in (("length", length, 1), ("seed", seed, 0), ("size", size, 64)):
            if not isinstance(value, int) or value < least:
                raise ConfigError(f"Expected {name} of shapes to be a whole number >= {least} but got {value!r}.")
        self.split, self.seed, self.size, self.transforms = split, seed, size, transforms
        self.name = f"shapes {split}"
        self.class_names = tuple(CLASSES)
        self.ids: range = range(length)

    def scene(self, index: int) -> DrawnScene:
        """Everything about one picture."""
        return draw_scene(self._key(index), self.size)

    def _key(self, index: int) -> tuple[int, ...]:
        return (self.seed, list(SPLITS).index(self.split), self.ids[index])

    def target(self, index: int) -> DatasetTarget:
        scene = self.scene(index)
        return make_target(scene.boxes, scene.labels, self.ids[index], difficult=scene.difficult)

    def image(self, index: int) -> Image.Image:
        return Image.fromarray(self.scene(index).image)

    def fingerprint(self, index: int) -> str:
        pixels = self.scene(index).image.tobytes()
        return f"{len(pixels)}-{hashlib.sha256(pixels).hexdigest()}"

    def windows(self, index: int) -> torch.Tensor:
        """(N, 4) some three hundred class-agnostic windows that cover most objects, made without any search."""
        scene = self.scene(index)
        draws = Draws(*self._key(index), WINDOW_STREAM)
        return torch.from_numpy(draw_windows(draws, self.size, scene.boxes, scene.decoys)).float()


def parse_shapes(text: str, split: str | None = None) -> dict[str, Any]:
    """The arguments of ShapesDataset in `shapes[:split][,length=N][,seed=N][,size=N]`.

    >>> parse_shapes("shapes:val,length=50")
    {'split': 'val', 'length': 50}
    """
    arguments: dict[str, Any] = {}
    for word in text.removeprefix("shapes").removeprefix(":").split(","):
        name, equals, value = word.strip().partition("=")
        if not equals and name:
            arguments["split"] = name
        elif equals:
            arguments[name] = _whole_number(name, value, text)
    if split is not None:
        if arguments.get("split", split) != split:
            raise ConfigError(f"{text!r} names another split than {split!r}; give one of the two.")
        arguments["split"] = split
    return arguments


def _whole_number(name: str, value: str, text: str) -> int:
    known = ["length", "seed", "size"]
    if name not in known:
        raise ConfigError(f"Expected one of {known} in {text!r} but got {name!r}.{suggest(name, known)}")
    if not value.strip().isdecimal():
        raise ConfigError(f"Expected {name} in {text!r} to be a whole number but got {value!r}.")
    return int(value)
