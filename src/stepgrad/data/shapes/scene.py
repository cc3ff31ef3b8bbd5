"""One picture of the built-in set: background, clutter, objects, look-alikes and occluders, from a seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.shapes.annotations import KEYPOINTS, outermost_points, smallest_box
from stepgrad.data.shapes.draws import Draws
from stepgrad.data.shapes.outlines import CLASSES, LOOK_ALIKES, Mask, Outline, bar
from stepgrad.data.shapes.paint import Canvas, Placed, bounds, cloud_field, draw_pose, paint, place, texture

RADII = ((7.0, 11.0), (11.0, 18.0), (18.0, 29.0), (29.0, 46.0))
"""Each range is as likely as the next, so that all scales occur: objects from some 10 to 100 pixels."""
VISIBLE = 0.2
"""No object is ever hidden further than this share of its pixels."""
DIFFICULT = 0.45
"""An object of which less than this share is to be seen is marked difficult."""
MIN_PIXELS = 40
TRIES = 12


@dataclass
class PaintedShape:
    """An object (label >= 0), or a look-alike or occluder (-1)."""

    label: int
    placed: Placed
    visible: int


@dataclass
class Stage:
    """A canvas being painted; `owner` holds for each pixel the number of the item on top, -1 for none."""

    size: int
    canvas: Canvas
    clouds: NDArray[np.int32]
    owner: NDArray[np.int32]
    items: list[PaintedShape] = field(default_factory=list)


@dataclass(frozen=True)
class DrawnScene:
    """A finished picture and what is on it."""

    image: NDArray[np.uint8]
    boxes: NDArray[np.float64]
    labels: NDArray[np.int64]
    difficult: NDArray[np.bool_]
    decoys: NDArray[np.float64]
    """(D, 4) boxes of the look-alikes and occluders."""
    parts: tuple[VisiblePart, ...]
    """(G,) the pixels of each object."""

    def masks(self) -> NDArray[np.bool_]:
        """(G, H, W) the visible pixels of each object."""
        whole = np.zeros((len(self.parts), *self.image.shape[:2]), dtype=np.bool_)
        for mask, part in zip(whole, self.parts, strict=True):
            mask[part.placed.rows, part.placed.columns] = part.seen
        return whole

    def keypoints(self) -> NDArray[np.float64]:
        """(G, 4, 3) outermost points of each object."""
        points = [
            outermost_points(p.placed.mask, p.placed.columns.start, p.placed.rows.start, p.seen) for p in self.parts
        ]
        return np.array(points).reshape(-1, len(KEYPOINTS), 3)

    def oriented(self) -> NDArray[np.float64]:
        """(G, 5) the smallest box at any angle around the visible pixels of each object."""
        boxes = [smallest_box(part.seen, part.placed.columns.start, part.placed.rows.start) for part in self.parts]
        return np.array(boxes).reshape(-1, 5)


@dataclass(frozen=True)
class VisiblePart:
    """The pixels of one object: all of it inside the picture, and what nothing hides."""

    placed: Placed
    seen: Mask


@lru_cache(maxsize=16)
def draw_scene(key: tuple[int, ...], size: int) -> DrawnScene:
    """The picture named by `key`; the same bits on every machine. The last few are kept, so asking twice is cheap."""
    draws = Draws(*key)
    clouds = cloud_field(draws, size)
    base = np.stack([clouds, clouds[::-1], clouds[:, ::-1]], axis=-1)
    canvas = (base * (draws.colour() // 2 + 64) + (256 - base) * (draws.colour() // 2)) >> 8
    stage = Stage(size, canvas.astype(np.int32), clouds, np.full((size, size), -1, dtype=np.int32))
    _clutter(draws, stage)
    _populate(draws, stage)
    return _finish(draws, stage)


def _clutter(draws: Draws, stage: Stage) -> None:
    """Strokes and specks that belong to nothing, with the textures of the objects."""
    for _ in range(draws.integer(6, 15)):
        stroke = draws.chance(0.7)
        radius = draws.uniform(8.0, 40.0) if stroke else draws.uniform(3.0, 5.5)
        outline = bar if stroke else draws.choice(LOOK_ALIKES)
        placed = place(outline, draw_pose(draws, stage.size, radius, 0.2), stage.size)
        paint(stage.canvas, placed, texture(draws, placed, stage.clouds), draws.integer(60, 200))


def _populate(draws: Draws, stage: Stage) -> None:
    """Two to six objects among look-alikes and occluders, each on top of those before it."""
    objects = draws.integer(2, 7)
    alikes = draws.integer(0, 4)
    bars = draws.integer(0, 4)
    labels = [draws.integer(0, len(CLASSES)) for _ in range(objects)] + [-1] * alikes + [-2] * bars
    order = np.argsort(draws.bytes(len(labels)), kind="stable")
    outlines = tuple(CLASSES.values())
    for label in (labels[i] for i in order):
        outline = outlines[label] if label >= 0 else bar if label == -2 else draws.choice(LOOK_ALIKES)
        _add(draws, stage, outline, label)


def _add(draws: Draws, stage: Stage, outline: Outline, label: int) -> None:
    """Find room for an item so that nothing disappears under it, and paint it; a tight spot makes it smaller."""
    radius = draws.uniform(15, 45) if label == -2 else draws.uniform(*draws.choice(RADII))
    radius *= stage.size / 160.0
    for attempt in range(TRIES):
        shrink = 1.0 if attempt < TRIES // 2 else 0.75
        radius = max(radius * shrink, 6.0)
        placed = place(outline, draw_pose(draws, stage.size, radius, 0.7), stage.size)
        if placed.pixels >= MIN_PIXELS and _leaves_all_visible(stage, placed):
            break
    else:
        return
    colours = texture(draws, placed, stage.clouds)
    paint(stage.canvas, placed, colours, 256 if label == -2 else draws.integer(150, 257))
    stage.owner[placed.rows, placed.columns][placed.mask] = len(stage.items)
    stage.items.append(PaintedShape(label, placed, placed.pixels))


def _leaves_all_visible(stage: Stage, placed: Placed) -> bool:
    """Whether every object below stays visible; if so, count what it loses."""
    below = stage.owner[placed.rows, placed.columns][placed.mask]
    lost = np.bincount(below[below >= 0], minlength=len(stage.items))
    left = [item.visible - int(count) for item, count in zip(stage.items, lost, strict=True)]
    for item, pixels in zip(stage.items, left, strict=True):
        if item.label >= 0 and pixels < max(VISIBLE * item.placed.pixels, MIN_PIXELS / 2):
            return False
    for item, pixels in zip(stage.items, left, strict=True):
        item.visible = pixels
    return True


def _finish(draws: Draws, stage: Stage) -> DrawnScene:
    """Soften, add sensor noise, and read off the visible boxes."""
    size = stage.size
    canvas = _soften(stage.canvas)
    strength = draws.integer(6, 30)
    noise = draws.bytes(size, size, 3).astype(np.int32) + draws.bytes(size, size, 3) - 255
    image = np.clip(canvas + ((noise * strength) >> 8), 0, 255).astype(np.uint8)
    image.flags.writeable = False
    boxes: list[tuple[int, int, int, int]] = []
    labels: list[int] = []
    difficult: list[bool] = []
    decoys: list[tuple[int, int, int, int]] = []
    parts: list[VisiblePart] = []
    for number, item in enumerate(stage.items):
        visible = stage.owner[item.placed.rows, item.placed.columns] == number
        if not visible.any():
            continue
        box = bounds(visible, item.placed)
        if item.label < 0:
            decoys.append(box)
            continue
        boxes.append(box)
        parts.append(VisiblePart(item.placed, visible))
        labels.append(item.label)
        difficult.append(item.visible < DIFFICULT * item.placed.pixels)
    return DrawnScene(
        image=image,
        boxes=np.array(boxes, dtype=np.float64).reshape(-1, 4),
        labels=np.array(labels, dtype=np.int64),
        difficult=np.array(difficult, dtype=np.bool_),
        decoys=np.array(decoys, dtype=np.float64).reshape(-1, 4),
        parts=tuple(parts),
    )


def _soften(canvas: Canvas) -> Canvas:
    """Weights 1 2 1 down and across, in whole numbers: edges as a lens gives them."""
    rows = np.pad(canvas, ((1, 1), (0, 0), (0, 0)), mode="edge")
    rows = rows[:-2] + 2 * rows[1:-1] + rows[2:]
    both = np.pad(rows, ((0, 0), (1, 1), (0, 0)), mode="edge")
    return (both[:, :-2] + 2 * both[:, 1:-1] + both[:, 2:]) >> 4
