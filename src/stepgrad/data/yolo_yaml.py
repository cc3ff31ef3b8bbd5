"""The `data.yaml` of a YOLO dataset: its root, its splits and its classes, with every problem named."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepgrad.data.own_files import ALLOW_OUTSIDE, OwnFiles, leads_on
from stepgrad.data.problems import Complaints, Report, brief, raise_errors
from stepgrad.data.shape_fields import BadShapeError, sigmas_of
from stepgrad.errors import suggest
from stepgrad.extras import need
from stepgrad.names import from_home, on_disk
from stepgrad.overlaps.keypoints import COCO_SIGMAS
from stepgrad.yaml_text import load_yaml

SPLITS = ("train", "val", "test")
RESERVED_KEYS = ("path", "names", "nc", "download", "yaml_file")
"""Keys that are no splits."""
LARGEST_YAML = 4_000_000
"""Bytes; a file with ten thousand class names has a tenth of it."""


@dataclass(frozen=True)
class DataYaml:
    """The content of a data.yaml whose places have been found."""

    path: Path
    root: Path
    """The folder that splits are relative to."""
    class_names: tuple[str, ...]
    splits: dict[str, list[Path]]
    """Folders of images and .txt files with paths of images, by split, in the order of the file."""
    keypoint_shape: tuple[int, int] | None
    """Number of keypoints, and of numbers of each, that follow the box in each line of a label file (`kpt_shape`)."""
    own: OwnFiles
    """Which files may be read."""
    flips: Any = None
    """`flip_idx` as it stands: the keypoint that each becomes in a mirrored image."""
    keypoint_names: Any = None
    """`kpt_names` as they stand."""
    sigmas: tuple[float, ...] | None = None
    """A sigma for each keypoint: `kpt_oks_sigmas`, COCO's for 17 keypoints with visibility, else 1 / k each (ultralytics)."""


def read_data_yaml(path: Path, images_outside: bool = False, report: Report = raise_errors) -> DataYaml | None:
    """Read a file, handing every problem to `report`; None if nothing is left of it.

    Args:
        path: the file.
        images_outside: whether `path:`, the splits and links may lead out of the file's folder.
        report: gets every problem.
    """
    complain = Complaints(path, report)
    content = _read_mapping(path, complain)
    if content is None:
        return None
    class_names = _read_names(content, complain)
    own = OwnFiles(path.parent, outside=images_outside)
    root = _find_root(path, content, own, complain)
    if class_names is None or root is None:
        return None
    splits = {}
    for name in _split_names(content, root):
        key = "validation" if name == "val" and not content.get("val") else name
        places = _read_places(content[key], key, root, own, complain)
        if places:
            splits[name] = places
    if not splits and not any(content.get(name) for name in (*SPLITS, "validation")):
        fix = "name the folders of the images, as in `train: images/train`"
        return complain(f"has none of the keys {', '.join(SPLITS)}", fix, "yaml-not-yolo")
    shape = _keypoint_shape(content.get("kpt_shape"))
    return DataYaml(
        path,
        root,
        class_names,
        splits,
        shape,
        own,
        content.get("flip_idx"),
        content.get("kpt_names"),
        None if shape is None else _sigmas(content.get("kpt_oks_sigmas"), shape, complain),
    )


def is_data_yaml(path: Path) -> bool:
    """Whether a yaml file looks like that of a YOLO dataset, rather than a config of something else."""
    content = _read_mapping(path, Complaints(path, lambda problem: None))
    return content is not None and ("names" in content or "nc" in content) and any(key in content for key in SPLITS)


def _read_mapping(path: Path, complain: Complaints) -> dict[Any, Any] | None:
    need("yaml", purpose="reading data.yaml of YOLO datasets")
    import yaml

    try:
        if path.stat().st_size > LARGEST_YAML:
            defect = f"has more than {LARGEST_YAML // 1_000_000} million bytes"
            return complain(defect, "check that this is a data.yaml", "yaml-damaged")
        content = load_yaml(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        return complain(f"cannot be read as yaml ({reason})", "fix the line it names", "yaml-damaged")
    if not isinstance(content, dict):
        defect = f"expected keys such as `train:` and `names:` but got {brief(content)}"
        return complain(defect, "check that this is the data.yaml of a YOLO dataset", "yaml-not-yolo")
    return content


def _read_names(content: dict[Any, Any], complain: Complaints) -> tuple[str, ...] | None:
    """The classes, of a list or of a mapping from 0, 1, ...; `nc` alone gives class_0, class_1, ..., as YOLO tools do."""
    names, count = content.get("names"), content.get("nc")
    if count is not None and not (isinstance(count, int) and not isinstance(count, bool) and 0 < count <= 10_000):
        return complain(f"expected nc to be a number of classes but got {brief(count)}", "correct it", "class-count")
    if names is None and count is not None:
        return tuple(f"class_{label}" for label in range(count))
    if isinstance(names, dict):
        names = _in_order(names, complain)
        if names is None:
            return None
    if not isinstance(names, list) or not names:
        fix = "list the classes, as in `names: [cat, dog]` or `names: {0: cat, 1: dog}`"
        return complain(f"expected names of classes but got {brief(names)}", fix, "class-names")
    texts = [_class_name(name, label, complain) for label, name in enumerate(names)]
    if any(text is None for text in texts):
        return None
    found = tuple(text for text in texts if text is not None)
    double = next((name for label, name in enumerate(found) if name in found[:label]), None)
    if double is not None:
        return complain(f"class {double!r} occurs more than once in names", "give each its own name", "class-names")
    if count is not None and count != len(found):
        return complain(f"nc is {count} but there are {len(found)} names", "correct nc or delete it", "class-count")
    return found


def _in_order(names: dict[Any, Any], complain: Complaints) -> list[Any] | None:
    by_label: dict[int, Any] = {}
    for key, name in names.items():
        label = int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 9 else key
        if not isinstance(label, int) or isinstance(label, bool) or not 0 <= label < len(names):
            defect = f"expected names numbered from 0 to {len(names) - 1} but got {brief(key)}"
            return complain(defect, "number the classes from 0, without gaps", "class-names")
        by_label[label] = name
    if len(by_label) != len(names):
        return complain("two names have the same number", "number the classes from 0, without gaps", "class-names")
    return [by_label[label] for label in range(len(names))]


def _class_name(name: Any, label: int, complain: Complaints) -> str | None:
    """The text of a name; yaml takes `no`, `1` and `1.50` for other things than text."""
    if isinstance(name, str) and name.strip():
        return name
    if isinstance(name, (bool, int, float)):
        if not isinstance(name, int) or isinstance(name, bool):  # a whole number prints as it was written
            complain(f"class {label} is read as {name!r}", "write the name in quotes", "class-names", "warning")
        return str(name)
    return complain(f"expected a name of class {label} but got {brief(name)}", "write its name", "class-names")


def _find_root(path: Path, content: dict[Any, Any], own: OwnFiles, complain: Complaints) -> Path | None:
    """The folder that splits are relative to: `path:` seen from the file's folder, else the file's folder itself.

    A dataset that was unpacked elsewhere may have a `path:` that no longer exists; then the splits are next to the file.
    """
    home, given = path.parent, content.get("path")
    if given is None:
        return home
    if not isinstance(given, str) or "\0" in given:
        return complain(f"expected path to be a folder but got {brief(given)}", "correct it or delete it", "yaml-path")
    root = home / from_home(given)
    if not os.path.isdir(root):
        if os.path.normpath(given) != ".":
            fix = "the splits are searched next to the file; correct `path` or delete it"
            complain(f"path {given!r} does not exist", fix, "yaml-path", "warning")
        return home
    if not own.holds(root):
        defect = f"path {given!r} points outside {home}"
        return complain(
            defect, f"move the file into the folder of the data, or allow it: {ALLOW_OUTSIDE}", "image-outside"
        )
    return root


def _split_names(content: dict[Any, Any], root: Path) -> list[str]:
    """train, val and test, and other keys that name a folder or list in the data, such as `trainval: trainval.txt`."""
    known = [name for name in SPLITS if content.get(name) or (name == "val" and content.get("validation"))]
    others = [
        key
        for key, value in content.items()
        if isinstance(key, str) and key not in (*SPLITS, "validation", *RESERVED_KEYS)
        if isinstance(value, str) and value and "\0" not in value and not leads_on(value)
        if os.path.isdir(root / on_disk(value)) or (value.endswith(".txt") and os.path.isfile(root / on_disk(value)))
    ]
    return [*known, *others]


def _read_places(value: Any, key: str, root: Path, own: OwnFiles, complain: Complaints) -> list[Path] | None:
    entries = value if isinstance(value, list) else [value]
    if not all(isinstance(entry, str) and entry and "\0" not in entry for entry in entries):
        defect = f"expected {key} to be a folder, a .txt file or a list of them but got {brief(value)}"
        return complain(defect, "write paths, relative to `path`", "yaml-split")
    places = [_find_place(entry, key, root, own, complain) for entry in entries]
    return [place for place in places if place is not None]


def _find_place(entry: str, key: str, root: Path, own: OwnFiles, complain: Complaints) -> Path | None:
    """A folder or list. `../train/images`, as one exporter writes it, is looked for without the `../` too."""
    place = root / on_disk(entry)
    inner = root / on_disk(entry[3:])
    if entry.startswith("../") and not os.path.exists(place) and os.path.exists(inner):
        place = inner
    if not own.holds(place):
        defect = f"{key} {entry!r} points outside {own.folders[0]}"
        return complain(defect, f"correct it, or allow it: {ALLOW_OUTSIDE}", "image-outside")
    if os.path.isdir(place) or (os.path.isfile(place) and place.suffix.lower() == ".txt"):
        return place
    if os.path.isfile(place):
        return complain(f"{key} {entry!r} is neither a folder nor a .txt file", "name the folder", "yaml-split")
    beside = [os.path.relpath(folder, root) for folder in sorted(place.parent.glob("*"))[:100]]
    close = suggest(entry, beside)
    return complain(f"{key} {entry!r} does not exist in {root}.{close}", "correct it or `path`", "split-missing")


def _sigmas(said: Any, shape: tuple[int, int], complain: Complaints) -> tuple[float, ...] | None:
    if said is None:
        return COCO_SIGMAS if shape == (len(COCO_SIGMAS), 3) else (1.0 / shape[0],) * shape[0]
    try:
        return sigmas_of(said, shape[0])
    except BadShapeError as error:
        return complain(f"kpt_oks_sigmas: {error}", "correct them, or delete them", "keypoint-sigmas")


def _keypoint_shape(shape: Any) -> tuple[int, int] | None:
    if isinstance(shape, list) and len(shape) == 2 and all(isinstance(n, int) and 0 < n < 10_000 for n in shape):
        return int(shape[0]), int(shape[1])
    return None
