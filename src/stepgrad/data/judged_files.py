"""Evidence from a dataset and a file of detections, in the pixel convention of the dataset.

VOC's files number pixels from 1 and include both corners: a box from 1 to 10 is ten pixels wide, and protocols with
`pixel_offset` 1 count it so. COCO's boxes are continuous. Evidence is in the convention of the annotation files, whose
numbers are never touched; detections that come in the other one are converted.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.base import DetectionDataset, image_sizes, join_objects
from stepgrad.data.coco import COCODataset
from stepgrad.data.read_detections import FileDetections
from stepgrad.data.shape_fields import shapes_of
from stepgrad.data.voc import VOCDataset
from stepgrad.evaluation.records import Evidence, GroundTruth, LookedFor
from stepgrad.overlaps.base import Boxes, Overlap


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
    overlap = dataset.overlap()
    return Evidence(
        detections.boxes(inclusive=offset == 1.0),
        _objects(dataset, overlap),
        list(dataset.ids),
        dataset.class_names,
        pixel_offset=None if as_they_stand else offset,
        looked_for=_looked_for(dataset) if isinstance(dataset, COCODataset) else None,
        limits=_limits(dataset),
        overlap=overlap,
        by_box_area=detections.by_box_area,
        resizings=_resizings(dataset) if isinstance(dataset, COCODataset) else None,
    )


def _looked_for(dataset: COCODataset) -> LookedFor | None:
    """What LVIS files say of each image; None for files that say nothing."""
    if all(image.absent is None for image in dataset.images):
        return None
    labels = {category: label for label, category in enumerate(dataset.category_ids)}
    absent = [(i, labels[c]) for i, image in enumerate(dataset.images) for c in image.absent or () if c in labels]
    partly = [(i, labels[c]) for i, image in enumerate(dataset.images) for c in image.partly if c in labels]
    return LookedFor(*(np.array(pairs, dtype=np.int64).reshape(-1, 2) for pairs in (absent, partly)))


def _limits(dataset: DetectionDataset) -> NDArray[np.float64]:
    """(images, 2, 4) lowest and highest corners of boxes in each image, in the convention of the annotation files."""
    high = np.tile(image_sizes(dataset), 2)
    to_inclusive = natural_offset(dataset) * np.array([1.0, 1.0, 0.0, 0.0])  # pixels from 1 to the size
    return np.stack([0.0 * high + to_inclusive, high + to_inclusive], axis=1)


def _resizings(dataset: COCODataset) -> NDArray[np.float64] | None:
    """How images were resized before their boxes were counted, as `save_counted` writes it; None in other files."""
    resizings = [image.resizing for image in dataset.images]
    return None if None in resizings else np.array(resizings, dtype=np.float64).reshape(-1, 4)


def _objects(dataset: DetectionDataset, overlap: Overlap) -> GroundTruth:
    """The numbers of the annotation files in double precision."""
    if isinstance(dataset, COCODataset) and dataset.task == "boxes":
        return _of_coco(dataset)
    of_images = [dataset.objects(i) for i in range(len(dataset))]
    images = np.repeat(np.arange(len(of_images), dtype=np.int32), [len(objects) for objects in of_images])
    joined = join_objects(of_images)
    truth = GroundTruth(images, joined.labels, joined.boxes, joined.difficult, joined.crowd, joined.area)
    if not isinstance(overlap, Boxes):
        shapes = [
            shapes_of(overlap, list(objects.shapes), dataset.source(i), boxes=objects.boxes, area=objects.area)
            for i, objects in enumerate(of_images)
        ]
        truth = replace(truth, shapes=overlap.join(shapes))
    if isinstance(dataset, VOCDataset):
        boxes = [dataset.devkit_boxes(i) for i in range(len(dataset))]
        return truth.with_boxes(np.concatenate([np.zeros((0, 4)), *boxes]))
    if isinstance(dataset, COCODataset):
        sizes = [image.xywh[:, 2:] for image in dataset.images]
        return replace(truth, sizes=np.concatenate([np.zeros((0, 2)), *sizes]))
    return truth


def _of_coco(dataset: COCODataset) -> GroundTruth:
    """The same of COCO's boxes, all images as if they were one: arrays for each of thousands of images take long."""
    counts = [len(image.annotations) for image in dataset.images]
    every = [annotation for image in dataset.images for annotation in image.annotations]
    one = replace(dataset.images[0], annotations=every)
    joined = one.objects(dataset.label_of)
    images = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    sizes = one.xywh[:, 2:]
    return GroundTruth(images, joined.labels, joined.boxes, joined.difficult, joined.crowd, joined.area, sizes)
