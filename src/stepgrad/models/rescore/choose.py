"""The choice among the ways: every network is judged on images that it was not trained on.

The images are dealt into folds. On the first fold the settings of each way are chosen, and on the others the ways are compared,
so that no number that a sentence tells was chosen by the images it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepgrad.evaluation import Evaluator
from stepgrad.evaluation.intervals import Interval
from stepgrad.evaluation.paired import PairedComparison
from stepgrad.evaluation.paired import compare as compare_results
from stepgrad.evaluation.result import EvaluationResult
from stepgrad.losses.detection import MAPLoss
from stepgrad.metric.protocol import Protocol
from stepgrad.models.rescore.images import ScoredImage
from stepgrad.models.rescore.network import QualityNetwork
from stepgrad.models.rescore.train import new_network, scores_of, train_network
from stepgrad.models.rescore.ways import ALPHAS, REGRESSIONS, WAYS, Setting, of_pairs, settings_of, with_alpha
from stepgrad.number_text import metric_text
from stepgrad.overlaps.base import Overlap

FOLDS = 3
LEAST_IMAGES = 30
"""With fewer, a fold says nothing."""
LEVEL = 0.95


@dataclass(frozen=True)
class Course:
    """What every training of a rescorer shares."""

    num_classes: int
    protocol: Protocol
    overlap: Overlap
    units: int
    seed: int
    tick: Callable[[], object] = lambda: None

    def value(self, images: Sequence[ScoredImage], scores: Sequence[Tensor]) -> float:
        """mAP of some scores, without an interval."""
        loss_fn = MAPLoss(self.num_classes, self.protocol, nms_threshold=None, overlap=self.overlap)
        with torch.no_grad():
            of_pairs(loss_fn, torch.cat([s.double() for s in scores]), images)
        return float(loss_fn.metrics["map"])


@dataclass(frozen=True)
class WayTried:
    """A way on the images that it was compared on."""

    way: str
    setting: Setting | None
    """None: the detector's own scores."""
    value: float
    difference: float = 0.0
    interval: tuple[float, float] = (0.0, 0.0)
    """Of the difference from the detector's own scores, paired over images."""

    @property
    def is_ahead(self) -> bool:
        return self.interval[0] > 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for json."""
        setting = None if self.setting is None else self.setting.to_dict()
        return {**vars(self), "interval": list(self.interval), "setting": setting}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> WayTried:
        setting, (low, high) = content["setting"], content["interval"]
        known = None if setting is None else Setting.from_dict(setting)
        return cls(
            content["way"], known, float(content["value"]), float(content["difference"]), (float(low), float(high))
        )

    def cells(self) -> list[str]:
        """The number, the gain and its interval, as people read them."""
        value = metric_text("ap", self.value)
        if self.setting is None:
            return [value, "", ""]
        low, high = (metric_text("ap", end) for end in self.interval)
        return [value, f"{100 * self.difference:+.1f}", f"{low} to {high}"]

    @property
    def text(self) -> str:
        """The same in a sentence."""
        value, gain, interval = self.cells()
        return f"{value}, {gain} ({interval})" if gain else value


class Trainer:
    """The networks trained on some images, each once."""

    def __init__(self, course: Course, images: Sequence[ScoredImage]) -> None:
        self.course, self.images = course, images
        self._kept: dict[Setting, QualityNetwork] = {}

    def network(self, setting: Setting) -> QualityNetwork:
        """Trained, after what comes before it; one network serves every power of a quality."""
        key = with_alpha(setting, 1.0) if setting.labels == "fit" else setting
        if key not in self._kept:
            course = self.course
            if setting.start is None:
                start = new_network(self.images, course.num_classes, course.units, course.seed)
            else:
                start = self.network(setting.start)
            common = course.num_classes, course.protocol, course.overlap, course.seed
            self._kept[key] = train_network(start, self.images, setting, *common)
            course.tick()
        return self._kept[key]

    def scores(self, images: Sequence[ScoredImage], setting: Setting) -> list[Tensor]:
        """(M,) per image, of images that need not be those of the training."""
        return scores_of(self.network(setting), images, setting)


def choose(course: Course, images: Sequence[ScoredImage]) -> list[WayTried]:
    """The detector's own scores, then every way with its chosen setting, each on the same held-out images."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(course.seed)).tolist()
    folds = [[images[i] for i in order[fold::FOLDS]] for fold in range(FOLDS)]
    trainers = [Trainer(course, _but(folds, fold)) for fold in range(FOLDS)]
    chosen = _settings(trainers[0], folds[0])
    rest = [image for fold in folds[1:] for image in fold]
    own = judge(course, rest, [image.rows.own for image in rest])
    trials = [WayTried("own", None, own.map)]
    for setting in chosen:
        parts = [trainer.scores(fold, setting) for trainer, fold in zip(trainers[1:], folds[1:], strict=True)]
        found = judge(course, rest, [scores for part in parts for scores in part])
        trials.append(trial_of(setting, own, found, len(chosen)))
    return trials


def trial_of(setting: Setting, own: EvaluationResult, found: EvaluationResult, ways: int) -> WayTried:
    """A way against the detector's own scores; the more ways there are to choose from, the wider the interval."""
    paired = compare_results(own, found, level=1 - (1 - LEVEL) / ways)
    return WayTried(setting.way, setting, found.map, paired.difference, ends(paired))


def ends(paired: PairedComparison) -> tuple[float, float]:
    """The interval of a difference; where the images are all alike it is the difference itself."""
    interval: Interval = paired.interval
    return float(interval.low), float(interval.high)


def best_of(trials: Sequence[WayTried]) -> WayTried:
    """The way that is furthest ahead of the detector's own scores; these, if none is clearly ahead."""
    ahead = [trial for trial in trials if trial.is_ahead]
    return max(ahead, key=lambda trial: trial.value) if ahead else trials[0]


def _settings(trainer: Trainer, held_out: Sequence[ScoredImage]) -> list[Setting]:
    """The best setting of each way on images that the trainer does not have."""
    best: dict[str, tuple[float, Setting]] = {}
    for way in WAYS:
        before = max((best[name] for name in REGRESSIONS if name in best), key=lambda found: found[0], default=None)
        starts = [before[1]] if way == "metric_after" and before is not None else []
        tried = [reading for setting in settings_of(way, starts) for reading in _readings(setting)]
        values = [trainer.course.value(held_out, trainer.scores(held_out, setting)) for setting in tried]
        best[way] = max(zip(values, tried, strict=True), key=lambda found: found[0])
    return [setting for _, setting in best.values()]


def _readings(setting: Setting) -> list[Setting]:
    """The settings that one training serves."""
    return [with_alpha(setting, alpha) for alpha in ALPHAS] if setting.labels == "fit" else [setting]


def trainings() -> int:
    """How many networks are trained, at most, before the last one."""
    tried = sum(len(settings_of(way, [Setting("context", 0.0)])) for way in WAYS)
    return tried + len(WAYS) * (FOLDS - 1) + 2


def _but(folds: Sequence[Sequence[ScoredImage]], left_out: int) -> list[ScoredImage]:
    return [image for number, fold in enumerate(folds) if number != left_out for image in fold]


def judge(course: Course, images: Sequence[ScoredImage], scores: Sequence[Tensor]) -> EvaluationResult:
    """The result of some scores, as the evaluator counts it."""
    evaluator = Evaluator(course.num_classes, course.protocol, task=course.overlap)
    found = [
        {**image.shapes, "boxes": image.boxes, "labels": image.rows.labels, "scores": own.double()}
        for image, own in zip(images, scores, strict=True)
    ]
    evaluator.update(found, [{**image.target, "image_id": number} for number, image in enumerate(images)])
    return evaluator.compute()
