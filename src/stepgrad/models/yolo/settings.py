"""The options of a YOLO trainer, and their way into checkpoints and into the processes that it starts.

Before 8.4.140, ultralytics tells a process of a training on several GPUs the trainer's name and its own settings, which it checks
word by word: no object of stepgrad gets through. Processes inherit the environment.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from stepgrad.errors import ConfigError, whole_number
from stepgrad.losses.distributed import DistributedDetectionLoss, DistributedMAPLoss
from stepgrad.metric.options import get_metric
from stepgrad.metric.protocol import Protocol
from stepgrad.models.auto_weight import AutoWeight, weight_of

CLOSE_MOSAIC = "close_mosaic"
TRAINERS = {
    "detect": "MAPTrainer",
    "segment": "MAPSegmentationTrainer",
    "pose": "MAPPoseTrainer",
    "obb": "MAPOBBTrainer",
}
"""Names of the trainers, by the task of the model."""

NAME, OTHER_NAME = "batch_map", "batch_metric"  # among the loss items: in the progress line, the CSV and the log
PREFIX = "stepgrad/"  # of the metric's name among the numbers of validation
_NAME = "STEPGRAD_YOLO_OPTIONS"


def is_ours(name: str) -> bool:
    """Whether a column of results.csv is one that the stock trainer does not have."""
    return name.startswith(PREFIX) or name in (f"train/{NAME}", f"train/{OTHER_NAME}")


@dataclass(frozen=True)
class YoloSettings:
    """The options of a trainer; `MAPTrainer.options` says what they mean."""

    weight: float | str | AutoWeight = "auto"
    start: int | str = CLOSE_MOSAIC
    candidates: int = 1000
    per_object: int = 10
    measure: bool = False
    task: str | None = None
    ignore: bool = True
    loss: Mapping[str, Any] = field(default_factory=dict)  # of MAPLoss, or with a "metric" of DetectionLoss

    def __post_init__(self) -> None:
        if self.metric is not None and self.task not in (None, "boxes"):
            raise ConfigError(f"Expected metric={self.metric!r} to be of boxes but got task={self.task!r}.")
        if self.weighs:
            weight_of(self.weight)
        if self.start != CLOSE_MOSAIC:
            whole_number(f"start ({CLOSE_MOSAIC!r} or a number of epochs)", self.start, least=0)
        whole_number("candidates", self.candidates, least=1)
        whole_number("per_object", self.per_object, least=0)

    @property
    def metric(self) -> str | None:
        """Name of the metric in place of mAP."""
        return self.loss.get("metric")

    @property
    def weighs(self) -> bool:
        """Whether mAP is to take part in the loss; else it is measured only."""
        return isinstance(self.weight, bool) or self.weight != 0

    def first_epoch(self, args: Any, epochs: int) -> int:
        """The epoch, counted from 0, at which mAP comes in."""
        if isinstance(self.start, int):
            return self.start
        if not args.close_mosaic:
            raise ConfigError(
                "Expected close_mosaic > 0, as mAP starts when mosaic is closed, but it is never closed (close_mosaic=0); "
                "set the start yourself: trainer=MAPTrainer.options(start=90), after 90 epochs of the stock loss."
            )
        return int(epochs - args.close_mosaic)

    def in_words(self, args: Any, epochs: int) -> str:
        """From which epoch on mAP takes part, epochs counted from 1, and with which weight.

        >>> YoloSettings(start=90, weight=0.5).in_words(None, 100)
        'mAP takes part from epoch 91 of 100 on, with weight 0.5'
        """
        first = max(self.first_epoch(args, epochs), 0) + 1
        what = self.metric or "mAP"
        if first > epochs:
            return f"{what} takes no part, as it starts with epoch {first} and training ends after {epochs}"
        if not self.weighs:
            return f"{what} takes no part (weight 0); it is measured from epoch {1 if self.measure else first} of {epochs} on"
        weight = f"weight {self.weight:g}" if isinstance(self.weight, (int, float)) else "a weight that balances itself"
        if isinstance(self.weight, AutoWeight):
            weight += f" ({self.weight.share:g} of the stock losses' gradient)"
        return f"{what} takes part from epoch {first} of {epochs} on, with {weight}"


def on_log_scores(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options for scores that are logarithms: the threshold of a metric is meant for the model's own scores.

    >>> on_log_scores({"metric": "f1@threshold=0.5"})["metric"].threshold
    -0.6931471805599453
    """
    metric: Any = get_metric(options["metric"]) if "metric" in options else None
    if getattr(metric, "threshold", None) is None:
        return dict(options)
    if not 0.0 < metric.threshold <= 1.0:
        raise ConfigError(f"Expected a threshold in (0, 1], as YOLO's scores are, but got {metric.threshold:g}.")
    return {**options, "metric": replace(metric, threshold=math.log(metric.threshold))}


def make_loss(classes: int, options: Mapping[str, Any], **more: Any) -> DistributedDetectionLoss:
    """The loss of all processes: of a metric, if the options have one, else of mAP."""
    kind: type[DistributedDetectionLoss] = DistributedDetectionLoss if "metric" in options else DistributedMAPLoss
    return kind(classes, **options, **more)


@contextmanager
def handed_on(settings: YoloSettings) -> Iterator[None]:
    """The options in the environment, where processes started meanwhile find them."""
    before = os.environ.get(_NAME)
    os.environ[_NAME] = as_text(settings)
    try:
        yield
    finally:
        os.environ.pop(_NAME)
        if before is not None:
            os.environ[_NAME] = before


def inherited() -> YoloSettings | None:
    """The options of the trainer that started this process, if one did."""
    handed = os.environ.get(_NAME)
    if handed is None or os.environ.get("LOCAL_RANK", "-1") == "-1":  # what tells a process that it is one of several
        return None
    return from_text(handed)


def as_text(settings: YoloSettings) -> str:
    """The settings as JSON, for `from_text`.

    >>> settings = YoloSettings(weight=AutoWeight(share=0.5), start=3, loss={"protocol": "coco", "radius": 2.0})
    >>> from_text(as_text(settings)).weight.share
    0.5
    """
    return json.dumps({**vars(settings), "loss": dict(settings.loss)}, default=_record)


def from_text(text: str) -> YoloSettings:
    """Settings from JSON."""
    fields = json.loads(text)
    if isinstance(fields["weight"], dict):
        fields["weight"] = AutoWeight(**fields["weight"])
    protocol = fields["loss"].get("protocol")
    if isinstance(protocol, dict):
        thresholds = tuple(protocol["match_thresholds"])
        fields["loss"]["protocol"] = Protocol(**{**protocol, "match_thresholds": thresholds})
    return YoloSettings(**fields)


def _record(value: Any) -> Any:
    if isinstance(value, AutoWeight):
        return {"share": value.share, "memory": value.memory}
    if isinstance(value, Protocol):
        return asdict(value)
    return list(value)  # thresholds as some other sequence
