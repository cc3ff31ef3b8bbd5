"""Evidence from a dataset and a file of detections, in the pixel convention of the dataset.

VOC's files number pixels from 1 and include both corners: a box from 1 to 10 is ten pixels wide, and protocols with
`pixel_offset` 1 count it so. COCO's boxes are continuous. Evidence is in the convention of the annotation files, whose
numbers are never touched; detections that come in the other one are converted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.base import DetectionDataset
from stepgrad.data.coco import COCODataset, xyxy_from_xywh
from stepgrad.data.voc import VOCDataset
from stepgrad.evaluation.read_files import FileDetections
from stepgrad.evaluation.records import Evidence, GroundTruth


def natural_offset(dataset: DetectionDataset) -> float:
    """The pixel offset that makes the numbers of the annotation files right: 1 for VOC, else 0."""
    return 1.0 if isinstance(dataset, VOCDataset) else 0.0


def evidence_from(dataset: DetectionDataset, detections: FileDetections, as_they_stand: bool = False) -> Evidence:
    """Detections and objects in the convention of the annotation files.

    Args:
        dataset: the objects.
        detections: as the file has them.
        as_they_stand: every protocol counts these very numbers; otherwise each gets them in its own convention.
    """
    offset = natural_offset(dataset)
    return Evidence(
        detections.boxes(inclusive=offset == 1.0),
        _objects(dataset),
        list(dataset.ids),
        dataset.class_names,
        pixel_offset=None if as_they_stand else offset,
    )


def _objects(dataset: DetectionDataset) -> GroundTruth:
    targets = [dataset.target(i) for i in range(len(dataset))]
    counts = [len(target["labels"]) for target in targets]
    column = lambda key, dtype: np.concatenate(  # noqa: E731
        [np.zeros(0, dtype=dtype), *(target[key].numpy().astype(dtype) for target in targets)]  # type: ignore[literal-required]
    )
    xywh = _xywh(dataset) if isinstance(dataset, COCODataset) else None
    return GroundTruth(
        images=np.repeat(np.arange(len(targets), dtype=np.int32), counts),
        labels=column("labels", np.int64),
        boxes=_boxes(dataset) if xywh is None else xyxy_from_xywh(xywh),
        difficult=column("difficult", np.bool_),
        crowd=column("iscrowd", np.bool_),
        area=_areas(dataset) if isinstance(dataset, COCODataset) else column("area", np.float64),
        sizes=None if xywh is None else xywh[:, 2:],  # type: ignore[arg-type]
    )


def _boxes(dataset: DetectionDataset) -> NDArray[np.float64]:
    """In double precision: targets are float32, which moves boxes with decimals a little."""
    if isinstance(dataset, VOCDataset):
        rows = [dataset.devkit_boxes(i) for i in range(len(dataset))]
    else:
        rows = [dataset.target(i)["boxes"].numpy().astype(np.float64) for i in range(len(dataset))]
    return np.concatenate([np.zeros((0, 4)), *rows])


def _xywh(dataset: COCODataset) -> NDArray[np.float64]:
    """(G, 4) the numbers of the file."""
    rows = [annotation.xywh for image in dataset.images for annotation in image.annotations]
    return np.array(rows, dtype=np.float64).reshape(-1, 4)


def _areas(dataset: COCODataset) -> NDArray[np.float64]:
    return np.array([a.area for image in dataset.images for a in image.annotations], dtype=np.float64)
