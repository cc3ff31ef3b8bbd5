"""Judged detections and their numbers for other tools: one JSON document, supervision's `Detections`, and COCO's json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stepgrad.errors import InputError, MissingDependencyError
from stepgrad.evaluation.judge import VERDICTS
from stepgrad.evaluation.records import Evidence, GroundTruth
from stepgrad.names import ImageId

if TYPE_CHECKING:
    from stepgrad.evaluation.coco_numbers import CocoNumbers
    from stepgrad.evaluation.compare import Comparison
    from stepgrad.evaluation.errors_by_type import ErrorTypes
    from stepgrad.evaluation.result import EvaluationResult


def evidence_of(result: EvaluationResult) -> Evidence:
    """What a result was made of; InputError if it was not kept."""
    if result.evidence is None:
        raise InputError("Expected a result of `Evaluator.compute()` but this one does not hold its detections.")
    return result.evidence


def numbers_of(
    outcome: EvaluationResult | Comparison, coco: CocoNumbers | None = None, mistakes: ErrorTypes | None = None
) -> dict[str, Any]:
    """All numbers of an evaluation in one document: what `stepgrad evaluate --report FILE.json` writes."""
    content = outcome.to_dict()
    if coco is not None:
        content["coco"] = coco.to_dict()
    if mistakes is not None:
        content["errors"] = mistakes.to_dict()
    return content


def to_supervision(result: EvaluationResult, threshold: int = 0) -> dict[ImageId, Any]:
    """Per image the detections as `supervision.Detections`, with `class_name` and `verdict` in their data."""
    try:
        import supervision
    except ImportError as error:
        raise MissingDependencyError(
            "supervision: not installed but needed for to_supervision(): pip install supervision"
        ) from error
    evidence = evidence_of(result)
    detections = evidence.detections
    verdicts = np.full(len(detections), "", dtype=object)
    for row in result.classes:
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


def to_coco(result: EvaluationResult) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Annotations and detections as COCO's json has them: what `pycocotools.COCO` and its `loadRes` take.

    Images and categories are numbered from 1 in their order; `file_name` holds the id of the image.
    """
    evidence = evidence_of(result)
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
