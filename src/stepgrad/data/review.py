"""Reviews of labels: what a person accepted of the proposed changes, and a new annotation file with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepgrad.data.base import DetectionDataset
from stepgrad.data.coco import COCODataset
from stepgrad.errors import DataError, one_of
from stepgrad.evaluation.label_errors import KINDS, LabelError
from stepgrad.evaluation.records import Evidence, GroundTruth
from stepgrad.files import read_json, write_whole
from stepgrad.number_text import counted

KIND_OF_FILE = "stepgrad review of labels"
Change = dict[str, Any]


def labels_digest(dataset: DetectionDataset) -> str:
    """A hash of all labels of a dataset, with the names of its images and classes."""
    digest = hashlib.sha256(json.dumps([list(dataset.ids), list(dataset.class_names)]).encode())
    for i in range(len(dataset)):
        objects = dataset.objects(i)
        for column in (objects.boxes, objects.labels, objects.difficult, objects.crowd):
            digest.update(len(objects).to_bytes(8, "little") + np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()


def proposed_changes(errors: Sequence[LabelError], evidence: Evidence) -> list[Change]:
    """The changes as a review has them: images and classes by name, boxes continuous, an object by its place in its image."""
    corner = np.array([1.0, 1.0, 0.0, 0.0]) * (evidence.pixel_offset or 0.0)  # inclusive pixels count from 1
    return [
        {
            "kind": error.kind,
            "image": evidence.image_ids[error.image],
            "object": None if error.object is None else _place(evidence.objects, error.object),
            "class": evidence.class_names[error.label],
            "box": (np.array(error.box) - corner).tolist(),
            "score": None if error.detection is None else float(evidence.detections.scores[error.detection]),
            "gain": error.gain,
        }
        for error in errors
    ]


def _place(objects: GroundTruth, row: int) -> int:
    return int(np.count_nonzero(objects.images[:row] == objects.images[row]))


def apply_review(review: Path, dataset: DetectionDataset, out: Path) -> int:
    """Write the annotations with the accepted changes to a new COCO file; returns how many were accepted.

    What the file says beyond boxes and classes stays as it is, except the mask of an object whose box was redrawn.
    """
    if not isinstance(dataset, COCODataset):
        raise DataError(
            f"{dataset.name}: expected a COCO file to change but this is none; write one with `stepgrad convert DATA --to coco "
            "FOLDER`, then review and change that"
        )
    if out.exists():
        raise DataError(f"{out}: exists already; choose a new file, since nothing is overwritten")
    changes = [change for change in _read_review(review, dataset) if change["accepted"]]
    content = json.loads(dataset.path.read_bytes())
    _change(content, changes, dataset)
    write_whole(out, json.dumps(content).encode())
    return len(changes)


def _read_review(path: Path, dataset: COCODataset) -> list[Change]:
    """The changes of a review that belongs to this data."""
    content = read_json(path, "check the path", "export the review again")
    if (
        not isinstance(content, dict)
        or content.get("file") != KIND_OF_FILE
        or not isinstance(content.get("changes"), list)
    ):
        raise DataError(f"{path}: expected a review that the page of `stepgrad doctor --detections` exported")
    if content.get("labels") != labels_digest(dataset):
        raise DataError(
            f"{path}: is a review of other labels than those of {dataset.path}; the data was changed since, or it is another "
            "split. Make the page again for this data, or give the data that was reviewed"
        )
    for number, change in enumerate(content["changes"]):
        _check_change(change, f"{path}: change {number}", dataset)
    return list(content["changes"])


def _check_change(change: Any, where: str, dataset: COCODataset) -> None:
    """Raise DataError unless a change says all that is needed to make it."""
    types: dict[str, tuple[type, ...]] = {"kind": (str,), "image": (int, str), "object": (int, type(None))}
    types |= {"class": (str,), "box": (list,), "accepted": (bool,)}
    if not isinstance(change, dict):
        raise DataError(f"{where}: expected an object but got {change!r}; export the review again")
    wrong = [name for name, kind in types.items() if not isinstance(change.get(name, ...), kind)]
    if wrong:
        raise DataError(f"{where}: {', '.join(wrong)} missing or of a wrong type; export the review again")
    one_of(f"{where}: kind", change["kind"], list(KINDS))
    one_of(f"{where}: class", change["class"], list(dataset.class_names))
    labels = len(dataset.images[dataset.index_of(change["image"])].annotations)
    if change["kind"] != "add" and change["object"] not in range(labels):
        raise DataError(
            f"{where}: object {change['object']} of image {change['image']}, which has {counted(labels, 'object')}"
        )
    box = change["box"]
    numbers = len(box) == 4 and all(type(v) in (int, float) and np.isfinite(v) for v in box)
    if not (numbers and box[2] > box[0] and box[3] > box[1]):
        raise DataError(f"{where}: expected a box x1 y1 x2 y2 with an area but got {box!r}; export the review again")


def _change(content: dict[str, Any], changes: Sequence[Change], dataset: COCODataset) -> None:
    """Make the changes in the content of a COCO file."""
    of_image: dict[Any, list[dict[str, Any]]] = {}
    for entry in content["annotations"]:
        of_image.setdefault(entry["image_id"], []).append(entry)
    category = dict(zip(dataset.class_names, dataset.category_ids, strict=True))
    numbers = [entry["id"] for entry in content["annotations"] if isinstance(entry.get("id"), int)]
    next_id = max(numbers, default=0) + 1
    gone = set()
    for change in changes:
        x1, y1, x2, y2 = change["box"]
        drawn = {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1)}
        image_id = dataset.ids[dataset.index_of(change["image"])]
        if change["kind"] == "add":
            new = {"id": next_id, "image_id": image_id, "category_id": category[change["class"]], **drawn, "iscrowd": 0}
            content["annotations"].append(new)
            next_id += 1
            continue
        entry = of_image[image_id][change["object"]]
        if change["kind"] == "remove":
            gone.add(id(entry))
        elif change["kind"] == "swap":
            entry["category_id"] = category[change["class"]]
        else:
            entry.update(drawn)
            entry.pop("segmentation", None)  # the outline of the old box
    content["annotations"] = [entry for entry in content["annotations"] if id(entry) not in gone]
