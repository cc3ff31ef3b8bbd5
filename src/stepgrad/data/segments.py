"""Segments of time: ActivityNet's json, and a json like COCO's with videos in the place of images; annotations and results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from PIL import Image

from stepgrad.data.base import DatasetTarget, DetectionDataset, ImageObjects, make_objects
from stepgrad.data.problems import Degenerate, brief
from stepgrad.data.shape_fields import are_pixels, is_number
from stepgrad.errors import ConfigError, DataError, one_of, suggest
from stepgrad.evaluation.records import Detections
from stepgrad.files import read_json
from stepgrad.names import ImageId
from stepgrad.overlaps.base import Segments

_FORMS = (
    'ActivityNet\'s {"database": {VIDEO: {"subset": ..., "annotations": [{"label": ..., "segment": [begin, end]}]}}}, or '
    '{"videos": [{"id"}], "categories": [{"id", "name"}], "annotations": [{"video_id", "category_id", "segment"}]}'
)
_RESULTS = (
    'ActivityNet\'s {"results": {VIDEO: [{"label", "score", "segment": [begin, end]}]}}, or a list of {"video_id", '
    '"category_id", "score", "segment"}'
)


@dataclass(frozen=True)
class _Found:
    """A segment as a file has it."""

    video: Any
    category: Any
    entry: dict[str, Any]
    where: str


class SegmentDataset(DetectionDataset):
    """Videos with segments of time. There are no pictures: `target(i)` has boxes (begin, 0, end, 1) and `segments` (G, 2).

    Args:
        path: the json file.
        subset: of ActivityNet's file, such as "validation"; None if it has one only.
        degenerate: "error" refuses segments that do not end after they begin, "drop" leaves them out.
    """

    task = "segments"

    def __init__(self, path: str | Path, subset: str | None = None, degenerate: Degenerate = "error") -> None:
        self.path = Path(path)
        self.name = f"{self.path.stem}{f' {subset}' if subset else ''}"
        one_of("degenerate", degenerate, ["error", "drop"])
        content = read_json(self.path, "check the path", "download or export the file again")
        if isinstance(content, dict) and isinstance(content.get("database"), dict):
            videos, found = _of_activitynet(self.path, content["database"], subset)
            names = {
                entry.category: str(entry.category) for entry in found
            }  # in the order of the file, as its own tool does
        else:
            if subset is not None:
                raise ConfigError(f"{self.path} has no subsets, so no split {subset!r}; leave the split out.")
            videos, names, found = _of_lists(self.path, content)
        if not found:
            raise DataError(f"{self.path}: has no segments; choose another file")
        self.ids = videos
        self.class_names = tuple(names.values())
        self.category_ids = tuple(names)
        self.label_of = {category: label for label, category in enumerate(names)}
        self._rows: list[list[tuple[float, float, int, bool]]] = [[] for _ in videos]
        for one in found:
            begin, end = _segment(one.entry, one.where)
            if end <= begin and degenerate == "error":
                way_out = 'correct or delete it, or leave such segments out with --degenerate drop (degenerate="drop")'
                raise DataError(f"{one.where}: the segment begins at {begin:g} and ends at {end:g}; {way_out}")
            if end <= begin:
                continue
            row = begin, end, label_in(self, one), bool(one.entry.get("difficult"))
            self._rows[position_in(self, one)].append(row)

    def overlap(self) -> Segments:
        return Segments()

    def objects(self, index: int) -> ImageObjects:
        rows = self._rows[index]
        boxes = [(begin, 0.0, end, 1.0) for begin, end, _, _ in rows]
        return make_objects(boxes, [row[2] for row in rows], difficult=[row[3] for row in rows])

    def target(self, index: int) -> DatasetTarget:
        target = self.objects(index).target(self.ids[index])
        target["segments"] = target["boxes"][:, [0, 2]]
        return target

    def image(self, index: int) -> Image.Image:
        self._no_pictures()

    def fingerprint(self, index: int) -> str:
        self._no_pictures()

    def _no_pictures(self) -> NoReturn:
        raise DataError(f"{self.name} has segments of videos, and no pictures; read `target(i)`")


def _of_activitynet(path: Path, database: dict[str, Any], subset: str | None) -> tuple[list[ImageId], list[_Found]]:
    """The videos of a subset, and their segments."""
    subsets = {video: entry.get("subset") if isinstance(entry, dict) else None for video, entry in database.items()}
    known = list(dict.fromkeys(str(name) for name in subsets.values() if name is not None))
    if subset is None and len(known) > 1:
        raise ConfigError(f"{path}: has the subsets {', '.join(known)}; name one of them as the split.")
    if subset is not None and subset not in known:
        raise ConfigError(f"{path}: has no subset {subset!r}; it has {', '.join(known)}.{suggest(subset, known)}")
    videos: list[ImageId] = [video for video, name in subsets.items() if subset is None or name == subset]
    found = []
    for video in videos:
        listed: Any = database[str(video)].get("annotations", []) if isinstance(database[str(video)], dict) else None
        if not _are_dicts(listed):
            raise DataError(f"{path}: expected {_FORMS}, but video {video!r} has no list of annotations")
        for number, entry in enumerate(listed):
            where = f"video {video}, annotation {number}"
            if not isinstance(entry.get("label"), str):
                raise DataError(
                    f"{path}: {where}: expected a label but got {brief(entry.get('label'))}; write its class"
                )
            found.append(_Found(video, entry["label"], entry, f"{path}: {where}"))
    return videos, found


def _of_lists(path: Path, content: Any) -> tuple[list[ImageId], dict[Any, str], list[_Found]]:
    """Videos, the name of each category, and segments of a json like COCO's."""
    lists = content if isinstance(content, dict) else {}
    if not all(_are_dicts(lists.get(key)) for key in ("videos", "categories", "annotations")):
        raise DataError(f"{path}: expected {_FORMS}")
    videos = [_id_in(entry, "id", f"{path}: video {n}") for n, entry in enumerate(lists["videos"])]
    names = {
        _id_in(entry, "id", f"{path}: category {n}"): str(entry.get("name"))
        for n, entry in enumerate(lists["categories"])
    }
    for kind, given in (("video", list(map(str, videos))), ("category name", list(names.values()))):
        twice = next((value for i, value in enumerate(given) if value in given[:i]), None)
        if twice is not None:
            raise DataError(f"{path}: {kind} {twice} occurs more than once; write each once")
    return videos, names, list(_listed(lists["annotations"], f"{path}: annotation"))


def _listed(entries: list[dict[str, Any]], where: str) -> Iterator[_Found]:
    for n, entry in enumerate(entries):
        here = f"{where} {n}"
        yield _Found(_id_in(entry, "video_id", here), _id_in(entry, "category_id", here), entry, here)


def _are_dicts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)


def _id_in(entry: dict[str, Any], key: str, where: str) -> Any:
    value = entry.get(key)
    if not isinstance(value, (int, str)) or isinstance(value, bool):
        raise DataError(f"{where}: expected a number or text as {key} but got {brief(value)}; write it")
    return value


def _segment(entry: dict[str, Any], where: str) -> tuple[float, float]:
    value = entry.get("segment")
    if not are_pixels(value, 2):
        raise DataError(f"{where}: expected segment [begin, end] but got {brief(value)}; write it in this form")
    return float(value[0]), float(value[1])


def position_in(dataset: SegmentDataset, found: _Found) -> int:
    """The position of the video; videos compare as text."""
    position = dataset.positions.get(str(found.video))
    if position is None:
        close = suggest(str(found.video), list(dataset.positions))
        raise DataError(
            f"{found.where}: video {brief(found.video)} is not among the {len(dataset)} videos of {dataset.name}; check that "
            f"both are of the same split.{close}"
        )
    return position


def label_in(dataset: SegmentDataset, found: _Found) -> int:
    """The label of the class."""
    label = dataset.label_of.get(found.category)
    if label is None:
        known = [str(category) for category in dataset.category_ids]
        listed = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
        raise DataError(
            f"{found.where}: {brief(found.category)} is no class of {dataset.name}, which has {listed}."
            f"{suggest(str(found.category), known)}"
        )
    return label


def read_segment_results(path: Path, dataset: SegmentDataset, empty: str = "count") -> Detections:
    """Detections of ActivityNet's result file, or of a list of {video_id, category_id, score, segment}.

    A segment that ends where it begins is a false alarm under `empty` "count" and refused under "error".
    """
    content = read_json(path, "check the path", "download or export the file again")
    results = content.get("results") if isinstance(content, dict) else content
    if isinstance(results, dict) and all(_are_dicts(entries) for entries in results.values()):
        found = [
            _Found(video, entry.get("label"), entry, f"{path}: video {video}, detection {n}")
            for video, entries in results.items()
            for n, entry in enumerate(entries)
        ]
    elif isinstance(results, list) and _are_dicts(results):
        found = list(_listed(results, f"{path}: detection"))
    else:
        raise DataError(f"{path}: expected {_RESULTS}")
    rows = [_detection(one, dataset, empty) for one in found]
    columns = [[row[i] for row in rows] for i in range(5)]
    begin, end = np.array(columns[3], dtype=np.float64), np.array(columns[4], dtype=np.float64)
    return Detections(
        np.array(columns[0], dtype=np.int32),
        np.array(columns[1], dtype=np.int64),
        np.array(columns[2], dtype=np.float64),
        np.stack([begin, np.zeros(len(rows)), end, np.ones(len(rows))], axis=1),
    )


def _detection(one: _Found, dataset: SegmentDataset, empty: str) -> tuple[int, int, float, float, float]:
    score = one.entry.get("score")
    if not is_number(score) or not np.isfinite(score):
        raise DataError(f"{one.where}: expected a finite score but got {brief(score)}; remove it or fix the detector")
    if isinstance(one.category, (list, dict)):
        raise DataError(f"{one.where}: expected a label but got {brief(one.category)}; write its class")
    begin, end = _segment(one.entry, one.where)
    if end < begin or (end == begin and empty == "error"):
        way_out = "swap its ends or remove it" if end < begin else "remove it, or count it with --empty_boxes count"
        raise DataError(f"{one.where}: the segment begins at {begin:g} and ends at {end:g}; {way_out}")
    return position_in(dataset, one), label_in(dataset, one), float(score), begin, end
