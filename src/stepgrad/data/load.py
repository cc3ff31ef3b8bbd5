"""`load_dataset` for a VOC folder, a COCO file, a data.yaml of YOLO, a folder of DOTA, or the word `shapes`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stepgrad.data.base import DetectionDataset
from stepgrad.data.coco import COCODataset
from stepgrad.data.dota import DOTADataset
from stepgrad.data.own_files import OwnFiles
from stepgrad.data.problems import raise_errors
from stepgrad.data.segments import SegmentDataset
from stepgrad.data.shape_fields import Task
from stepgrad.data.shapes import ShapesDataset, parse_shapes
from stepgrad.data.voc import Degenerate, VOCDataset, folder_name
from stepgrad.data.yolo import YOLODataset
from stepgrad.data.yolo_yaml import is_data_yaml
from stepgrad.errors import ConfigError, DataError, suggest
from stepgrad.names import from_home

Kind = Literal["voc", "coco", "yolo", "dota", "shapes"]


@dataclass(frozen=True)
class Located:
    """The kind of dataset that a path holds, and where."""

    kind: Kind
    path: Path
    split: str | None = None


def load_dataset(
    data: str | Path,
    split: str | None = None,
    *,
    class_names: Sequence[str] | None = None,
    images: str | Path | None = None,
    need_images: bool = True,
    degenerate: Degenerate = "error",
    images_outside: bool = False,
    task: Task = "boxes",
) -> DetectionDataset:
    """The dataset at `data`; its format is recognised by the files there.

    Args:
        data: a VOC folder (or the VOCdevkit above it), a COCO json file, a folder with `annotations/*.json`, a YOLO
            data.yaml or the folder it is in, a folder of DOTA with `labelTxt`, or `shapes`, the built-in set: `shapes`,
            `shapes:val`, `shapes:train,length=100,seed=3`.
        split: VOC: a list of ImageSets/Main, after the name of its folder where `data` holds several (`VOC2007/trainval`);
            COCO folder: part of the file's name; YOLO: train, val or test; shapes: train, val or test.
        class_names: VOC only: the classes in the order of the labels.
        images: COCO only: the folder of the images, if it is not next to the file.
        need_images: False reads no images, which is enough to evaluate detections. For YOLO data the sizes of the images
            are always read, since its boxes are relative to them.
        degenerate: "error" refuses boxes without area, "drop" leaves them out.
        images_outside: whether file names and links may lead out of the folder of the data.
        task: what targets have besides boxes: "masks", "keypoints" or "oriented"; "boxes": nothing. VOC folders have boxes only.
            "segments" reads segments of time: a json of ActivityNet (its subset is the split), or one with `videos`.

    >>> load_dataset("shapes", "val").class_names
    ('disk', 'ring', 'square', 'triangle', 'cross', 'star')
    """
    if task == "segments":
        if str(data).startswith("shapes"):
            raise ConfigError("task: shapes has no segments; expected a json of ActivityNet or of videos.")
        return SegmentDataset(from_home(data), split, degenerate)
    located = locate(data, split, images_outside)
    if class_names is not None and located.kind not in ("voc", "dota"):
        raise ConfigError(f"class_names is for VOC folders only; {data} has its own class names.")
    if images is not None and located.kind != "coco":
        raise ConfigError(f"images is for COCO files only; the images of {data} are in a known place.")
    if located.kind == "shapes":
        return ShapesDataset(**parse_shapes(str(data), split), task=task)
    if located.kind == "coco":
        return COCODataset(located.path, images, need_images, degenerate, images_outside=images_outside, task=task)
    if located.kind == "yolo":
        return YOLODataset(located.path, located.split, degenerate, images_outside=images_outside, task=task)
    if located.kind == "dota":
        return DOTADataset(located.path, class_names, need_images, degenerate, None, images_outside, task)
    if task != "boxes":
        raise ConfigError(
            f"task: {data} is a VOC folder, which has boxes only; expected a COCO file or YOLO data for {task}."
        )
    return VOCDataset(located.path, located.split, class_names, need_images, degenerate, images_outside=images_outside)


def locate(data: str | Path, split: str | None = None, images_outside: bool = False) -> Located:
    """Find the format and the place of `data`; the DataError says which files were looked for."""
    if str(data) == "shapes" or str(data).startswith("shapes:"):
        return Located("shapes", Path(str(data)), split)
    path = from_home(data)
    if path.is_file():
        return _locate_file(path, split)
    if not path.is_dir():
        close = suggest(path.name, ["shapes", *(entry.name for entry in path.parent.glob("*"))])
        raise DataError(f"{path}: no such file or folder.{close} {_LOOKED_FOR}")
    found = _look_in(path, split)
    OwnFiles(path, outside=images_outside).refuses(found.path, raise_errors)  # a link may lead out of the folder
    return found


def _look_in(folder: Path, split: str | None) -> Located:
    voc = _voc_roots(folder)
    if voc:
        return Located("voc", *_choose_root(folder, voc, split))
    yamls = [] if any(folder.glob("annotations/*.json")) else _data_yamls(folder)
    if yamls:
        return Located("yolo", _only(folder, yamls, "data.yaml files"), split)
    labels = _dota_labels(folder, split)
    if labels:
        return Located("dota", _only(folder, labels, "folders of labels"), split)
    files = coco_files(folder)
    if files:
        return Located("coco", _choose_json(folder, files, split), split)
    raise DataError(f"{folder}: is not a VOC, COCO or YOLO folder. {_LOOKED_FOR}")


def _dota_labels(folder: Path, split: str | None) -> list[Path]:
    """The label folders of DOTA: `labelTxt` in the folder, in that of the split, or the folder itself."""
    places = [folder / split] if split else [folder]
    found = sorted(place for home in places for place in home.glob("labelTxt*") if place.is_dir())
    return [folder] if not found and folder.name.startswith("labelTxt") else found


def coco_files(folder: Path) -> list[Path]:
    """The annotation files of a COCO folder, one per split; none in a folder of another kind."""
    instances = sorted(folder.glob("annotations/*.json"))
    if _voc_roots(folder) or (not instances and _data_yamls(folder)):
        return []
    files = instances or sorted(folder.glob("*.json"))
    return [file for file in files if file.stem.startswith("instances")] or files  # not COCO's captions, keypoints


_LOOKED_FOR = (
    "Looked for: Annotations/*.xml, VOC*/Annotations or VOCdevkit/VOC*/Annotations (a VOC folder); a .json file or "
    "annotations/*.json (COCO); a data.yaml (YOLO); labelTxt/*.txt (DOTA); or the word `shapes` (the built-in set)."
)


def _locate_file(path: Path, split: str | None) -> Located:
    if path.suffix.lower() in _YAML_SUFFIXES:
        return Located("yolo", path, split)
    if path.suffix.lower() != ".json":
        raise DataError(f"{path}: expected a folder, a .json or a .yaml file. {_LOOKED_FOR}")
    if split is not None:
        raise ConfigError(f"{path} is one COCO file, which has no split {split!r}; leave the split out.")
    return Located("coco", path)


_YAML_SUFFIXES = (".yaml", ".yml")


def _data_yamls(folder: Path) -> list[Path]:
    """The data.yaml of a folder, or else the files under other names that look like one."""
    named = [folder / name for name in ("data.yaml", "data.yml") if (folder / name).is_file()]
    others = sorted(file for suffix in _YAML_SUFFIXES for file in folder.glob(f"*{suffix}") if file.is_file())
    return named[:1] or [file for file in others if is_data_yaml(file)]


def _voc_roots(path: Path) -> list[Path]:
    for pattern in ("Annotations", "VOC*/Annotations", "VOCdevkit/VOC*/Annotations"):
        roots = sorted(folder.parent for folder in path.glob(pattern) if folder.is_dir())
        if roots:
            return roots
    return []


def _choose_root(path: Path, roots: list[Path], split: str | None) -> tuple[Path, str | None]:
    """The VOC folder and the list in it: where there are several folders, the split names both, as `VOC2007/trainval`."""
    named = {folder_name(root): root for root in roots}
    folder, slash, listed = (split or "").partition("/")
    if slash and folder in named:
        return named[folder], listed or None
    if slash and folder.startswith("VOC"):  # other names with a slash are lists in folders of ImageSets/Main
        raise DataError(
            f"{path}: split {split!r} belongs to a VOC folder {folder!r}, which is not there; it has {', '.join(named)}. "
            f"Pass the folder that holds {folder}."
        )
    if len(roots) > 1:
        example = f"{next(iter(named))}/{split or 'trainval'}"
        raise DataError(
            f"{path}: holds several VOC folders; pass one of {', '.join(str(root) for root in roots)}, or name it in the "
            f"split: {example}"
        )
    return roots[0], split


def _only(path: Path, files: list[Path], kind: str) -> Path:
    if len(files) > 1:
        raise DataError(f"{path}: holds several {kind}; pass one of {', '.join(map(str, files))}")
    return files[0]


def _choose_json(path: Path, files: list[Path], split: str | None) -> Path:
    """The file of the split: named so, or the only one whose name contains it (`val` in instances_val2017)."""
    if split is None:
        return _only(path, files, "COCO files")
    exact = [file for file in files if file.stem in (split, f"instances_{split}")]
    parts = [file for file in files if split in file.stem]
    if not parts:
        names = ", ".join(file.name for file in files)
        raise DataError(f"{path}: no COCO file for split {split!r}; it has {names}")
    return exact[0] if exact else _only(path, parts, f"files of split {split!r}")
