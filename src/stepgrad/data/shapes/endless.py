"""`shapes` without an end: fresh images at every step, so that nothing can be learnt by heart."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from torch import Tensor

from stepgrad.data.base import DatasetTarget
from stepgrad.data.shapes.dataset import ShapesDataset
from stepgrad.errors import ConfigError

NUMBERS = 2**32
"""Images of a seed. The generator is seeded by words of 32 bits: larger numbers would take the place of other draws."""


class FreshImage(NamedTuple):
    """One image of an endless source."""

    number: int
    image: Tensor
    """(3, H, W) uint8."""
    windows: Tensor
    """(N, 4), those that `shapes` has for every image."""
    target: DatasetTarget


class EndlessShapes:
    """Endless images: image n depends only on the seed and n, not on the order or the process that asks for it.

    The images are those of `ShapesDataset("train", seed=seed)`, without an end. "val" and "test" images, of any seed, never
    appear here. Nothing is kept in memory or on disk.

    Args:
        seed: another seed gives another sequence.
        size: width and height in pixels.
        task: what targets have besides boxes, as in `ShapesDataset`.

    >>> source = EndlessShapes(seed=3)
    >>> [fresh.number for fresh in source.batch(step=5, images=2)]   # steps share no image
    [10, 11]
    >>> batches = source.batches(first_step=5, images=2)             # from there on for ever, drawn ahead of time
    >>> [[fresh.number for fresh in next(batches)] for _ in range(2)]
    [[10, 11], [12, 13]]
    """

    def __init__(self, seed: int = 0, size: int = 160, task: str = "boxes") -> None:
        if isinstance(seed, int) and seed >= NUMBERS:
            raise ConfigError(f"Expected seed of endless shapes to be a whole number below 2**32 but got {seed!r}.")
        self._images = ShapesDataset("train", length=NUMBERS, seed=seed, size=size, task=task)
        self.seed = seed
        self.size = size
        self.class_names = self._images.class_names

    def __getitem__(self, number: int) -> FreshImage:
        """The image of a number, with its windows and objects."""
        if not 0 <= number < NUMBERS:
            raise IndexError(f"Expected the number of an image to be in [0, 2**32) but got {number}.")
        image, target = self._images[number]
        return FreshImage(number, image, self._images.windows(number), target)

    def batch(self, step: int, images: int) -> list[FreshImage]:
        """The images of a step, if every step has this number of images."""
        return [self[number] for number in range(step * images, (step + 1) * images)]

    def batches(self, first_step: int, images: int) -> Iterator[list[FreshImage]]:
        """The images of one step after the other, each drawn by a thread while the one before it is in use."""
        with ThreadPoolExecutor(1) as pool:
            step = first_step
            coming = pool.submit(self.batch, step, images)
            while True:
                batch = coming.result()
                step += 1
                coming = pool.submit(self.batch, step, images)
                yield batch
