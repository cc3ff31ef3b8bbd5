"""`stepgrad doctor` on a data.yaml of YOLO: every problem reported, everything readable returned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepgrad.data.doctor.poses import examine_flips, examine_names, keypoint_names
from stepgrad.data.doctor.summary import ExaminedDataset, ExaminedImage, Splits
from stepgrad.data.problems import Complaints, Report
from stepgrad.data.regions import REGIONS_FILE, read_regions
from stepgrad.data.yolo import YOLOImage, check_split, dataset_name, read_images, yolo_shape
from stepgrad.data.yolo_images import image_ids_of, list_images, region_key
from stepgrad.data.yolo_yaml import SPLITS, DataYaml, read_data_yaml
from stepgrad.number_text import agreeing, counted


def examine_yolo(
    path: Path, split: str | None, need_images: bool, images_outside: bool, report: Report
) -> ExaminedDataset:
    """Read the files; return the readable images, and report every problem."""
    data = read_data_yaml(path, images_outside, report)
    if data is None:
        return ExaminedDataset("YOLO dataset", path.stem, [], ())
    check_split(data, split)
    images = read_images(data, split, report, task=None)
    if split is None:
        _check_spare(data, images, report)
    ids = image_ids_of([image.path for image in images], data.root)
    entries = [_entry(image_id, image, data, need_images) for image_id, image in zip(ids, images, strict=True)]
    names = keypoint_names(data.keypoint_names)
    for problem in examine_names(str(path), names):
        report(problem)
    if data.keypoint_shape and data.flips is not None:
        for problem in examine_flips(str(path), data.flips, data.keypoint_shape[0], names):
            report(problem)
    splits = _splits(data, need_images) if split is None else {}
    return ExaminedDataset("YOLO dataset", dataset_name(data, split), entries, data.class_names, splits)


def _entry(image_id: str, image: YOLOImage, data: DataYaml, need_images: bool) -> ExaminedImage:
    class_names = data.class_names
    return ExaminedImage(
        image_id=image_id,
        source=str(image.label_path),
        image=image.path if need_images or image.size is None else None,
        size=image.size,
        objects=image.objects(len(class_names)),
        class_names=class_names,
        numbers=image.labels.lines if image.labels and image.size else (),
        word="line",
        as_shown=True,
        shapes=_shapes(image, data),
    )


def _shapes(image: YOLOImage, data: DataYaml) -> tuple[dict[str, Any], ...]:
    """What the lines have besides boxes: polygons, or keypoints."""
    if image.labels is None or image.size is None:
        return ()
    tasks = [{"polygon": "masks", "pose": "keypoints"}.get(kind) for kind in image.labels.kinds]
    return tuple(
        {task: yolo_shape(task, values, image.size, data.keypoint_shape)} if task else {}
        for task, values in zip(tasks, image.labels.values, strict=True)
    )


def _splits(data: DataYaml, need_images: bool) -> Splits:
    return {
        name: {
            str(path.resolve()): path if need_images else None for path in list_images(data, name, lambda problem: None)
        }
        for name in SPLITS
        if name in data.splits
    }


def _check_spare(data: DataYaml, images: list[YOLOImage], report: Report) -> None:
    """Report label files and ignored regions without an image."""
    labels = {image.label_path for image in images}
    for folder in sorted({path.parent for path in labels}):
        spare = sorted(path for path in folder.glob("*.txt") if path not in labels and path.name != "classes.txt")
        if spare and not any(image.path.parent == folder for image in images):
            defect = (
                f"{counted(len(spare), 'label file')} {agreeing(len(spare), 'have')} no image, first {spare[0].name!r}"
            )
            Complaints(folder, report)(defect, "they are not used; restore the images", "label-spare", "warning")
    place = data.path.parent / REGIONS_FILE
    unknown = sorted(
        set(read_regions(place, data.own, data.class_names, lambda problem: None))
        - {region_key(image.path) for image in images}
    )
    if unknown:
        absent = f"{counted(len(unknown), 'image')} that {agreeing(len(unknown), 'are')} not there"
        defect = f"has regions of {absent}, first {unknown[0]!r}"
        fix = 'expected names such as "train/a" for images/train/a.jpg; they are not used'
        Complaints(place, report)(defect, fix, "region-spare", "warning")
