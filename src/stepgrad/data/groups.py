"""Which images belong together, such as frames of one clip: by a file, or by a pattern for their names."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from stepgrad.data.base import DetectionDataset
from stepgrad.data.coco import COCODataset
from stepgrad.data.problems import brief
from stepgrad.errors import ConfigError, DataError
from stepgrad.names import ImageId


def read_groups(file_or_pattern: str, dataset: DetectionDataset) -> list[str]:
    r"""The group of each image of a dataset, in its order.

    Args:
        file_or_pattern: a .json file with an object {"image": "group"}, a .csv file with lines `image,group`, or a regular
            expression whose first group is the clip, such as `(.*)_\d+`, for the names of the images. A file may list other
            images as well.
        dataset: its images go by id, by file name, or by file name without folder and suffix.
    """
    place = Path(file_or_pattern).expanduser()
    if place.suffix.lower() in (".json", ".csv"):
        return _listed(place, dataset)
    return _matched(file_or_pattern, dataset)


def _listed(place: Path, dataset: DetectionDataset) -> list[str]:
    groups = _read_file(place)
    found = []
    for index, image_id in enumerate(dataset.ids):
        name = _file_name(dataset, index)
        spelled = [text for text in (str(image_id), name, PurePosixPath(name).stem) if text in groups]
        if not spelled:
            raise DataError(
                f"{place}: has no group for image {image_id} ({name}); list every image of {dataset.name}, by id or file name, "
                "those that belong to no clip as groups of their own"
            )
        found.append(groups[spelled[0]])
    return found


def _read_file(place: Path) -> Mapping[str, str]:
    """The group of each image that the file names."""
    try:
        text = place.read_text(encoding="utf-8-sig")
        content: Any = json.loads(text) if place.suffix.lower() == ".json" else dict(_csv_rows(place, text))
    except FileNotFoundError:
        raise DataError(f"{place}: no such file; expected groups of images as json or csv") from None
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise DataError(f"{place}: cannot be read as groups of images: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f'{place}: expected an object {{"image": "group"}} but got {brief(content)}')
    for image, group in content.items():
        if not isinstance(group, (str, int)) or isinstance(group, bool):
            raise DataError(
                f"{place}: expected the group of image {image!r} as a name or number but got {brief(group)}"
            )
    return {image: str(group) for image, group in content.items()}


def _csv_rows(place: Path, text: str) -> list[tuple[str, str]]:
    rows = []
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        if len(row) not in (0, 2):
            raise DataError(f"{place}, line {number}: expected `image,group` but got {len(row)} columns")
        if row and [cell.strip().lower() for cell in row] != ["image", "group"]:
            rows.append((row[0].strip(), row[1].strip()))
    images = dict(rows)
    for image, group in rows:
        if images[image] != group:
            raise DataError(f"{place}: image {image!r} is in the groups {group!r} and {images[image]!r}; list it once")
    return rows


def _matched(pattern: str, dataset: DetectionDataset) -> list[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"group: expected a .json or .csv file, or a regular expression, but {pattern!r} is none: {error}."
        ) from error
    if compiled.groups == 0:
        raise ConfigError(
            rf"group: expected a regular expression with the clip in brackets, such as (.*)_\d+, but got {pattern!r}."
        )
    found = []
    for index in range(len(dataset)):
        name = _file_name(dataset, index)
        match = compiled.search(name)
        if match is None or match.group(1) is None:
            raise ConfigError(f"group: the expression {pattern!r} finds no clip in the name of image {name!r}.")
        found.append(match.group(1))
    return found


def _file_name(dataset: DetectionDataset, index: int) -> str:
    """The name of an image: that of its file where annotations give it, else its id."""
    image_id: ImageId = dataset.ids[index]
    return (isinstance(dataset, COCODataset) and dataset.images[index].file_name) or str(image_id)
