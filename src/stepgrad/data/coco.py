"""COCO instance files: one json with images, categories and annotations."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import isfile  # False for names too long for the disk, where pathlib raises
from pathlib import Path

from stepgrad.data.base import DatasetTarget, FileDataset, ImageId, ImageObjects, Transforms
from stepgrad.data.coco_json import CocoImage, read_coco
from stepgrad.data.own_files import ALLOW_OUTSIDE, OwnFiles, leads_on
from stepgrad.data.problems import Complaints, Degenerate, Report, brief, loading_report, raise_errors
from stepgrad.data.shape_fields import TASKS, Task
from stepgrad.errors import DataError, one_of
from stepgrad.names import on_disk
from stepgrad.number_text import part_counted


class COCODataset(FileDataset):
    """Images and objects of a COCO json file.

    Labels number the categories in the order of the file; `category_ids[label]` is the number in the file. Images are
    in the order of their ids, because pycocotools breaks ties between equal scores in that order.

    Args:
        path: the json file.
        images: the folder of the images. Without it, the usual places near the file are searched.
        need_images: False reads no images and does not look for them: enough to evaluate detections.
        degenerate: "error" refuses boxes without width or height, "drop" leaves those objects out.
        transforms: called with (image, target).
        images_outside: True lets file names point outside the folder of the data, by `..`, by links or as absolute paths.
            Otherwise they are refused, because the author of the data would choose what is read and shown in reports.
        task: what targets have besides boxes: "masks" (from `segmentation`: polygons or run lengths), "keypoints", "oriented"
            (from `poly`, `rbox`, or a segmentation of four points); every annotation must have it.
    """

    def __init__(
        self,
        path: str | Path,
        images: str | Path | None = None,
        need_images: bool = True,
        degenerate: Degenerate = "error",
        transforms: Transforms | None = None,
        images_outside: bool = False,
        task: Task = "boxes",
    ) -> None:
        one_of("task", task, list(TASKS))
        self.path = Path(path)
        self.name = self.path.stem
        self.transforms = transforms
        self.task = task
        file = read_coco(self.path, loading_report(degenerate), task)
        assert file is not None, "loading raises where the doctor continues"
        if not file.images:
            raise DataError(f"{self.path}: lists no images; choose another file")
        self.images: list[CocoImage] = file.images
        self.ids: Sequence[ImageId] = [image.id for image in file.images]
        self.class_names = tuple(file.categories.values())
        self.category_ids = tuple(file.categories)
        self.label_of = file.label_of
        self.keypoints = file.shapes.keypoints
        self.sigmas = file.sigmas
        self.unread = {kind: count for kind, count in file.shapes.seen.items() if kind != task}
        self.folder = find_image_folder(self.path, self.images, images, images_outside) if need_images else None

    def objects(self, index: int) -> ImageObjects:
        return self.images[index].objects(self.label_of, self.task)

    def target(self, index: int) -> DatasetTarget:
        return self.objects(index).target(self.ids[index], self.task)

    def image_size(self, index: int) -> tuple[int, int] | None:
        return self.images[index].size

    def image_path(self, index: int) -> Path:
        if self.folder is None:
            raise self.no_images()
        return image_file(self.folder, self.images[index])

    def source(self, index: int) -> str:
        return f"{self.path}, image {self.ids[index]}"


def image_file(folder: Path, image: CocoImage) -> Path:
    """The file of an image whose name is relative to a folder."""
    return folder / on_disk(image.file_name)


def data_folder(path: Path) -> Path:
    """The folder of the whole dataset: the one above `annotations`, or the one the file is in."""
    return path.parent.parent if path.parent.name == "annotations" else path.parent


def own_files(path: Path, images: str | Path | None, images_outside: bool) -> OwnFiles:
    """Which images may be read: those in the folder of the dataset, or in the one that the user names."""
    return OwnFiles(data_folder(path), *([Path(images)] if images else []), outside=images_outside)


def refuses(own: OwnFiles, path: Path, image: CocoImage, places: Sequence[Path], report: Report) -> bool:
    """Report an image whose name, or a link, leads out of the data from each of `places`."""
    files = [image_file(place, image) for place in places]
    if leads_on(image.file_name) and not any(map(own.holds, files)):
        home = " and ".join(map(str, own.folders))
        defect = f"image {image.id}: file_name {image.file_name!r} points outside {home}"
        Complaints(path, report)(defect, f"correct it, or allow such names: {ALLOW_OUTSIDE}", "image-outside")
        return True
    return any(own.refuses(file, report) for file in files)


def usual_folders(path: Path) -> list[Path]:
    """Where the images of `path` may be: annotations/instances_val2017.json has them in val2017, images/val2017, ..."""
    stem = path.stem.removeprefix("instances_")
    roots = list(dict.fromkeys([data_folder(path), path.parent]))
    tails = [stem, f"images/{stem}", f"{stem}/images", "images", "JPEGImages", "."]
    return [root / tail for root in roots for tail in tails]


def holding_folder(places: Sequence[Path], images: Sequence[CocoImage]) -> Path | None:
    """The place that holds most images of a sample; None if none holds any."""
    named = [image for image in images if not leads_on(image.file_name)] or images  # absolute names tell nothing
    sample = named[:: len(named) // 100 + 1]
    held = [sum(isfile(image_file(place, image)) for image in sample) for place in places]
    return places[held.index(max(held))] if any(held) else None


def find_image_folder(
    path: Path, images: list[CocoImage], folder: str | Path | None = None, images_outside: bool = False
) -> Path:
    """The folder that holds the images: all of them must be there, and inside the data unless others are allowed."""
    tried = [Path(folder)] if folder else usual_folders(path)
    holding = holding_folder(tried, images)
    own = own_files(path, folder, images_outside)
    for image in images:
        refuses(own, path, image, [holding] if holding else tried, raise_errors)
    if holding is None:
        raise DataError(
            f"{path}: image {images[0].file_name!r} is in none of {', '.join(str(place) for place in tried)}; "
            "name the folder (images=...), or pass need_images=False if only the objects are needed"
        )
    missing = [image.file_name for image in images if not isfile(image_file(holding, image))]
    if missing:
        count = part_counted(len(missing), len(images), "image", "are")
        raise DataError(
            f"{path}: {count} missing in {holding}, first {brief(missing[0])}; restore the files, or pass need_images=False "
            "if only the objects are needed"
        )
    return holding
