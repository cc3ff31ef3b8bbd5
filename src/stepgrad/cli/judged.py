"""The detections that `stepgrad evaluate` and `stepgrad report` judge: those of a file, or those that a run makes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stepgrad.cli.compress import open_detector
from stepgrad.cli.terminal import Terminal
from stepgrad.data import COCODataset, DetectionDataset, DOTADataset, VOCDataset, YOLODataset, load_dataset
from stepgrad.data.base import ImageId, image_sizes
from stepgrad.data.judged_files import evidence_from
from stepgrad.data.read_detections import FileDetections, read_detections
from stepgrad.data.segments import SegmentDataset
from stepgrad.data.shape_fields import BadShapeError, Task, sigmas_of
from stepgrad.data.splits import images_of_splits
from stepgrad.data.voc import Degenerate
from stepgrad.data.write_detections import write_coco_results, write_voc_results
from stepgrad.errors import ConfigError, DataError, LikelyMistakeWarning
from stepgrad.evaluation.likely_mistakes import likely_mistakes
from stepgrad.evaluation.records import Detections, Evidence
from stepgrad.evaluation.result import EvaluationResult
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.options import get_metric
from stepgrad.metric.protocol import Protocol
from stepgrad.number_text import counted
from stepgrad.progress import RichProgress

if TYPE_CHECKING:
    from stepgrad.detector.training.run_folder import RunFolder


@dataclass(frozen=True)
class JudgedInput:
    """Detections and the data they were made on."""

    dataset: DetectionDataset
    detections: FileDetections
    name: str = ""
    """What to call them in a report."""
    load: Callable[..., DetectionDataset] | None = None
    """Reads the dataset of a file of detections again, with its images."""
    run: RunFolder | None = None
    """The run that made them."""
    run_protocol: str | None = None
    metrics: tuple[str, ...] = ()
    """What the run trained for, if not AP."""

    @property
    def protocol(self) -> str:
        """The protocol to judge by unless told otherwise: that of the run, or the usual one for such data."""
        if self.run_protocol is not None:
            return self.run_protocol
        if isinstance(self.dataset, VOCDataset):
            return "voc07-devkit"
        if isinstance(self.dataset, DOTADataset):
            return "dota"
        if isinstance(self.dataset, SegmentDataset):
            return "activitynet"
        return "coco" if isinstance(self.dataset, (COCODataset, YOLODataset)) else "voc12"

    @property
    def category_ids(self) -> tuple[int, ...] | None:
        """The id by which result files call each class: that of the file of detections, or of COCO's annotations."""
        if self.detections.category_ids is None and isinstance(self.dataset, COCODataset):
            return self.dataset.category_ids
        return self.detections.category_ids

    def with_detections(self, path: str | Path, empty_boxes: str) -> JudgedInput:
        """Other detections of the same data, from a file."""
        found = read_detections(path, self.dataset, empty_boxes)
        return JudgedInput(self.dataset, found, name=f"{Path(path).name} on {self.dataset.name}", load=self.load)

    def pictures(self) -> DetectionDataset:
        """The dataset with its images where they are at hand."""
        if self.load is not None:
            with suppress(DataError):
                return self.load()
        return self.dataset

    def evidence(self, as_they_stand: bool = False) -> Evidence:
        """Detections and objects; protocols count the numbers as they stand, or each in its own pixel convention."""
        return evidence_from(self.dataset, self.detections, as_they_stand)

    def metrics_under(self, protocol: Protocol, asked: Sequence[str] = ()) -> list[ListMetric]:
        """What the run trained for, unless the protocol has no such number, and what was asked for."""
        found = {}
        for name in self.metrics:
            with suppress(ConfigError):  # AP of small objects, judged by another protocol than the run's
                get_metric(name).check_protocol(protocol)
                found[name] = get_metric(name)
        return list((found | {name: get_metric(name) for name in asked}).values())

    def warn_of_mistakes(self, result: EvaluationResult) -> None:
        """Warn of what is most likely wrong with the detections of a file."""
        if self.run is None:
            sizes, splits = image_sizes(self.dataset), images_of_splits(self.dataset)
            for line in likely_mistakes(result, sizes, self.detections.written, splits):
                warnings.warn(f"{self.name}: {line}.", LikelyMistakeWarning, stacklevel=2)

    def write_page(
        self,
        page: Path,
        evidence: Evidence,
        protocols: Sequence[Protocol],
        metrics: Sequence[ListMetric],
        with_plots: bool = False,
        provenance: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write the report of these detections; that of a run shows how it was trained, too. Returns the path."""
        from stepgrad.detector.training.config import to_dict
        from stepgrad.report import write_page

        return write_page(
            page,
            title=self.name,
            evidence=evidence,
            protocols=protocols,
            dataset=self.pictures(),
            config=to_dict(self.run.config()) if self.run else {},
            history=self.run.history() if self.run else (),
            metrics=metrics,
            with_plots=with_plots,
            provenance=provenance,
        )


def only_images(dataset: DetectionDataset, first: int, count: int) -> DetectionDataset:
    """The same dataset, cut to the images that were looked at: objects of others are not missed."""
    if count == len(dataset):
        return dataset
    cut = copy(dataset)
    part = slice(first, first + count)
    cut.ids = dataset.ids[part]
    vars(cut).pop("positions", None)  # of the whole dataset
    if isinstance(cut, (COCODataset, YOLODataset)):
        cut.images = cut.images[part]
    if isinstance(cut, VOCDataset):
        cut.annotations = cut.annotations[part]
    return cut


def read(
    detections: str | Path,
    data: str | Path,
    split: str | None,
    class_names: Sequence[str] | None,
    degenerate: Degenerate,
    empty_boxes: str,
    images_outside: bool = False,
    task: Task = "boxes",
    sigmas: Sequence[float] | None = None,
) -> JudgedInput:
    """Detections and annotations from disk; of images at most the sizes are looked at."""
    load = partial(
        load_dataset,
        data,
        split,
        class_names=class_names,
        degenerate=degenerate,
        images_outside=images_outside,
        task=task,
    )
    dataset = load(need_images=False)
    if sigmas is not None:
        set_sigmas(dataset, sigmas)
    found = read_detections(detections, dataset, empty_boxes)
    return JudgedInput(dataset, found, name=f"{Path(detections).name} on {dataset.name}", load=load)


def read_or_run(
    detections: Path | None,
    run: Path | None,
    data: Path | None,
    split: str | None,
    class_names: Sequence[str] | None,
    degenerate: Degenerate,
    checkpoint: str,
    images_outside: bool,
    task: Task,
    sigmas: Sequence[float] | None,
) -> JudgedInput:
    """Detections of a file with its annotations, or those that a run makes; ConfigError unless one of the two is asked for."""
    if run is not None and task != "boxes":
        raise ConfigError(f"task: a run detects boxes only; expected --detections for {task}.")
    if run is not None and detections is None and class_names is None:
        return run_on(run, data, split, checkpoint, images_outside=images_outside)
    if run is None and detections is not None and data is not None:
        with Terminal(stderr=True).status("reading annotations and detections"):
            return read(detections, data, split, class_names, degenerate, "count", images_outside, task, sigmas)
    raise ConfigError(
        "Expected --detections (a file) with --data (its annotations), or --run without --detections and --class_names: a run "
        "has its own classes."
    )


def set_sigmas(dataset: DetectionDataset, sigmas: Sequence[float]) -> None:
    """Give a dataset of poses its sigmas."""
    if dataset.task != "keypoints":
        raise ConfigError("sigmas: are for poses; add --task keypoints, or leave the option out.")
    try:
        dataset.sigmas = sigmas_of(sigmas, dataset.keypoints or len(sigmas))
    except BadShapeError as error:
        raise ConfigError(f"sigmas: {error}.") from None


def run_on(
    folder: Path,
    data: Path | None,
    split: str | None,
    checkpoint: str,
    windows: Path | None = None,
    save_to: Path | None = None,
    images_outside: bool = False,
    compress: str | None = None,
    candidates: int | None = None,
) -> JudgedInput:
    """Detect with a run on its validation data, or on other data."""
    from stepgrad.detector.training.finish import validate
    from stepgrad.detector.training.run_folder import RunFolder

    if data is None and (split is not None or windows is not None):
        raise ConfigError(
            f"{'split' if split is not None else 'windows'}: needs --data; without it, the run's own validation data is used."
        )
    run = open_detector(folder, checkpoint, compress, candidates, Terminal(stderr=True))
    with RichProgress(Terminal(stderr=True)) as progress:
        images = _open(run, data, split, windows, images_outside, progress)
        _check_classes(run, images.dataset)
        progress.say(f"run {run.folder}, step {run.step}: {counted(len(images), 'image')} of {images.dataset.name}")
        evaluator = validate(run.model, images, [run.config.protocol], progress, what="detecting")
    detections = evaluator.evidence().detections
    dataset = only_images(images.dataset, images.first, len(images))
    if save_to is not None:
        save_detections(save_to, detections, dataset)
    return JudgedInput(
        dataset,
        FileDetections(detections, inclusive=False),
        name=f"{run.folder.name}, step {run.step}, on {dataset.name}",
        run=RunFolder(run.folder),
        run_protocol=run.config.protocol,
        metrics=run.config.metrics,
    )


def _open(
    run: Any, data: Path | None, split: str | None, windows: Path | None, images_outside: bool, progress: RichProgress
) -> Any:
    from stepgrad.detector.training.inputs import open_data, open_split

    if data is None:
        return open_split(run.config.data, "val", progress)
    names = run.config.data.class_names
    outside = images_outside or run.config.data.images_outside
    stored = None if windows is None else str(windows)
    return open_data(str(data), split, stored, None, run.config.data.max_windows, names, progress, outside)


def _check_classes(run: Any, dataset: DetectionDataset) -> None:
    if tuple(dataset.class_names) != tuple(run.class_names):
        raise DataError(
            f"{dataset.name}: expected the classes of the run, {', '.join(run.class_names)}, "
            f"but it has {', '.join(dataset.class_names)}."
        )


def save_detections(path: str | Path, detections: Detections, dataset: DetectionDataset) -> None:
    """COCO's results where the name ends in .json, else a folder of VOC's text files."""
    ids: list[ImageId] = list(dataset.ids)
    preds = [
        {
            "boxes": torch.from_numpy(detections.boxes[rows]),
            "scores": torch.from_numpy(detections.scores[rows]),
            "labels": torch.from_numpy(detections.labels[rows]),
        }
        for rows in (detections.images == i for i in range(len(ids)))
    ]
    place = Path(path).expanduser()
    if place.suffix.lower() == ".json":
        write_coco_results(place, preds, ids, dataset.category_ids if isinstance(dataset, COCODataset) else None)
    else:
        write_voc_results(place, preds, ids, dataset.class_names, decimals=None)
