"""Detections to disk: COCO's result json and VOC's `comp4` text files, whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.errors import InputError
from stepgrad.evaluation.export import coco_annotations
from stepgrad.evaluation.flatten import detections_of, objects_of
from stepgrad.evaluation.records import Detections, ImageDict
from stepgrad.files import WriteError, explain, folder_beside, write_whole
from stepgrad.names import file_name, file_names, word
from stepgrad.pixels import devkit_from_continuous

if TYPE_CHECKING:
    from stepgrad.data.base import ImageId


def write_coco_results(
    path: str | Path,
    preds: Sequence[ImageDict],
    image_ids: Sequence[ImageId],
    categories: Sequence[int] | None = None,
    order: NDArray[np.int64] | None = None,
    more: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write detections (continuous boxes) as COCO's result json.

    Args:
        path: the file; it is replaced only once the new one is whole.
        preds: per image a dict of boxes, scores and labels.
        image_ids: the id of each image.
        categories: the category id of each label; None numbers them from 1.
        order: of the detections of all images, one after the other: which to write first, and so on. None: as they are.
        more: further fields of each of these detections, such as `segmentation`.
    """
    detections = detections_of(preds, 0, image_ids)
    _check_labels(detections, image_ids, None if categories is None else len(categories), "categories")
    rows = np.arange(len(detections)) if order is None else order
    columns = (column[rows] for column in (detections.images, detections.labels, detections.boxes, detections.scores))
    entries = [
        {
            "image_id": image_ids[image],
            "category_id": label + 1 if categories is None else categories[label],
            "bbox": [x1, y1, x2 - x1, y2 - y1],
            "score": score,
            **(more[row] if more else {}),
        }
        for row, image, label, (x1, y1, x2, y2), score in zip(
            rows.tolist(), *(column.tolist() for column in columns), strict=True
        )
    ]
    write_whole(Path(path), json.dumps(entries).encode())


def write_coco_annotations(
    path: str | Path,
    targets: Sequence[ImageDict],
    images: Sequence[Mapping[str, Any]],
    class_names: Sequence[str],
    more: Sequence[Mapping[str, Any]] = (),
    sigmas: Sequence[float] | None = None,
) -> None:
    """Write objects (continuous boxes) as COCO's json; categories are numbered from 1.

    Args:
        path: the file; it is replaced only once the new one is whole.
        targets: per image a dict of boxes and labels.
        images: the entry of each image: its "id", "file_name", "width", "height" and whatever else is known.
        class_names: of the labels.
        more: further fields of each object of all images, such as `segmentation`.
        sigmas: how far annotators differ about each keypoint.
    """
    said = {} if sigmas is None else {"sigmas": list(sigmas)}
    ids = [image["id"] for image in images]
    content = {
        "images": list(images),
        "categories": [{"id": number, "name": name, **said} for number, name in enumerate(class_names, 1)],
        "annotations": [
            {**entry, **(more[row] if more else {})}
            for row, entry in enumerate(coco_annotations(objects_of(targets, 0, ids), ids))
        ],
    }
    write_whole(Path(path), json.dumps(content).encode())


def write_voc_results(
    folder: str | Path,
    preds: Sequence[ImageDict],
    image_ids: Sequence[ImageId],
    class_names: Sequence[str],
    prefix: str = "comp4_det_test",
    decimals: int | None = 6,
) -> list[Path]:
    """Write detections (continuous boxes) as VOC text files, one per class, in 1-based inclusive pixels.

    Args:
        folder: where the files go; existing ones are replaced only once all new ones are whole.
        preds: per image a dict of boxes, scores and labels.
        image_ids: the id of each image.
        class_names: a file each, empty for a class without detections. What no file name can hold is percent-quoted,
            as are white space and line ends in image ids; `read_detections` knows.
        prefix: of the file names: `comp4_det_val` for VOC's val split.
        decimals: of scores and boxes; None writes as many as the numbers have. Three, as often seen, make ties.
    """
    detections = detections_of(preds, 0, image_ids)
    _check_labels(detections, image_ids, len(class_names), "class_names")
    words = [word(str(image_id)) for image_id in image_ids]
    start = f"{file_name(prefix)}_" if prefix else ""
    text = repr if decimals is None else f"{{:.{decimals}f}}".format
    boxes = devkit_from_continuous(detections.boxes).tolist()
    lines: dict[int, list[str]] = {label: [] for label in range(len(class_names))}
    for image, label, score, box in zip(
        detections.images.tolist(), detections.labels.tolist(), detections.scores.tolist(), boxes, strict=True
    ):
        lines[label].append(" ".join([words[image], *(text(value) for value in (score, *box))]) + "\n")
    contents = {
        f"{start}{name}.txt": "".join(lines[label]).encode() for label, name in enumerate(file_names(class_names))
    }
    return _write_together(Path(folder), contents)


def _check_labels(detections: Detections, image_ids: Sequence[ImageId], count: int | None, names: str) -> None:
    """Raise unless every label has an entry in the list of this name and length; None: there is no such list."""
    labels = detections.labels
    wrong = (labels < 0) | (labels >= (np.inf if count is None else count))
    if wrong.any():
        first = int(np.argmax(wrong))
        limit = "at least 0" if count is None else f"in [0, {count}), the entries of {names},"
        raise InputError(
            f"image {image_ids[detections.images[first]]}: expected labels {limit} but a detection has label {labels[first]}; "
            "labels that count background as 0 need 1 subtracted."
        )


def _write_together(folder: Path, contents: dict[str, bytes]) -> list[Path]:
    """All files or none: they are written in a folder next to it, then moved into place."""
    try:
        with folder_beside(folder) as beside:
            for name, content in contents.items():
                write_whole(beside / name, content)
            for name in contents:
                os.replace(beside / name, folder / name)
    except WriteError as error:
        raise WriteError(str(error).replace(str(beside), str(folder))) from error
    except OSError as error:
        raise WriteError(
            explain(Path(error.filename2 or folder), error)
        ) from error  # the file that could not be replaced
    return [folder / name for name in contents]
