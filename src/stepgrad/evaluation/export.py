"""Judged detections and their numbers for other tools: one JSON document, supervision's `Detections`, and COCO's json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.errors import MissingDependencyError
from stepgrad.evaluation.class_result import ClassResult
from stepgrad.evaluation.judge import VERDICTS
from stepgrad.evaluation.records import Evidence, GroundTruth
from stepgrad.names import ImageId
from stepgrad.overlaps.keypoints import Poses
from stepgrad.overlaps.masks import Runs, coco_counts, dense_of
from stepgrad.overlaps.rotated import corners_of


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
        masks, more = _supervision_shapes(detections.shapes, rows, evidence)
        by_image[image_id] = supervision.Detections(
            xyxy=detections.boxes[rows],
            confidence=detections.scores[rows],
            class_id=detections.labels[rows].astype(int),
            **({} if masks is None else {"mask": masks}),
            data={
                "class_name": names[detections.labels[rows]].astype(str),
                "verdict": verdicts[rows].astype(str),
                **more,
            },
        )
    return by_image


def _supervision_shapes(shapes: Any, rows: NDArray[np.int64], evidence: Evidence) -> tuple[Any, dict[str, Any]]:
    """Masks (n, H, W), and what supervision keeps in `data`: corners of oriented boxes (n, 4, 2), keypoints (n, k, 3)."""
    if isinstance(shapes, Runs):
        return (np.stack([dense_of(shapes, row) for row in rows]).astype(np.bool_) if len(rows) else None), {}
    if isinstance(shapes, Poses):
        return None, {"keypoints": shapes.points[rows]}
    if shapes is not None and evidence.overlap.drawn == "polygon":
        return None, {"xyxyxyxy": corners_of(shapes, rows)}
    return None, {}


def to_coco(evidence: Evidence) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Annotations and detections as COCO's json has them: what `pycocotools.COCO` and its `loadRes` take.

    Images and categories are numbered from 1 in their order; `file_name` holds the id of the image. Masks are there as
    `segmentation` (run lengths, not compressed) and poses as `keypoints`; of oriented boxes only the upright ones around them.
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
    for entries, shapes in ((truth["annotations"], objects.shapes), (results, found.shapes)):
        for row, entry in enumerate(entries):
            entry |= _coco_shape(shapes, row)
            if isinstance(shapes, Runs):
                truth["images"][entry["image_id"] - 1] |= dict(
                    zip(("height", "width"), shapes.sizes[row].tolist(), strict=True)
                )
    return truth, results


def _coco_shape(shapes: Any, row: int) -> dict[str, Any]:
    """A mask as run lengths, a pose as keypoints; nothing of an oriented box, which COCO's json cannot hold."""
    if isinstance(shapes, Runs):
        return {"segmentation": {"size": shapes.sizes[row].tolist(), "counts": coco_counts(shapes, row)}}
    if isinstance(shapes, Poses):
        points = shapes.points[row]
        return {"keypoints": points.ravel().tolist(), "num_keypoints": int(np.count_nonzero(points[:, 2] > 0))}
    return {}


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
