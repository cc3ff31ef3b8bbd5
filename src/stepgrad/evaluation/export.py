"""Judged detections and their numbers for other tools: one JSON document, supervision's `Detections`, and COCO's json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepgrad.errors import MissingDependencyError
from stepgrad.evaluation.class_result import ClassResult
from stepgrad.evaluation.judge import VERDICTS
from stepgrad.evaluation.records import Evidence, GroundTruth
from stepgrad.names import ImageId


def to_supervision(evidence: Evidence, classes: Sequence[ClassResult], threshold: int = 0) -> dict[ImageId, Any]:
    """Per image the detections as `supervision.Detections`, with `class_name` and `verdict` in their data."""
    try:
        import supervision
    except ImportError as error:
        raise MissingDependencyError(
            "supervision: not installed but needed for to_supervision(): pip install supervision"
        ) from error
    detections = evidence.detections
    verdicts = np.full(len(detections), "", dtype=object)
    for row in classes:
        verdicts[row.rows] = [VERDICTS[int(verdict)] for verdict in row.verdicts[threshold]]
    names = np.array(evidence.class_names, dtype=object)
    by_image: dict[ImageId, Any] = {}
    for i, image_id in enumerate(evidence.image_ids):
        rows = np.flatnonzero(detections.images == i)
        by_image[image_id] = supervision.Detections(
            xyxy=detections.boxes[rows],
            confidence=detections.scores[rows],
            class_id=detections.labels[rows].astype(int),
            data={
                "class_name": names[detections.labels[rows]].astype(str),
                "verdict": verdicts[rows].astype(str),
            },
        )
    return by_image


def to_coco(evidence: Evidence) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Annotations and detections as COCO's json has them: what `pycocotools.COCO` and its `loadRes` take.

    Images and categories are numbered from 1 in their order; `file_name` holds the id of the image.
    """
    objects, found = evidence.objects, evidence.detections
    truth = {
        "images": [{"id": i, "file_name": str(image_id)} for i, image_id in enumerate(evidence.image_ids, 1)],
        "categories": [{"id": i, "name": name} for i, name in enumerate(evidence.class_names, 1)],
        "annotations": coco_annotations(objects, range(1, evidence.num_images + 1)),
    }
    columns = found.images.tolist(), found.labels.tolist(), found.boxes[:, :2].tolist(), found.sizes.tolist()
    results = [
        {"image_id": image + 1, "category_id": label + 1, "bbox": [*corner, *size], "score": score}
        for image, label, corner, size, score in zip(*columns, found.scores.tolist(), strict=True)
    ]
    return truth, results


def coco_annotations(objects: GroundTruth, image_ids: Sequence[ImageId]) -> list[dict[str, Any]]:
    """Objects as COCO's json has them, numbered from 1, categories too; `image_ids` has the id of each image."""
    columns = objects.images, objects.labels, objects.boxes[:, :2], objects.sizes, objects.area, objects.crowd
    return [
        {
            "id": number,
            "image_id": image_ids[image],
            "category_id": label + 1,
            "bbox": [*corner, *size],
            "area": area,
            "iscrowd": int(crowd),
        }
        for number, (image, label, corner, size, area, crowd) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True), 1
        )
    ]
