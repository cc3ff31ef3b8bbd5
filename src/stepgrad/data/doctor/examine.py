"""`stepgrad doctor` on a dataset: annotations, images and windows, and a summary."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from stepgrad.data.base import ImageId
from stepgrad.data.doctor.boxes import examine_boxes
from stepgrad.data.doctor.coco import examine_coco
from stepgrad.data.doctor.dota import examine_dota
from stepgrad.data.doctor.images import examine_image
from stepgrad.data.doctor.shapes import examine_shapes
from stepgrad.data.doctor.shared import report_shared
from stepgrad.data.doctor.summary import ExaminedDataset, ExaminedImage, Summary, report_counts, summarise
from stepgrad.data.doctor.voc import examine_voc
from stepgrad.data.doctor.windows import examine_windows
from stepgrad.data.doctor.yolo import examine_yolo
from stepgrad.data.images import ImageFacts
from stepgrad.data.load import Located, load_dataset, locate
from stepgrad.data.problems import Problem, Report
from stepgrad.data.proposals import Proposals, load_proposals
from stepgrad.data.shapes import ShapesDataset
from stepgrad.errors import DataError

DoneOfTotal = Callable[[int, int], None]
"""Called with the number of images examined and of all."""


@dataclass(frozen=True)
class Diagnosis:
    """The problems of a dataset, and a summary of what it holds."""

    problems: tuple[Problem, ...]
    summary: Summary

    @property
    def errors(self) -> int:
        """The number of problems that would break or spoil training."""
        return sum(problem.severity == "error" for problem in self.problems)


def examine(
    data: str | Path,
    split: str | None = None,
    *,
    class_names: Sequence[str] | None = None,
    images: str | Path | None = None,
    need_images: bool = True,
    proposals: str | Path | None = None,
    pixels: bool = True,
    images_outside: bool = False,
    progress: DoneOfTotal | None = None,
) -> Diagnosis:
    """Every problem of a dataset and a summary of what it holds; changes nothing.

    Args:
        data: as for `load_dataset`.
        split: examine only this split; None takes all annotations and all lists of a VOC folder, all splits of a
            data.yaml.
        class_names: VOC: objects of other classes are errors.
        images: COCO: the folder of the images.
        need_images: False examines the annotations alone.
        proposals: windows to check against the images, as for `load_proposals`.
        pixels: False reads only the headers of the images: faster, but misses truncated ones.
        images_outside: whether file names and links may lead out of the data's folder.
        progress: called now and then.

    >>> examine("shapes:val,length=5").errors
    0
    """
    located = locate(data, split, images_outside)
    problems: list[Problem] = []
    records = _read_records(located, str(data), class_names, images, need_images, images_outside, problems.append)
    facts = _examine_images(records.entries, pixels, problems.append, progress or (lambda done, total: None))
    report_shared(records.splits, str(located.path), problems.append)
    if proposals is not None:
        sizes = {entry.image_id: entry.size for entry in records.entries if entry.size}
        sizes |= {image_id: fact.size for image_id, fact in facts.items()}
        windows = _open_proposals(proposals, data, split, problems.append)
        if windows is not None:
            examine_windows(windows, records.entries, records.name, sizes, problems.append)
    summary = summarise(records, facts)
    report_counts(summary, str(located.path), problems.append)
    return Diagnosis(tuple(dict.fromkeys(problems)), summary)  # all files behind one link have the same problem


def _read_records(
    located: Located,
    data: str,
    class_names: Sequence[str] | None,
    images: str | Path | None,
    need_images: bool,
    images_outside: bool,
    report: Report,
) -> ExaminedDataset:
    if located.kind == "voc":
        return examine_voc(located.path, located.split, class_names, need_images, images_outside, report)
    if located.kind == "coco":
        return examine_coco(located.path, images, need_images, images_outside, report)
    if located.kind == "dota":
        return examine_dota(located.path, need_images, images_outside, report)
    if located.kind == "yolo":
        return examine_yolo(located.path, located.split, need_images, images_outside, report)
    dataset = load_dataset(data, located.split)
    assert isinstance(dataset, ShapesDataset)
    entries = [
        ExaminedImage(
            image_id=dataset.ids[index],
            source=dataset.source(index),
            image=None,
            size=(dataset.size, dataset.size),
            objects=objects,
            class_names=dataset.class_names,
            numbers=tuple(range(len(objects))),
        )
        for index, objects in enumerate(map(dataset.objects, range(len(dataset))))
    ]
    return ExaminedDataset("built-in set", dataset.name, entries, dataset.class_names)


def _examine_images(
    entries: list[ExaminedImage], pixels: bool, report: Report, progress: DoneOfTotal
) -> dict[ImageId, ImageFacts]:
    """Open every picture, several at a time: decoding releases Python's lock."""
    facts: dict[ImageId, ImageFacts] = {}
    pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1))
    try:
        results = pool.map(lambda entry: examine_image(entry, pixels), entries)
        for done, (entry, (fact, problems)) in enumerate(zip(entries, results, strict=True), start=1):
            if fact is not None:
                facts[entry.image_id] = fact
            size = fact.size if fact is not None else entry.size
            for problem in (*problems, *examine_boxes(entry), *examine_shapes(entry, size)):
                report(problem)
            progress(done, len(entries))
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C need not wait for the rest
    return facts


def _open_proposals(proposals: str | Path, data: str | Path, split: str | None, report: Report) -> Proposals | None:
    try:
        if str(proposals) == "built-in":
            return load_proposals(proposals, load_dataset(data, split))
        return load_proposals(proposals)
    except DataError as error:
        where, _, what = str(error).partition(": ")
        report(Problem(where, what, "pass windows made for this dataset", "error", "windows-missing"))
        return None
