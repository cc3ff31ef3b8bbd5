"""Scored windows of a dataset, and which of them NMS keeps and which find an object.

NMS and matching look at one image at a time, so they are done once; the mAP of any choice of images is then a matter of
sorting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import stepgrad as sg
from stepgrad.engine.matching import IGNORED, TRUE_POSITIVE
from stepgrad.evaluation.judge import ClassJudgement
from stepgrad.evaluation.judge import judge as judge_evidence
from stepgrad.evaluation.records import Evidence
from stepgrad.losses.functional import suppress_and_rank
from stepgrad.metric.protocol import get_protocol

NMS_THRESHOLD = 0.3
PROTOCOL = get_protocol("voc12")


@dataclass(frozen=True)
class ScoredImages:
    """One entry per image, as `stepgrad.MAPLoss` takes them."""

    scores: list[Tensor]  # (N, K)
    boxes: list[Tensor]  # (N, 4)
    targets: list[dict[str, Tensor]]  # boxes, labels, difficult

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def num_classes(self) -> int:
        return self.scores[0].shape[1]


_KEYS = ("boxes", "labels", "difficult")


def score_run(folder: Path, checkpoint: str, images: int | None, split: str | None = None) -> ScoredImages:
    """All windows of the run's validation images, or of another split, as its detector scores them."""
    from stepgrad.detector.training.inputs import open_split
    from stepgrad.detector.training.process import return_large_blocks
    from stepgrad.detector.training.run_folder import open_run

    return_large_blocks()
    run = open_run(folder, checkpoint)
    d = run.config.data
    data = open_split(d if split is None else replace(d, val=split, val_images=None), "val")
    scores, boxes, targets = [], [], []
    for i in range(min(len(data), images or len(data))):
        example = data.example(i)
        with torch.no_grad():
            (found,) = run.model.score_windows([example.image], [example.windows])
        scores.append(found.cpu())
        boxes.append(example.windows)
        targets.append({key: _flag_or(example.target, key) for key in _KEYS})
    return ScoredImages(scores, boxes, targets)


def score_voc_val(cache: Path, data: Path) -> ScoredImages:
    """All windows of VOC 2012 val as the cross-entropy head of the result tables scores them (`experiments.run start`)."""
    from experiments.cross_fit import CrossEntropyModels
    from experiments.frozen_features import load_parts

    train, val = load_parts(data, cache, 4000, 2000)
    head = CrossEntropyModels(train, 0, cache).model().eval()
    with torch.inference_mode():
        scores = [head.scores(val.inputs(i), "logprob").clone() for i in range(len(val))]
    return ScoredImages(scores, [i.windows for i in val.images], [i.target for i in val.images])


def _flag_or(target: Any, key: str) -> Tensor:
    found: Tensor = target[key] if key in target else torch.zeros(len(target["labels"]), dtype=torch.bool)
    return found


@dataclass(frozen=True)
class ClassRecords:
    """What NMS leaves of one class in all images, by decreasing score; hits on difficult objects are left out."""

    image: NDArray[np.int32]
    hit: NDArray[np.bool_]
    positives: NDArray[np.int64]  # (images,) objects to find


def judge(images: ScoredImages) -> list[ClassRecords]:
    """NMS and matching by VOC's rules, class by class."""
    evaluator = sg.Evaluator(images.num_classes, PROTOCOL)
    for scores, boxes, target in zip(images.scores, images.boxes, images.targets, strict=True):
        kept, labels, values = suppress_and_rank(scores, boxes, NMS_THRESHOLD, candidates=None)
        evaluator.update([{"boxes": boxes[kept], "labels": labels, "scores": values}], [target])
    evidence = evaluator.evidence()
    return [_records_of(evidence, found) for found in judge_evidence(evidence, PROTOCOL)]


def _records_of(evidence: Evidence, found: ClassJudgement) -> ClassRecords:
    objects, verdicts = evidence.objects, found.verdicts[0]
    counted = found.detections[verdicts != IGNORED]
    to_find = objects.images[(objects.labels == found.label) & ~objects.difficult]
    return ClassRecords(
        image=evidence.detections.images[counted],
        hit=verdicts[verdicts != IGNORED] == TRUE_POSITIVE,
        positives=np.bincount(to_find, minlength=evidence.num_images),
    )


def mean_ap(records: Sequence[ClassRecords], chosen: NDArray[np.bool_]) -> tuple[float, float]:
    """mAP of the chosen images: over all classes (absent ones count 0), and over those present."""
    found = [_ap(r, chosen) for r in records]
    present = [ap for ap in found if ap is not None]
    return sum(present) / len(found), sum(present) / max(len(present), 1)


def _ap(records: ClassRecords, chosen: NDArray[np.bool_]) -> float | None:
    P = int(records.positives[chosen].sum())
    if P == 0:
        return None
    ranks = np.flatnonzero(records.hit[chosen[records.image]]) + 1
    precision = np.arange(1, len(ranks) + 1) / ranks
    return float(np.maximum.accumulate(precision[::-1]).sum() / P)
