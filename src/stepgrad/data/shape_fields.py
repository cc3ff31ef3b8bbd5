"""Masks, keypoints and oriented boxes as files have them: each read by itself, with what is wrong about it in words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.problems import brief
from stepgrad.errors import InputError
from stepgrad.number_text import counted
from stepgrad.overlaps import overlap_of
from stepgrad.overlaps.base import Overlap
from stepgrad.overlaps.batch import BOXES
from stepgrad.overlaps.keypoints import Keypoints
from stepgrad.overlaps.masks import Masks
from stepgrad.overlaps.rotated import Quads, quads_of_boxes, quads_of_corners

Task = Literal["boxes", "masks", "keypoints", "oriented", "segments"]
TASKS = ("boxes", "masks", "keypoints", "oriented")
"""Those of pictures."""
COCO_KEYPOINTS = (
    "nose",
    *(f"{side}_{part}" for part in ("eye", "ear", "shoulder", "elbow", "wrist") for side in ("left", "right")),
    *(f"{side}_{part}" for part in ("hip", "knee", "ankle") for side in ("left", "right")),
)
"""The keypoints of COCO's persons."""
FIELDS = {"masks": "segmentation", "keypoints": "keypoints", "oriented": "poly or rbox"}
"""What each task is read from in json."""
LARGEST = 1e15
"""Pixels; beyond it, and for NaN, something is wrong."""
FARTHEST = 1e5
"""Pixels from the corner of an image to a point of a polygon."""
Size = tuple[int, int] | None
"""Width and height of an image; None where they are not known."""


class BadShapeError(Exception):
    """A shape that cannot be read; the text says what was expected and what came."""


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value of json is a number; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def are_pixels(values: object, count: int | None = None) -> TypeGuard[list[float]]:
    """Whether this is a list of so many numbers, or of any, of a sensible size."""
    return (
        isinstance(values, list)
        and (count is None or len(values) == count)
        and all(is_number(v) and abs(v) < LARGEST for v in values)
    )


class ShapeReader:
    """Reads the shapes of json entries.

    Args:
        task: each entry must have the shape of this task. None: whatever is there is read, for the doctor.
    """

    def __init__(self, task: str | None) -> None:
        self.task = task
        self.seen: Counter[str] = Counter()
        """Number of entries that have masks and keypoints."""
        self.keypoints: int | None = None
        """Number of keypoints, that of the first entry."""

    @property
    def way_out(self) -> str:
        """What to do about an entry whose shape cannot be read."""
        if self.task is None:
            return "correct or delete it"
        return f'write the {FIELDS[self.task]} of each, or use the boxes alone: --task boxes (task="boxes" in Python)'

    def read(self, entry: Mapping[str, Any], size: Size) -> dict[str, Any]:
        """The shapes of an entry by task; raises BadShapeError."""
        has = [task for task in ("masks", "keypoints") if entry.get(FIELDS[task])]
        self.seen.update(has)
        wanted = has if self.task is None else [self.task] * (self.task != "boxes")
        return {task: self._shape(task, entry, size) for task in wanted}

    def _shape(self, task: str, entry: Mapping[str, Any], size: Size) -> Any:
        if task == "masks":
            return mask_of(_field(entry, "segmentation"), size) | _counted_mask(entry)
        if task == "oriented":
            return oriented_of(entry)
        points = keypoints_of(_field(entry, "keypoints"))
        self.keypoints = self.keypoints or len(points)
        if len(points) != self.keypoints:
            raise BadShapeError(
                f"expected {self.keypoints} keypoints, as in the rest of the data, but got {len(points)}"
            )
        return points


def _field(entry: Mapping[str, Any], name: str) -> Any:
    if name not in entry:
        raise BadShapeError(f"has no `{name}`")
    return entry[name]


def mask_of(value: Any, size: Size) -> dict[str, Any]:
    """A mask in the form that `sg.overlaps.Masks` takes, from COCO's `segmentation`."""
    if isinstance(value, Mapping):
        return _run_lengths(value, size)
    if not (isinstance(value, list) and value and all(is_polygon(part) for part in value)):
        form = "polygons [[x1, y1, x2, y2, x3, y3, ...], ...] or run lengths {size, counts}"
        raise BadShapeError(f"expected segmentation to be {form} but got {brief(value)}")
    return polygon_mask(value, size)


def _counted_mask(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The mask of the same entry as a tool compared it, if the file says (`save_counted`)."""
    value = entry.get("counted")
    if not isinstance(value, Mapping):
        return {}
    resizing = value.get("resizing")
    if not are_pixels(resizing, 4) or min(resizing[:2]) <= 0:
        form = "positive factors of x and y, then what is added"
        raise BadShapeError(f"expected `resizing` of a counted mask to be {form}, but got {brief(resizing)}")
    return {"counted": _run_lengths(value, None) | {"resizing": resizing}}


def polygon_mask(polygons: Sequence[Any], size: Size) -> dict[str, Any]:
    """A mask of polygons in pixels."""
    if size is None:
        raise BadShapeError("polygons need the size of their image: write its width and height")
    return {"size": [size[1], size[0]], "polygons": polygons}


def is_polygon(value: object) -> TypeGuard[list[float]]:
    """Whether this is a list of at least three points x, y in pixels."""
    if not isinstance(value, list) or len(value) < 6 or len(value) % 2:
        return False
    return all(is_number(v) and abs(v) <= FARTHEST for v in value)


def _run_lengths(value: Mapping[str, Any], size: Size) -> dict[str, Any]:
    shape, counts = value.get("size"), value.get("counts")
    whole = isinstance(shape, list) and len(shape) == 2 and all(isinstance(s, int) and 0 < s < 2**31 for s in shape)
    if not whole or not isinstance(shape, list):
        raise BadShapeError(f"expected run lengths with size [height, width] but got {brief(shape)}")
    if size is not None and shape != [size[1], size[0]]:
        raise BadShapeError(f"the mask is {shape[1]} x {shape[0]} pixels but the image is {size[0]} x {size[1]}")
    if isinstance(counts, list) and not all(is_number(c) and 0 <= c < 2**31 and c == int(c) for c in counts):
        counts = None
    if not isinstance(counts, (str, list)):
        raise BadShapeError(f"expected counts as text or as a list of lengths but got {brief(value.get('counts'))}")
    return {"size": shape, "counts": counts}


def keypoints_of(value: Any) -> NDArray[np.float64]:
    """(k, 3) x, y and visibility."""
    if not (are_pixels(value) and value and len(value) % 3 == 0):
        raise BadShapeError(f"expected keypoints [x1, y1, v1, x2, y2, v2, ...] but got {brief(value)}")
    return np.array(value, dtype=np.float64).reshape(-1, 3)


def oriented_of(entry: Mapping[str, Any]) -> NDArray[np.float64]:
    """(8,) corners, from `poly` (four corners), `rbox` (centre, size, angle in radians) or a segmentation of four points."""
    corners, box, outline = entry.get("poly"), entry.get("rbox"), entry.get("segmentation")
    if isinstance(corners, list) and len(corners) == 4 and all(isinstance(c, list) for c in corners):
        corners = [value for corner in corners for value in corner]
    if corners is None and isinstance(outline, list) and len(outline) == 1:
        corners = outline[0]
    if are_pixels(corners, 8):
        return np.array(corners, dtype=np.float64)
    if are_pixels(box, 5) and min(box[2:4]) >= 0:
        return quads_of_boxes(np.array([box], dtype=np.float64)).corners.reshape(8)
    if corners is None and box is None:
        raise BadShapeError("has neither `poly` nor `rbox` nor a `segmentation` of four points")
    form = "poly [x1, y1, ..., x4, y4] or rbox [cx, cy, w, h, angle]"
    raise BadShapeError(f"expected {form} but got {brief(box if corners is None else corners)}")


def quad_defect(corners: NDArray[np.float64]) -> str | None:
    """What is wrong with an oriented box (8,), if anything."""
    try:
        quad: Quads = quads_of_corners(corners[None], "")
    except InputError:
        return "expected four corners in turn around a convex box"
    return None if quad.areas[0] > 0.0 else "the box has no area"


def quad_of(shape: NDArray[np.float64]) -> NDArray[np.float64]:
    """(8,) corners of an oriented box, from them or from (cx, cy, w, h, angle)."""
    return shape if len(shape) == 8 else quads_of_boxes(shape[None].astype(np.float64)).corners.reshape(8)


def overlap_for(task: str, sigmas: Sequence[float] | None = None) -> Overlap:
    """The overlap of a task; that of poses has the sigmas of the data."""
    if task == "keypoints":
        return Keypoints(sigmas)
    return BOXES if task == "boxes" else overlap_of(task)


def sigmas_of(value: Any, keypoints: int) -> tuple[float, ...]:
    """A sigma for each keypoint, as a file has them; raises BadShapeError."""
    if not isinstance(value, (list, tuple)) or not all(is_number(v) and 0.0 < v < LARGEST for v in value):
        raise BadShapeError(f"expected a positive number for each keypoint as its sigma but got {brief(value)}")
    if len(value) != keypoints:
        raise BadShapeError(f"expected {counted(keypoints, 'sigma')}, one per keypoint, but got {len(value)}")
    return tuple(float(v) for v in value)


def are_of_coco(names: Sequence[str]) -> bool:
    """Whether keypoints are those of COCO's persons by their names, however these are spelled.

    >>> are_of_coco(["Nose", "left eye"]), are_of_coco([name.replace("_", " ") for name in COCO_KEYPOINTS])
    (False, True)
    """
    return [re.sub("[^a-z]", "", name.lower()) for name in names] == [name.replace("_", "") for name in COCO_KEYPOINTS]


def pixels_of(masks: Sequence[Any], where: str) -> NDArray[np.float64]:
    """(n,) pixels of each mask."""
    overlap = Masks()
    return overlap.areas(overlap.windows(list(masks), where))


def shapes_of(overlap: Overlap, column: Sequence[Any], where: str, **target: Any) -> Any:
    """Shapes of one image, or of all detections, as the overlap keeps them; objects come with the rest of their target."""
    given: Any = list(column)
    if overlap.key != "masks":
        given = np.array(given, dtype=np.float64)
    if not target or overlap.key != "keypoints":
        return overlap.windows(given, where)
    return overlap.objects({**target, overlap.key: given}, where)


def no_shapes(G: int) -> NDArray[np.object_]:
    """(G,) places for shapes, all empty."""
    return np.full(G, None, dtype=object)


def column_of(shapes: Sequence[Any]) -> NDArray[np.object_]:
    """(G,) shapes; NumPy would make a table of lists of equal length."""
    column = no_shapes(len(shapes))
    for i, shape in enumerate(shapes):
        column[i] = shape
    return column


def in_pixels(
    shares: Sequence[float] | NDArray[np.float64], size: tuple[int, int], step: int = 2
) -> NDArray[np.float64]:
    """(n / step, step) points from shares of the image's width and height; a third number of each stays what it is."""
    points = np.array(shares, dtype=np.float64).reshape(-1, step)
    points[:, 0] *= size[0]
    points[:, 1] *= size[1]
    return points
