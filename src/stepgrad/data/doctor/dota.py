"""`stepgrad doctor` on a folder of DOTA: every problem reported, everything readable returned."""

from __future__ import annotations

from pathlib import Path

from stepgrad.data.doctor.summary import ExaminedDataset, ExaminedImage
from stepgrad.data.dota import dota_classes, picture_of, read_dota
from stepgrad.data.own_files import OwnFiles
from stepgrad.data.problems import Complaints, Report


def examine_dota(path: Path, need_images: bool, images_outside: bool, report: Report) -> ExaminedDataset:
    """Read the files; return the readable images, and report every problem."""
    own = OwnFiles(path.parent, outside=images_outside)
    images = read_dota(path, own, report)
    classes = dota_classes(images)
    entries = []
    for image in images:
        picture = picture_of(image, own, report) if need_images else None
        if need_images and picture is None:
            fix = f"put it into {path.parent / 'images'}, or examine the annotations alone (--need_images false)"
            Complaints(image.label_path, report)("its image is missing", fix, "image-missing")
        objects = image.objects({name: label for label, name in enumerate(classes)})
        entries.append(
            ExaminedImage(
                image_id=image.label_path.stem,
                source=str(image.label_path),
                image=picture,
                size=None,
                objects=objects,
                class_names=classes,
                numbers=tuple(line[3] for line in image.lines),
                word="line",
                shapes=tuple({"oriented": shape} for shape in objects.shapes),
            )
        )
    return ExaminedDataset("DOTA folder", path.parent.resolve().name, entries, classes)
