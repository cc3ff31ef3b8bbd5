"""`stepgrad doctor` on a COCO file: every problem reported, everything readable returned."""

from __future__ import annotations

import os
from pathlib import Path

from stepgrad.data.coco import holding_folder, image_file, own_files, refuses, usual_folders
from stepgrad.data.coco_json import CocoFile, CocoImage, read_coco
from stepgrad.data.doctor.poses import examine_names
from stepgrad.data.doctor.summary import ExaminedDataset, ExaminedImage
from stepgrad.data.problems import Complaints, Report
from stepgrad.data.shape_fields import ShapeReader


def examine_coco(
    path: Path, images: str | Path | None, need_images: bool, images_outside: bool, report: Report
) -> ExaminedDataset:
    """Read the file; return the readable images, and report every problem."""
    file = read_coco(path, report, task=None) or CocoFile([], {}, ShapeReader(None))
    tried = [Path(images)] if images else usual_folders(path)
    folder = holding_folder(tried, file.images) if need_images else None
    if need_images and file.images and folder is None:
        places = ", ".join(os.path.relpath(place, path.parent) for place in tried)
        fix = "name their folder (--images), or examine the annotations alone (--need_images false)"
        Complaints(path, report)(f"its images are in none of {places} (relative to its folder)", fix, "image-missing")
    own = own_files(path, images, images_outside)
    for names, skeleton in file.poses:
        for problem in examine_names(str(path), names, skeleton):
            report(problem)
    entries = []
    for image in file.images:
        picture = image_file(folder, image) if folder else None
        if need_images and refuses(own, path, image, [folder] if folder else tried, report):
            picture = None  # not even looked at
        entries.append(_entry(image, path, picture, file, report))
    return ExaminedDataset("COCO file", path.stem, entries, tuple(file.categories.values()))


def _entry(image: CocoImage, path: Path, picture: Path | None, file: CocoFile, report: Report) -> ExaminedImage:
    if picture and not os.path.isfile(picture):  # False for names too long for the disk, where pathlib raises
        defect = f"no such image ({path.name}, image {image.id})"
        Complaints(picture, report)(defect, "restore the image, or remove it from the file", "image-missing")
        picture = None
    ids = [annotation.id for annotation in image.annotations]
    numbers = tuple(number for number in ids if isinstance(number, int))
    by_id = len(numbers) == len(ids)
    return ExaminedImage(
        image_id=image.id,
        source=f"{path}, image {image.id}",
        image=picture,
        size=image.size,
        objects=image.objects(file.label_of),
        class_names=tuple(file.categories.values()),
        numbers=numbers if by_id else tuple(range(len(ids))),
        word="annotation" if by_id else "object",
        shapes=tuple(annotation.shapes for annotation in image.annotations),
    )
