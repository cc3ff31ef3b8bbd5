"""`stepgrad doctor` on a VOC folder: every problem reported, everything readable returned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from stepgrad.data.doctor.summary import ExaminedDataset, ExaminedImage, Splits
from stepgrad.data.own_files import OwnFiles
from stepgrad.data.problems import Problem, Report
from stepgrad.data.voc import (
    CLASS_FILE,
    VOC_CLASSES,
    annotation_file,
    check_names,
    image_ids,
    index_images,
    infer_classes,
    list_splits,
    read_class_file,
)
from stepgrad.data.voc_xml import VOCAnnotation, read_annotation
from stepgrad.data.yolo_yaml import SPLITS
from stepgrad.errors import DataError, suggest
from stepgrad.number_text import agreeing, counted


def examine_voc(
    root: Path,
    split: str | None,
    class_names: Sequence[str] | None,
    need_images: bool,
    images_outside: bool,
    report: Report,
) -> ExaminedDataset:
    """Read the folder; return the readable images, and report every problem."""
    own = OwnFiles(root, outside=images_outside)
    ids = image_ids(root, split, own, report)
    lists = {name: image_ids(root, name, own, report) for name in list_splits(root)} if split is None else {}
    ids = list(dict.fromkeys([*ids, *(image_id for listed in lists.values() for image_id in listed)]))
    found = _find_images(root, ids, split, report) if need_images else {}
    images = {image_id: path for image_id, path in found.items() if not own.refuses(path, report)}
    read = {i: read_annotation(annotation_file(root, i), own, report) for i in ids}
    annotations = {image_id: annotation for image_id, annotation in read.items() if annotation}
    names = _check_classes(root, list(annotations.values()), class_names, own, report)
    used = dict.fromkeys(name for annotation in annotations.values() for name in annotation.names)
    known = tuple({**dict.fromkeys(names), **used})  # unknown ones, which are reported, come last
    label_of = {name: label for label, name in enumerate(known)}
    entries = [
        ExaminedImage(
            image_id=image_id,
            source=str(annotation.path),
            image=images.get(image_id),
            size=annotation.size,
            objects=annotation.objects(label_of),
            class_names=known,
            numbers=annotation.numbers,
        )
        for image_id, annotation in annotations.items()
    ]
    name = f"{root.resolve().name}{f' {split}' if split else ''}"
    splits: Splits = {part: {i: images.get(i) for i in lists[part]} for part in SPLITS if part in lists}
    return ExaminedDataset("VOC folder", name, entries, names, splits)


def _find_images(root: Path, ids: list[str], split: str | None, report: Report) -> dict[str, Path]:
    folder = root / "JPEGImages"
    try:
        names = index_images(root)
    except DataError:
        fix = "put the images there, or examine the annotations alone (--need_images false)"
        report(Problem(str(folder), "no such folder", fix, "error", "image-missing"))
        return {}
    for image_id in ids:
        if image_id not in names:
            fix = "restore the image, or remove it from the lists"
            report(Problem(str(folder / f"{image_id}.jpg"), "no such image", fix, "error", "image-missing"))
    spare = sorted(set(names) - set(ids))
    if spare and split is None:
        defect = (
            f"{counted(len(spare), 'image')} {agreeing(len(spare), 'have')} no annotation, first {names[spare[0]]!r}"
        )
        report(Problem(str(folder), defect, "they are not used; annotate or remove them", "warning", "image-spare"))
    return {image_id: folder / name for image_id, name in names.items()}


def _check_classes(
    root: Path,
    annotations: list[VOCAnnotation],
    class_names: Sequence[str] | None,
    own: OwnFiles,
    report: Report,
) -> tuple[str, ...]:
    """Names must be among those given; where none are given, report names that look misspelt."""
    listed = tuple(class_names) if class_names else read_class_file(root, own)
    if listed:
        for annotation in annotations:
            check_names(annotation, listed, report)
        return listed
    names = infer_classes(root, annotations, own)
    counts = Counter(name for annotation in annotations for name in annotation.names)
    for annotation in annotations:
        for number, name in zip(annotation.numbers, annotation.names, strict=True):
            hint = _slip(name, counts)
            if hint:
                fix = f"correct it, or list all classes in {CLASS_FILE} if it is right"
                defect = f"object {number}: class {name!r} is rare and looks like a misspelt one.{hint}"
                report(Problem(str(annotation.path), defect, fix, "warning", "class-suspect"))
    return names


def _slip(name: str, counts: Counter[str]) -> str:
    """A suggestion where a rare name looks like one of VOC's, like one a hundred times as frequent, or is a more frequent one
    but for capital letters."""
    if name in VOC_CLASSES:
        return ""
    alike = [other for other in counts if other != name and other.casefold() == name.casefold()]
    common = [other for other, count in counts.items() if other != name and count >= 100 * counts[name]]
    likely = [other for other in alike if counts[other] > counts[name]] or common
    return suggest(name, likely + [other for other in VOC_CLASSES if other in counts])
