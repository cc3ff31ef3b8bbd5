"""Any metric of the classes' ranked lists after NMS as a loss, with exact pseudogradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stepgrad.errors import one_of
from stepgrad.losses.likely_mistakes import Watch
from stepgrad.losses.objective import MAPObjective
from stepgrad.metric.batch import Batch, Target, make_batch
from stepgrad.metric.forms import Windows, as_lists
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.mean_ap import resolve_protocol
from stepgrad.metric.named_metrics import get_metric
from stepgrad.metric.protocol import Protocol
from stepgrad.plain_tensors import joined, keep_out_of_compiled_graphs
from stepgrad.steps.map_steps import THROUGH_NMS, MAPMethod


class DetectionLoss(nn.Module):
    """The loss of the metric that a detector is deployed by, after NMS; `sg.metrics` has the metrics.

    The loss is -log(value + eps) if the value should be large, the value itself if it should be small (a cost, a miss rate),
    plus l4 * sum of scores^4.

    Args:
        num_classes: columns of the scores (without background).
        metric: one of `sg.metrics`, such as `sg.metrics.RecallAtPrecision(0.95)`; its name, "recall@precision=0.95"; or a
            function of one class's list, `f(hits, objects)`, see `sg.metrics.OwnMetric`.
        protocol: how detections are matched with objects, and what AP is, as for `MAPLoss`.
        classes: "mean" over the classes, or the "worst" of them.
        class_weights: K weights, for a weighted mean: rare classes, or those that matter for safety.
        log: use the logarithm of the value; None: only for metrics that should be large and lie in [0, 1], not for your own
            function.
        balance: as for `MAPLoss`; None: "class" where shifting all scores changes nothing, "none" for metrics with a fixed
            score threshold, which accept nothing else.
        absent_classes: classes without objects in the batch are left out ("skip") or count as 0 ("zero"); for a miss
            rate or the worst class they are always left out, and for a cost they always count.

    The other options are those of `MAPLoss`. After each call, `metrics` holds metric (its name), value, by_class (K,) and kept,
    objects, nonzero, positive_sum and negative_sum as for `MAPLoss`.

    >>> from stepgrad.metric.metrics import Cost
    >>> boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 0.0, 11.0, 10.0], [20.0, 0.0, 30.0, 10.0]])
    >>> scores = torch.tensor([[0.2], [0.1], [0.9]], requires_grad=True)
    >>> loss_fn = DetectionLoss(num_classes=1, metric=Cost(threshold=0.5, false_alarm=1, miss=10))
    >>> loss_fn([scores], [boxes], [{"boxes": boxes[:1], "labels": torch.tensor([0])}]).backward()
    >>> loss_fn.metrics["value"], scores.grad.flatten().sign().tolist()   # the object's windows up, the false alarm down
    (11.0, [-1.0, -1.0, 1.0])
    """

    def __init__(
        self,
        num_classes: int,
        metric: str | ListMetric | Callable[..., Any],
        protocol: str | Protocol = "voc12",
        *,
        classes: str = "mean",
        class_weights: Sequence[float] | Tensor | None = None,
        nms_threshold: float | None = 0.3,
        match_threshold: float | Sequence[float] | None = None,
        estimator: str = "radius",
        radius: float = 3.0,
        through_nms: str = "exact",
        log: bool | None = None,
        eps: float = 0.01,
        l4: float | None = None,
        clip: float | None = None,
        min_step: float = 0.1,
        balance: str | None = None,
        absent_classes: str = "skip",
        score_floor: float | None = None,
    ) -> None:
        one_of("through_nms", through_nms, THROUGH_NMS)
        resolved = get_metric(metric)
        usual_balance = "class" if resolved.shift_invariant else "none"
        objective = MAPObjective(
            num_classes=num_classes,
            protocol=resolve_protocol(protocol, match_threshold, absent_classes),
            nms_threshold=nms_threshold,
            method=MAPMethod(estimator, radius, min_step, through_nms),
            log=resolved.higher_is_better and resolved.is_compiled if log is None else log,
            eps=eps,
            l4=l4,
            clip=clip,
            balance=usual_balance if balance is None else balance,
            score_floor=score_floor,
            metric=resolved,
            classes=classes,
            class_weights=class_weights,  # type: ignore[arg-type]  # made a tuple on creation
            names=("value", "by_class"),
        )
        self._set_up(objective)

    def _set_up(self, objective: MAPObjective) -> None:
        """What every loss of this kind has; `MAPLoss` brings its own objective."""
        super().__init__()
        keep_out_of_compiled_graphs(type(self))
        self.objective = objective
        self.metrics: dict[str, Any] = {}
        self._watch = Watch()

    @property
    def num_classes(self) -> int:
        """Columns of the scores."""
        return self.objective.num_classes

    def forward(
        self, scores: Windows, boxes: Windows, targets: Sequence[Target] | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch: lists per image of (N, K) scores, (N, 4) or (N, K, 4) boxes, and target dicts.

        Scores and boxes may also be one tensor each, (B, N, K) and (B, N, 4) or (B, N, K, 4), with mask (B, N) False for
        padding. Scores of one class may leave their last dimension out. Without targets, for example if detections and
        targets are passed as to torchmetrics, the error says what is expected.
        """
        batch, flat = self.read(scores, boxes, targets, mask)
        measured = self.objective.measure(batch, torch.is_grad_enabled() and flat.requires_grad)
        self.metrics = measured.metrics
        return self.objective.as_loss(measured, flat, batch.scores)

    def read(
        self, scores: Windows, boxes: Windows, targets: Sequence[Target] | None, mask: Tensor | None = None
    ) -> tuple[Batch, Tensor]:
        """The batch, checked, and its scores as one tensor with their graph."""
        K = self.objective.num_classes
        scores, boxes = as_lists(scores, boxes, K, mask)
        batch = make_batch(scores, boxes, targets, K, areas=self.objective.metric.area is not None)
        flat = joined(scores) if len(scores) else torch.zeros(0, K, requires_grad=True)
        if torch.is_grad_enabled() and flat.requires_grad:
            self._watch.look_at(batch, self.objective.protocol, self.objective.method)
        return batch, flat

    def extra_repr(self) -> str:
        return describe(self.objective)


def describe(objective: MAPObjective) -> str:
    """The settings that decide what is trained for, as modules print them; those that are off are left out."""
    method, protocol = objective.method, objective.protocol
    thresholds = protocol.match_thresholds
    shown: dict[str, object] = {
        "protocol": protocol.name,
        "match_threshold": thresholds[0] if len(thresholds) == 1 else None,
        "estimator": method.estimator,
        "radius": method.radius if method.estimator == "radius" else None,
        "through_nms": method.through_nms,
        "log": objective.log,
        "l4": objective.l4,
        "clip": objective.clip,
        "balance": objective.balance,
        "absent_classes": protocol.absent_classes,
        "score_floor": objective.score_floor,
        "class_weights": objective.class_weights,
    }
    metric = (
        []
        if objective.logged_name == "map"
        else [f"metric={objective.metric.name!r}", f"classes={objective.classes!r}"]
    )
    settings = [f"{name}={value!r}" for name, value in shown.items() if value is not None]
    return ", ".join([str(objective.num_classes), *metric, f"nms_threshold={objective.nms_threshold}", *settings])
