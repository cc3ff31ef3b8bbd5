"""Reading a COCO json file, with every problem named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.base import ImageId, ImageObjects, make_objects
from stepgrad.data.bulk_results import load_json, without_collection
from stepgrad.data.problems import DROP, Complaints, Report, brief, raise_errors
from stepgrad.data.shape_fields import (
    LARGEST,
    BadShapeError,
    ShapeReader,
    are_of_coco,
    are_pixels,
    pixels_of,
    sigmas_of,
)
from stepgrad.overlaps.keypoints import COCO_SIGMAS

JsonObject = dict[str, Any]  # as json gives it: any value may be of any type


@dataclass(frozen=True)
class CocoAnnotation:
    """One object of a COCO file."""

    id: ImageId | None
    category: int
    xywh: tuple[float, float, float, float]
    area: float | None
    """None if the file does not say."""
    crowd: int
    shapes: Mapping[str, Any] = field(default_factory=dict)
    """By task, those that were asked for: masks, keypoints, oriented."""


@dataclass(frozen=True)
class CocoImage:
    """One image with its objects, in the order of the file."""

    id: ImageId
    file_name: str
    size: tuple[int, int] | None
    name: str | None = None
    """What the image was called in a dataset whose ids are no numbers; `stepgrad convert` writes it."""
    annotations: list[CocoAnnotation] = field(default_factory=list)
    absent: tuple[int, ...] | None = None
    """Categories known not to be there, as LVIS has them (`neg_category_ids`); None in files that do not say."""
    partly: tuple[int, ...] = ()
    """Categories of which not all objects are annotated (`not_exhaustive_category_ids`)."""
    resizing: tuple[float, float, float, float] | None = None
    """Factors of x and y, then what is added, to the resized image in which boxes were counted; `save_counted` writes it."""

    def objects(self, label_of: Mapping[int, int], task: str = "boxes") -> ImageObjects:
        """The objects with the label of each category, and the shapes of a task."""
        return make_objects(
            xyxy_from_xywh(self.xywh),
            labels=[label_of[annotation.category] for annotation in self.annotations],
            crowd=[annotation.crowd for annotation in self.annotations],
            area=[self._area(annotation, task) for annotation in self.annotations],
            shapes=[annotation.shapes.get(task) for annotation in self.annotations],
        )

    def _area(self, annotation: CocoAnnotation, task: str) -> float:
        """The area as annotated, else that of the mask or of the box."""
        if annotation.area is not None:
            return annotation.area
        if task == "masks":
            return float(pixels_of([annotation.shapes[task]], f"annotation {annotation.id} (image {self.id})")[0])
        return annotation.xywh[2] * annotation.xywh[3]

    @property
    def xywh(self) -> NDArray[np.float64]:
        """(G, 4) x, y, width and height, the very numbers of the file."""
        return np.array([annotation.xywh for annotation in self.annotations], dtype=np.float64).reshape(-1, 4)


@dataclass(frozen=True)
class CocoFile:
    """The images and categories of a COCO file."""

    images: list[CocoImage]
    categories: dict[int, str]
    """Name by category id, in the order of the file."""
    shapes: ShapeReader
    """What was read of shapes."""
    poses: tuple[tuple[list[str], Any], ...] = ()
    """Of the categories that have keypoints, their names, and the skeleton as it stands."""
    said_sigmas: tuple[float, ...] | None = None
    """The `sigmas` of the categories; None in files that do not say."""

    @property
    def sigmas(self) -> tuple[float, ...] | None:
        """A sigma for each keypoint: as the file says, or COCO's if they are the keypoints of COCO's persons."""
        known = all(are_of_coco(names) for names, _ in self.poses)
        coco = COCO_SIGMAS if self.shapes.keypoints == len(COCO_SIGMAS) and known else None
        return self.said_sigmas or coco

    @cached_property
    def label_of(self) -> dict[int, int]:
        """The label of each category: its position."""
        return {category: label for label, category in enumerate(self.categories)}


def xyxy_from_xywh(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """(x1, y1, x2, y2) from (x, y, width, height).

    >>> xyxy_from_xywh(np.array([[10.0, 20.0, 5.0, 6.0]]))
    array([[10., 20., 15., 26.]])
    """
    return np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)


def read_coco(path: Path, report: Report = raise_errors, task: str | None = "boxes") -> CocoFile | None:
    """Read a file, handing every problem to `report`; entries with an error are left out, None if nothing is left.

    Args:
        path: the file.
        report: gets every problem.
        task: the shapes that each annotation must have; None: whatever is there is read.
    """
    complain, shapes = Complaints(path, report), ShapeReader(task)
    content = _read_json(path, complain)
    if content is None:
        return None
    categories = _read_categories(content["categories"], complain)
    images = _read_images(content["images"], complain)
    with without_collection():
        _read_annotations(content["annotations"], images, categories, shapes, complain)
    ordered = list(images.values())
    if all(isinstance(image.id, int) for image in ordered):
        ordered.sort(key=lambda image: image.id)
    named = [(entry.get("keypoints"), entry.get("skeleton")) for entry in content["categories"]]
    poses = tuple((names, bones) for names, bones in named if isinstance(names, list) and _are_texts(names))
    return CocoFile(ordered, categories, shapes, poses, _read_sigmas(content["categories"], shapes.keypoints, complain))


def _read_sigmas(entries: list[JsonObject], keypoints: int | None, complain: Complaints) -> tuple[float, ...] | None:
    """The sigmas of the categories, which have to be the same: OKS does not know of classes."""
    said = [entry["sigmas"] for entry in entries if entry.get("sigmas") is not None]
    if not said or keypoints is None:
        return None
    if any(other != said[0] for other in said):
        return complain("the `sigmas` of its categories differ", "judge one category at a time", "keypoint-sigmas")
    try:
        return sigmas_of(said[0], keypoints)
    except BadShapeError as error:
        return complain(f"`sigmas`: {error}", "correct them, or delete them and pass --sigmas", "keypoint-sigmas")


def _are_texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _read_json(path: Path, complain: Complaints) -> JsonObject | None:
    try:
        content = load_json(path.read_bytes())
    except OSError as error:
        return complain(f"cannot be read ({error.strerror})", "check the path", "json-damaged")
    except ValueError as error:  # what json raises for bad syntax and for bad characters
        return complain(f"is not JSON ({error})", "download or export the file again", "json-damaged")
    except RecursionError:
        return complain("is nested too deeply to be a COCO file", "export the file again", "json-damaged")
    if isinstance(content, list):
        fix = "pass the annotation file (detections go to `stepgrad evaluate --detections`)"
        return complain("is a list, as files of detections are", fix, "json-not-coco")
    keys = ("images", "categories", "annotations")
    lists = content if isinstance(content, dict) else {}
    bad = [key for key in keys if not _is_list_of_dicts(lists.get(key))]
    if bad:
        defect = f"expected lists {', '.join(keys)} but {', '.join(bad)} is not one"
        other = "; ActivityNet's json needs --task segments" if "database" in lists else ""
        return complain(defect, f"export it as COCO json{other}", "json-not-coco")
    return content


def _is_list_of_dicts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)


def _is_id(value: object) -> bool:
    return isinstance(value, (int, str)) and not isinstance(value, bool)


def _read_categories(entries: list[JsonObject], complain: Complaints) -> dict[int, str]:
    categories: dict[int, str] = {}
    for number, entry in enumerate(entries):
        category: Any = entry.get("id")
        name = entry.get("name")
        if not _is_id(category) or not isinstance(name, str):
            complain(f"category {number} lacks an id or a name", "write both", "category")
        elif category in categories or name in categories.values():
            defect = f"category {category} ({name}) occurs twice"
            complain(defect, "give each category its own id and name", "duplicate-id")
        else:
            categories[category] = name
    if not categories:
        complain("has no categories", "list at least one", "category")
    return categories


def _read_images(entries: list[JsonObject], complain: Complaints) -> dict[ImageId, CocoImage]:
    images: dict[ImageId, CocoImage] = {}
    seen: set[str] = set()
    for number, entry in enumerate(entries):
        image_id: Any = entry.get("id")
        if not _is_id(image_id):
            complain(f"image {number} has no id", "give each image an id", "image-id")
        elif str(image_id) in seen:  # detections of a text file could not tell 7 from "7"
            complain(f"image id {image_id} occurs more than once", "give each image its own id", "duplicate-id")
        else:
            name = entry.get("file_name", "")
            called = entry.get("name")
            images[image_id] = CocoImage(
                id=image_id,
                file_name=str(name) if _is_id(name) else "",
                size=_read_size(entry),
                name=called if isinstance(called, str) and called else None,
                absent=_categories(entry.get("neg_category_ids")),
                partly=_categories(entry.get("not_exhaustive_category_ids")) or (),
                resizing=_read_resizing(entry.get("resizing")),
            )
            seen.add(str(image_id))
    if not images:
        complain("lists no images", "choose another file", "no-images")
    return images


def _categories(listed: Any) -> tuple[int, ...] | None:
    """Category ids of a list; None where there is none. What is no number names no category."""
    if not isinstance(listed, list):
        return None
    return tuple(c for c in listed if isinstance(c, int) and not isinstance(c, bool))


def _read_size(entry: JsonObject) -> tuple[int, int] | None:
    width, height = entry.get("width"), entry.get("height")
    if not (isinstance(width, int) and isinstance(height, int)):
        return None
    return (width, height) if 0 < width < LARGEST and 0 < height < LARGEST else None


def _read_resizing(listed: Any) -> tuple[float, float, float, float] | None:
    if not are_pixels(listed, 4):
        return None
    x, y, right, down = map(float, listed)
    return (x, y, right, down) if x > 0.0 and y > 0.0 else None


def _read_annotations(
    entries: list[JsonObject],
    images: dict[ImageId, CocoImage],
    categories: dict[int, str],
    shapes: ShapeReader,
    complain: Complaints,
) -> None:
    """Put each annotation into the list of its image."""
    seen: set[ImageId] = set()
    for number, entry in enumerate(entries):
        annotation_id: Any = entry.get("id")
        where = f"annotation {annotation_id if _is_id(annotation_id) else f'number {number}'}"
        if isinstance(annotation_id, (list, dict)):
            defect = f"{where}: expected a number or text as id but got {brief(annotation_id)}"
            complain(defect, "number the annotations again", "annotation-id")
            continue
        if _is_id(annotation_id) and annotation_id in seen:
            defect = f"annotation id {annotation_id} occurs more than once"
            complain(defect, "number the annotations again", "duplicate-id")
        if annotation_id == 0:
            fix = "stepgrad counts it correctly, but pycocotools counts it as missed; number from 1"
            complain("annotation id 0", fix, "id-zero", "warning")
        if entry.get("ignore") and not entry.get("iscrowd"):
            fix = "pycocotools overwrites this key, so it counts the object; stepgrad does the same"
            complain(f"{where} sets `ignore`", fix, "ignore-field", "warning")
        seen.add(annotation_id)
        annotation = _read_annotation(entry, where, images, categories, shapes, complain)
        if annotation is not None:
            images[entry["image_id"]].annotations.append(annotation)


def _read_annotation(
    entry: JsonObject,
    where: str,
    images: dict[ImageId, CocoImage],
    categories: dict[int, str],
    shapes: ShapeReader,
    complain: Complaints,
) -> CocoAnnotation | None:
    image_id = entry.get("image_id")
    category = entry.get("category_id")
    box = entry.get("bbox")
    if not _is_id(image_id) or image_id not in images:
        defect = f"{where} belongs to unknown image {brief(image_id)}"
        return complain(defect, "add the image to the list, or delete the annotation", "unknown-image")
    where = f"{where} (image {image_id})"
    if not _is_id(category) or category not in categories:
        listed = ", ".join(f"{i} {name}" for i, name in categories.items())
        defect = f"{where} has unknown category {brief(category)}"
        return complain(defect, f"expected one of {listed}", "unknown-class")
    if not are_pixels(box, 4):
        defect = f"{where}: expected bbox [x, y, width, height] but got {brief(box)}"
        return complain(defect, "write its box in this form", "box-numbers")
    if box[2] <= 0 or box[3] <= 0:
        defect = f"{where}: width {box[2]:g}, height {box[3]:g}"
        return complain(defect, f"delete the annotation; {DROP}", "box-degenerate")
    area = entry.get("area")
    if area is not None and not (are_pixels([area], 1) and area >= 0):
        defect = f"{where}: expected an area of at least 0 but got {brief(area)}"
        return complain(defect, "write its area, or leave it out to use the area of the box", "area")
    try:
        shape = shapes.read(entry, images[image_id].size)
    except BadShapeError as error:
        complain(f"{where}: {error}", shapes.way_out, "shape", "error" if shapes.task else "warning")
        shape = {}
    x, y, width, height = (float(value) for value in box)
    return CocoAnnotation(
        id=entry.get("id"),
        category=category,
        xywh=(x, y, width, height),
        area=None if area is None else float(area),
        crowd=int(bool(entry.get("iscrowd", 0))),
        shapes=shape,
    )
