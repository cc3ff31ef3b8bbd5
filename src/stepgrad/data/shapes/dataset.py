"""`shapes`: a synthetic detection set that needs no download and is far from trivial."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from stepgrad.data.base import DatasetTarget, DetectionDataset, Transforms, make_target
from stepgrad.data.shapes.draws import Draws
from stepgrad.data.shapes.outlines import CLASSES
from stepgrad.data.shapes.scene import DrawnScene, draw_scene
from stepgrad.errors import ConfigError, one_of, suggest

SPLITS = {"train": 2000, "val": 500, "test": 500}
"""Name and default number of images."""
WINDOW_STREAM = 1
JITTERS = 10
"""Windows around each thing in the picture, objects and decoys alike, so that their number gives nothing away."""
EMPTY_SPOTS = 4
GRID = ((20, 20), (40, 20), (64, 32), (96, 32))
"""Side and stride of the sliding windows, at 160 pixels."""
MIN_SIDE = 6.0


class ShapesDataset(DetectionDataset):
    """Six shapes among look-alikes, drawn from a seed: the same images on every machine. Each image is drawn independently.

    Colour and texture say nothing about the class. Objects are about 10 to 100 pixels large, overlap, and are cut by the
    edges. Objects that are mostly hidden are marked difficult. Boxes hold the visible part, as in VOC.

    Args:
        split: "train", "val" or "test"; splits share no image.
        length: number of images; any number. A shorter set has the first images of a longer one.
        seed: another seed gives another set.
        size: width and height in pixels.
        transforms: called with (image, target).
        task: what targets have besides boxes: "masks" (G, H, W) of visible pixels, "keypoints" (G, 4, 3), the outermost points
            of a shape, "oriented" (G, 5), the smallest box at any angle; "boxes": nothing else.

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
        task: str = "boxes",
    ) -> None:
        one_of("the split of shapes", split, list(SPLITS))
        one_of("task", task, ["boxes", "masks", "keypoints", "oriented"])
        length = SPLITS[split] if length is None else length
        for name, value, least in (("length", length, 1), ("seed", seed, 0), ("size", size, 64)):
            if not isinstance(value, int) or value < least:
                raise ConfigError(f"Expected {name} of shapes to be a whole number >= {least} but got {value!r}.")
        self.split = split
        self.seed = seed
        self.size = size
        self.transforms = transforms
        self.task = task
        self.keypoints = 4 if task == "keypoints" else None
        self.sigmas = (0.25,) * 4 if task == "keypoints" else None
        self.name = f"shapes {split}"
        self.class_names = tuple(CLASSES)
        self.ids: range = range(length)

    def scene(self, index: int) -> DrawnScene:
        """One picture with its objects and decoys."""
        return draw_scene(self._key(index), self.size)

    def _key(self, index: int) -> tuple[int, ...]:
        return (self.seed, list(SPLITS).index(self.split), self.ids[index])

    def target(self, index: int) -> DatasetTarget:
        scene = self.scene(index)
        target = make_target(scene.boxes, scene.labels, self.ids[index], difficult=scene.difficult)
        if self.task == "masks":
            masks = torch.from_numpy(scene.masks())
            target["masks"], target["area"] = masks, masks.sum(dim=(1, 2)).float()
        elif self.task == "keypoints":
            target["keypoints"] = torch.from_numpy(scene.keypoints())
        elif self.task == "oriented":
            target["oriented"] = torch.from_numpy(scene.oriented())
        return target

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
            raise ConfigError(f"{text!r} names another split than {split!r}; give only one of the two.")
        arguments["split"] = split
    return arguments


def _whole_number(name: str, value: str, text: str) -> int:
    numbers = ["length", "seed", "size"]
    if name not in numbers:
        raise ConfigError(f"Expected one of {numbers} in {text!r} but got {name!r}.{suggest(name, numbers)}")
    if not value.strip().isdecimal():
        raise ConfigError(f"Expected {name} in {text!r} to be a whole number but got {value!r}.")
    return int(value)


# Windows: cheap and class-agnostic. No image is looked at for them.


def draw_windows(
    draws: Draws, size: int, boxes: NDArray[np.float64], decoys: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(N, 4) windows: a grid, and jittered ones around objects, look-alikes and places where there is nothing."""
    things = np.concatenate([boxes, decoys, _spots(draws, size)])
    sides = np.tile(things[:, 2:] - things[:, :2], 2)  # (things, 4): the side each coordinate moves along
    shifts = (draws.units(JITTERS, len(things), 4) - 0.5) * 0.6
    around = (things + shifts * sides).reshape(-1, 4)
    windows = np.clip(np.rint(np.concatenate([_grid(size), around])).astype(np.int64), 0, size)  # no -0.0
    big_enough = (windows[:, 2:] - windows[:, :2]).min(axis=1) >= MIN_SIDE
    return np.unique(windows[big_enough], axis=0).astype(np.float64)  # sorted, each once


def _spots(draws: Draws, size: int) -> NDArray[np.float64]:
    """(EMPTY_SPOTS, 4) boxes of any size anywhere."""
    units = draws.units(EMPTY_SPOTS, 4)
    sides = (0.08 + 0.4 * units[:, :2] * units[:, :2]) * size
    corners = units[:, 2:] * (size - sides)
    return np.concatenate([corners, corners + sides], axis=1)


def _grid(size: int) -> NDArray[np.float64]:
    windows = []
    for side, stride in GRID:
        side, stride = side * size // 160, max(1, stride * size // 160)
        starts = range(0, size - side + 1, stride)
        windows += [(x, y, x + side, y + side) for y in starts for x in starts]
    return np.array(windows, dtype=np.float64)
