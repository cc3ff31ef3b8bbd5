"""The ways in which a rescorer can be trained, and how scores follow from its network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stepgrad.losses.detection import MAPLoss
from stepgrad.losses.ragged import ScoredPairs, ragged_map_loss
from stepgrad.metric.protocol import Protocol
from stepgrad.models.rescore.images import ScoredImage, best_of_objects, share_of_hits
from stepgrad.models.rescore.network import QualityNetwork, Rows
from stepgrad.overlaps.base import Overlap

ALPHAS = (0.5, 1.0, 2.0, 4.0)

REGRESSIONS = ("quality", "context")
WAYS = (*REGRESSIONS, "metric", "metric_after")
SAYS = {
    "own": "the detector's own scores",
    "quality": "a regressed quality",
    "context": "hits regressed with a look at the neighbours",
    "metric": "the metric itself",
    "metric_after": "a regression, then the metric itself",
}
"""The ways, as sentences name them."""


@dataclass(frozen=True)
class Setting:
    """One training of one way."""

    way: str
    rate: float
    labels: str = ""
    """What a regression learns: "fit", the overlap of detections that have an object; "best", that of the best detection of each
    object, 0 for the others; "hits", the share of the protocol's thresholds at which a detection is right."""
    least: float = 0.5
    """Overlap from which a detection has an object, for "fit"."""
    alpha: float = 1.0
    """Weight of the log of the quality, for "fit"."""
    radius: float = 1.0
    """Of the estimator, for the metric."""
    pull: float = 0.02
    """Weight of the mean squared distance from the scores before, for the metric."""
    mean: float = 0.98
    """Decay per step of the running mean of the weights; 0: the last weights count."""
    start: Setting | None = None
    """What comes before, for "metric_after"."""

    @property
    def is_metric(self) -> bool:
        return self.way.startswith("metric")

    @property
    def multiplies(self) -> bool:
        """Whether scores are p * q ** alpha; otherwise the network's output is added to the logit of p."""
        first = self.start or self
        return first.way == "quality"

    @property
    def power(self) -> float:
        return (self.start or self).alpha

    @property
    def text(self) -> str:
        """What was chosen, in words."""
        if self.is_metric:
            after = f" after {self.start.text}" if self.start is not None else ""
            return f"rate {self.rate:g}, radius {self.radius:g}, pull {self.pull:g}{after}"
        what = f"overlap from {self.least:g} on, power {self.alpha:g}" if self.labels == "fit" else self.labels
        return f"rate {self.rate:g}, {what}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for json."""
        found = {name: value for name, value in vars(self).items() if name != "start"}
        return {**found, "start": None if self.start is None else self.start.to_dict()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Setting:
        start = content.get("start")
        return cls(**{**content, "start": None if start is None else cls.from_dict(start)})


def settings_of(way: str, starts: Sequence[Setting] = ()) -> list[Setting]:
    """Settings to try: four trainings of each way. Of "quality", one training serves every power."""
    if way == "quality":
        return [Setting(way, rate, "fit", least) for rate in (1e-3, 3e-3) for least in (0.1, 0.5)]
    if way == "context":
        return [Setting(way, rate, labels) for rate in (1e-3, 3e-3) for labels in ("best", "hits")]
    if way == "metric":
        return [Setting(way, 3e-3, radius=radius, pull=pull) for radius, pull in _METRIC]
    return [Setting(way, 1e-3, radius=radius, pull=pull, start=start) for start in starts for radius, pull in _METRIC]


_METRIC = ((0.5, 0.02), (1.0, 0.02), (3.0, 0.02), (1.0, 0.1))


def ranked_by(outputs: Tensor, own: Tensor, setting: Setting) -> Tensor:
    """(M,) logits, or log-probabilities where scores are products: what the detections are ranked by."""
    if setting.multiplies:
        return F.logsigmoid(own) + setting.power * F.logsigmoid(outputs)
    return own + outputs


Loss = Callable[[Tensor, Rows, Sequence[ScoredImage]], Tensor]


def loss_of(
    setting: Setting, num_classes: int, protocol: Protocol, overlap: Overlap, start: QualityNetwork | None = None
) -> Loss:
    """The loss of a network's outputs for the detections of some images; `start` is the network that metrics go on from."""
    if not setting.is_metric:
        return _regression(setting, protocol)
    loss_fn = MAPLoss(
        num_classes, protocol, nms_threshold=None, radius=setting.radius, absent_classes="zero", overlap=overlap
    )

    def loss(outputs: Tensor, rows: Rows, images: Sequence[ScoredImage]) -> Tensor:
        scores = ranked_by(outputs, rows.own, setting)
        with torch.no_grad():
            before = rows.own if start is None else ranked_by(start(rows), rows.own, setting)
        return of_pairs(loss_fn, scores, images) + setting.pull * F.mse_loss(scores, before)

    return loss


def of_pairs(loss_fn: MAPLoss, scores: Tensor, images: Sequence[ScoredImage]) -> Tensor:
    """The loss of the scores of all detections of some images."""
    numbers = torch.repeat_interleave(torch.arange(len(images)), torch.tensor([len(image.boxes) for image in images]))
    boxes = torch.cat([image.boxes for image in images])
    labels = torch.cat([image.rows.labels for image in images])
    pairs = ScoredPairs(scores.double(), boxes, numbers, labels, overlaps=[image.table for image in images])
    return ragged_map_loss(loss_fn, pairs, [image.target for image in images])


def _regression(setting: Setting, protocol: Protocol) -> Loss:
    """Cross-entropy with soft labels, summed, per image; of "fit" per detection that has an object."""

    @cache
    def wanted_of(image: ScoredImage) -> Tensor:
        if setting.labels == "fit":
            return torch.where(image.fits >= setting.least, image.fits, torch.nan).float()
        labels = best_of_objects(image) if setting.labels == "best" else share_of_hits(image, protocol)
        return torch.where(image.excused, torch.nan, labels).float()

    def loss(outputs: Tensor, rows: Rows, images: Sequence[ScoredImage]) -> Tensor:
        wanted = torch.cat([wanted_of(image) for image in images])
        counts = ~wanted.isnan()
        said = outputs if setting.labels == "fit" else outputs + rows.own
        total = F.binary_cross_entropy_with_logits(said[counts], wanted[counts], reduction="sum")
        return total / (counts.sum().clamp_min(1) if setting.labels == "fit" else len(images))

    return loss


def with_alpha(setting: Setting, alpha: float) -> Setting:
    """The same training with another power of the quality."""
    return replace(setting, alpha=alpha)
