"""The page on which a person accepts or rejects changes of labels, and exports the review."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stepgrad.data.base import DetectionDataset
from stepgrad.data.review import KIND_OF_FILE, labels_digest, proposed_changes
from stepgrad.evaluation.label_errors import LabelError
from stepgrad.evaluation.records import Evidence
from stepgrad.files import write_whole
from stepgrad.report.image_data import as_script
from stepgrad.report.numbers import plain
from stepgrad.report.page import fill_template
from stepgrad.report.pictures import Photo, prepare_photos
from stepgrad.report.places import continuous_corners

MOST_SHOWN = 500
"""Changes on one page; make it again after these were decided and applied."""


def write_label_page(
    page: Path,
    *,
    title: str,
    evidence: Evidence,
    errors: Sequence[LabelError],
    dataset: DetectionDataset,
    protocol: str,
    mean_ap: float,
) -> Path:
    """Write the page with the first changes, each with its picture; returns its path."""
    shown = errors[:MOST_SHOWN]
    review = _review(page, evidence, shown, dataset)
    numbers = plain(
        {
            "title": title,
            "found": len(errors),
            "shown": len(shown),
            "changes": [error.kind for error in shown],
            "map": mean_ap,
            "protocol": protocol,
            "images": evidence.num_images,
            "objects": len(evidence.objects),
            "config": {},
        }
    )
    write_whole(page, fill_template("labels.html.jinja", numbers, review=as_script(review)).encode())
    return page


def _review(page: Path, evidence: Evidence, errors: Sequence[LabelError], dataset: DetectionDataset) -> dict[str, Any]:
    """The changes to decide on, and the pictures that they are in."""
    positions = list(dict.fromkeys(error.image for error in errors))
    limits = None if evidence.limits is None else evidence.limits[positions]
    ids = [evidence.image_ids[position] for position in positions]
    photos = prepare_photos(page, replace(evidence, image_ids=ids, limits=limits), dataset)
    found = continuous_corners(evidence, evidence.detections.boxes).tolist()
    changes = proposed_changes(errors, evidence)
    for change, error in zip(changes, errors, strict=True):
        change["picture"] = positions.index(error.image)
        change["found"] = None if error.detection is None else found[error.detection]
        change["now"] = None if error.object is None else evidence.class_names[evidence.objects.labels[error.object]]
    pictures = [_picture(evidence, position, photo) for position, photo in zip(positions, photos, strict=True)]
    return {"file": KIND_OF_FILE, "labels": labels_digest(dataset), "changes": changes, "pictures": pictures}


def _picture(evidence: Evidence, position: int, photo: Photo) -> dict[str, Any]:
    """The picture with its labels; of a picture whose size is not known, one that holds all boxes."""
    labels, found = (
        continuous_corners(evidence, side.boxes[side.images == position])
        for side in (evidence.objects, evidence.detections)
    )
    extent = np.concatenate([np.ones((1, 4)), labels, found])[:, 2:].max(axis=0).round().astype(int).tolist()
    return {"src": photo.source, "size": photo.size or extent, "labels": labels.round(1).tolist()}
