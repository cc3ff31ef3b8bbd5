"""Other people's evaluators, fed with the same detections."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from tests.evaluation.datasets import Entries


@dataclass(frozen=True)
class PycocoResult:
    stats: list[float]  # the twelve; -1 where there is nothing
    precision: np.ndarray  # (T, R, K, A, M)

    @property
    def ap_by_area(self) -> np.ndarray:
        """(A, K, T) AP; nan for a class without objects."""
        ap = self.precision[..., -1].mean(axis=1).transpose(2, 1, 0)
        return np.where(ap < 0, np.nan, ap)

    def ap(self, threshold: int, label: int) -> float:
        """AP of a class at one threshold, all areas; -1 for a class without objects."""
        return float(self.precision[threshold, :, label, 0, -1].mean())


def pycocotools(
    preds: Entries,
    targets: Entries,
    K: int,
    max_detections: Sequence[int] = (1, 10, 100),
    first_id: int = 1,
    areas: Mapping[str, tuple[float, float]] | None = None,
    **fields: Any,
) -> PycocoResult:
    """Evaluate by the reference code. `fields` are added to every annotation; `first_id` numbers them."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth, found = COCO(), COCO()
        common = {"images": [{"id": i} for i in range(len(preds))], "categories": [{"id": c} for c in range(K)]}
        truth.dataset = {**common, "annotations": _objects(targets, first_id, fields)}
        found.dataset = {**common, "annotations": _detections(preds)}
        truth.createIndex()
        found.createIndex()
        evaluation = COCOeval(truth, found, "bbox")
        evaluation.params.maxDets = list(max_detections)
        if areas is not None:
            evaluation.params.areaRng = [list(bounds) for bounds in areas.values()]
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return PycocoResult(evaluation.stats.tolist(), evaluation.eval["precision"])


def xywh(box: list[float]) -> list[float]:
    return [box[0], box[1], box[2] - box[0], box[3] - box[1]]


def _objects(targets: Entries, first_id: int, fields: dict[str, Any]) -> list[dict[str, Any]]:
    rows = [
        {
            "image_id": i,
            "category_id": int(entry["labels"][g]),
            "bbox": xywh(box),
            "area": float(entry["area"][g]) if "area" in entry else xywh(box)[2] * xywh(box)[3],
            "iscrowd": int(entry["iscrowd"][g]) if "iscrowd" in entry else 0,
        }
        for i, entry in enumerate(targets)
        for g, box in enumerate(entry["boxes"].tolist())
    ]
    extra = [{name: values[i] for name, values in fields.items()} for i in range(len(rows))]
    return [{"id": first_id + i, **row, **more} for i, (row, more) in enumerate(zip(rows, extra, strict=True))]


def _detections(preds: Entries) -> list[dict[str, Any]]:
    rows = [
        {"image_id": i, "category_id": int(y), "bbox": xywh(box), "score": float(s), "iscrowd": 0}
        for i, entry in enumerate(preds)
        for box, s, y in zip(entry["boxes"].tolist(), entry["scores"], entry["labels"], strict=True)
    ]
    return [{"id": i, "area": row["bbox"][2] * row["bbox"][3], **row} for i, row in enumerate(rows, 1)]
