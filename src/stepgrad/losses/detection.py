"""Any metric of the classes' ranked lists after NMS as a loss, with exact pseudogradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from stepgrad.engine.jit import explain_wait
from stepgrad.errors import one_of
from stepgrad.losses.likely_mistakes import Watch
from stepgrad.losses.objective import THROUGH_NMS, DetectionMethod, Objective
from stepgrad.losses.ragged import ClassLists, ScoredPairs, make_lists, measure_lists
from stepgrad.losses.started import StartedLoss
from stepgrad.metric.batch import Batch, Target
from stepgrad.metric.forms import Windows, as_lists, rows_of_images
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.metrics import AVERAGE_PRECISION
from stepgrad.metric.options import get_metric, resolve_protocol
from stepgrad.metric.protocol import Protocol
from stepgrad.overlaps.base import Boxes, Overlap
from stepgrad.overlaps.batch import Given, check_overlap, read_batch
from stepgrad.plain_tensors import joined, outside_graphs


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
        overlap: as for `MAPLoss`.
        absent_classes: as for `MAPLoss`; for a miss rate or the worst class they are always left out, and for a cost they
            always count.

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

    names: ClassVar[tuple[str, str]] = ("value", "by_class")  # of the value and of the classes' values in `metrics`

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
        absent_classes: str | None = None,
        score_floor: float | None = None,
        overlap: Overlap | None = None,
    ) -> None:
        super().__init__()
        one_of("through_nms", through_nms, THROUGH_NMS)
        resolved = get_metric(metric)
        overlap = check_overlap(overlap)
        usual_balance = "class" if resolved.shift_invariant else "none"
        self.objective = Objective(
            num_classes=num_classes,
            protocol=resolve_protocol(protocol, match_threshold, absent_classes, overlap.adapt),
            nms_threshold=nms_threshold,
            method=DetectionMethod(estimator, radius, min_step, through_nms),
            log=resolved.higher_is_better and resolved.is_compiled if log is None else log,
            eps=eps,
            l4=l4,
            clip=clip,
            balance=usual_balance if balance is None else balance,
            score_floor=score_floor,
            metric=resolved,
            classes=classes,
            class_weights=class_weights,  # type: ignore[arg-type]  # made a tuple on creation
            overlap=overlap,
            names=self.names,
        )
        self.metrics: dict[str, Any] = {}
        self._watch = Watch()

    @property
    def num_classes(self) -> int:
        """Columns of the scores."""
        return self.objective.num_classes

    @outside_graphs
    def forward(
        self,
        scores: Windows,
        boxes: Windows | None = None,
        targets: Sequence[Target] | None = None,
        mask: Tensor | None = None,
        **more: Any,
    ) -> Tensor:
        """The loss of a batch: lists per image of (N, K) scores, (N, 4) or (N, K, 4) boxes, and target dicts.

        Scores and boxes may also be one tensor each, (B, N, K) and (B, N, 4) or (B, N, K, 4), with mask (B, N) False for
        padding. Scores of one class may leave their last dimension out. Without targets, for example if detections and
        targets are passed as to torchmetrics, the error says what is expected.

        Where boxes are not what counts, `more` has, one entry per image: `overlaps` (N, G) of windows with objects, any likeness
        in [0, 1] (for crowds the share of the window that is covered); `neighbours` for NMS, a likeness (N, N) or booleans or
        pairs (E, 2); or `masks`, `keypoints` or `shapes` of the windows for an overlap of `sg.overlaps`, which can be given here
        as `overlap` too.
        """
        batch, flat = self.read(scores, boxes, targets, mask, more)
        measured = self.objective.measure(batch, torch.is_grad_enabled() and flat.requires_grad)
        self.metrics = measured.metrics
        return self.objective.as_loss(measured, flat, batch.scores)

    @outside_graphs
    def start(
        self,
        scores: Windows,
        boxes: Windows | None = None,
        targets: Sequence[Target] | None = None,
        mask: Tensor | None = None,
        **more: Any,
    ) -> StartedLoss:
        """Begin to work the loss out on a thread of the CPU: `started = loss_fn.start(...)`, then the rest of the forward pass,
        then `loss = started.finish()`. Loss, gradient and `metrics` are those of the call itself."""
        return StartedLoss(self, (scores, boxes, targets, mask), more)

    def of_pairs(self, candidates: ScoredPairs, targets: Sequence[Target]) -> Tensor:
        """The loss of (window, class) pairs: see `ragged_map_loss`."""
        needed = torch.is_grad_enabled() and candidates.scores.requires_grad
        lists = self.read_pairs(candidates, targets)
        with explain_wait():
            measured = measure_lists(self.objective, lists, needed)
        self.metrics = measured.metrics
        return self.objective.as_loss(measured, candidates.scores, lists.scores)

    def read_pairs(self, candidates: ScoredPairs, targets: Sequence[Target]) -> ClassLists:
        """The candidates and objects, checked; warns once if the first batches look like a mistake."""
        lists = make_lists(self.objective, candidates, targets)
        if self._watch.is_undecided and torch.is_grad_enabled() and candidates.scores.requires_grad:
            self.watch(lists.joined())
        return lists

    def read(
        self,
        scores: Windows,
        boxes: Windows | None,
        targets: Sequence[Target] | None,
        mask: Tensor | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> tuple[Batch, Tensor]:
        """The batch, checked, and its scores as one tensor with their graph."""
        objective = self.objective
        K = objective.num_classes
        given = Given.of_call(objective.overlap, objective.nms_threshold, objective.protocol, more or {})
        if isinstance(scores, Tensor):
            given = replace(given, shapes={name: rows_of_images(s, mask) for name, s in given.shapes.items()})
        scores, boxes = as_lists(scores, boxes, K, mask, width=4 if given.is_plain else None)
        batch = read_batch(scores, boxes, targets, K, objective.metric.area is not None, given)
        flat = joined(scores) if len(scores) else torch.zeros(0, K, requires_grad=True)
        if torch.is_grad_enabled() and flat.requires_grad:
            self.watch(batch)
        return batch, flat

    def watch(self, batch: Batch) -> None:
        """Warn once if the first batches look like a mistake."""
        self._watch.look_at(batch, self.objective.protocol, self.objective.method)

    def extra_repr(self) -> str:
        return describe(self.objective)


class MAPLoss(DetectionLoss):
    """-log(mAP after NMS + eps) + l4 * sum of scores^4, with exact pseudogradients.

    Args:
        num_classes: columns of the scores (without background).
        protocol: "voc07", "voc12", "coco" or any `Protocol`: train with the one you report.
        nms_threshold: IoU above which the higher of two windows suppresses the lower; None: no NMS.
        match_threshold: IoU at which a window finds an object; None: the protocol's (0.5; .50:.05:.95 for "coco").
        estimator: "radius", "mee" or "sde"; None: "radius", or "mee" where `through_nms` is "paper", which needs nearest
            steps.
        radius: for the radius estimator, in units of score: 3 suits logits and log-probabilities, which are the scores to
            give. Between probabilities every distance is below 3.
        through_nms: "exact" | "paper" | "none" (suppressed windows get no gradient).
        log: use -log(mAP + eps) instead of 1 - mAP.
        eps: what keeps the logarithm finite.
        l4: weight of the score regulariser sum s^4; None: off.
        clip: bound on each element of the gradient before balance and L4; None: off.
        min_step: lower bound on the distance to a step where there is one on one side only.
        balance: "class" makes the pushes up and down of each class sum to zero, since shifting all its scores changes nothing;
            "class+scale" also removes what would only stretch the scores; "none" leaves the gradient as it is.
        absent_classes: classes without objects in the batch count as AP 0 ("zero") or are left out of the mean ("skip"); None:
            the protocol's own rule, "zero" for VOC's, as in the paper, and "skip" for COCO's.
        score_floor: pairs of window and class that score below are left out and get no gradient. A dense detector or a
            DETR uses few of its pairs, and the loss of those few is many times faster; None: every pair counts.
        class_weights: K weights for a weighted mean of AP, for classes that are rare or matter more; None: equal weights.
        overlap: what windows and objects are compared by, one of `sg.overlaps`, such as `Masks()`; None: IoU of boxes.

    Called with scores and boxes as lists per image, (N, K) and (N, 4) or (N, K, 4); or as tensors (B, N, K) and (B, N, 4) or
    (B, N, K, 4), with `mask` (B, N) if some windows are only padding; scores of one class also as (N,) or (B, N).

    After each call, `metrics` holds map, ap (K,), kept (windows after NMS, of classes with objects), objects (to find),
    nonzero (share of scores with a gradient), positive_sum and negative_sum (of the gradient without L4).

    A window without area overlaps nothing. Input that is most likely not what was meant (boxes in different coordinates, or
    probabilities with a radius made for logarithms) gives one `stepgrad.errors.LikelyMistakeWarning`. Gradients come from
    `backward` or `torch.autograd.grad`; `torch.func` and `vmap` do not work with the loss.

    >>> import torch
    >>> boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 0.0, 11.0, 10.0], [20.0, 0.0, 30.0, 10.0]])
    >>> scores = torch.tensor([[0.2], [0.1], [0.9]], requires_grad=True)
    >>> loss_fn = MAPLoss(num_classes=1)
    >>> loss = loss_fn([scores], [boxes], [{"boxes": boxes[:1], "labels": torch.tensor([0])}])
    >>> loss.backward()
    >>> loss_fn.metrics["map"], scores.grad.flatten().sign().tolist()   # the object's two windows up, the false alarm down
    (0.5, [-1.0, -1.0, 1.0])
    """

    names = ("map", "ap")

    def __init__(
        self,
        num_classes: int,
        protocol: str | Protocol = "voc12",
        *,
        nms_threshold: float | None = 0.3,
        match_threshold: float | Sequence[float] | None = None,
        estimator: str | None = None,
        radius: float = 3.0,
        through_nms: str = "exact",
        log: bool = True,
        eps: float = 0.01,
        l4: float | None = None,
        clip: float | None = None,
        min_step: float = 0.1,
        balance: str = "class",
        absent_classes: str | None = None,
        score_floor: float | None = None,
        class_weights: Sequence[float] | Tensor | None = None,
        overlap: Overlap | None = None,
    ) -> None:
        one_of("through_nms", through_nms, THROUGH_NMS)
        usual = "mee" if through_nms == "paper" else "radius"
        super().__init__(
            num_classes,
            AVERAGE_PRECISION,
            protocol,
            class_weights=class_weights,
            nms_threshold=nms_threshold,
            match_threshold=match_threshold,
            estimator=usual if estimator is None else estimator,
            radius=radius,
            through_nms=through_nms,
            log=log,
            eps=eps,
            l4=l4,
            clip=clip,
            min_step=min_step,
            balance=balance,
            absent_classes=absent_classes,
            score_floor=score_floor,
            overlap=overlap,
        )

    @classmethod
    def paper(cls, num_classes: int, protocol: str | Protocol = "voc12", **changes: Any) -> MAPLoss:
        """The paper's loss: MEE, its NMS approximation, log, L4 and clipping, no balance, NMS at 0.3.

        The paper does not print its constants eps, lambda, the clipping bound and the least step; those here are stepgrad's.
        """
        settings: dict[str, Any] = {
            "estimator": "mee",
            "through_nms": "paper",
            "log": True,
            "eps": 0.01,
            "l4": 1e-6,
            "clip": 0.1,
            "min_step": 0.1,
            "balance": "none",
            "absent_classes": "zero",
        }
        return cls(num_classes, protocol, **{**settings, **changes})


def describe(objective: Objective) -> str:
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
        "overlap": None if type(objective.overlap) is Boxes else objective.overlap,
    }
    metric = (
        []
        if objective.logged_name == "map"
        else [f"metric={objective.metric.name!r}", f"classes={objective.classes!r}"]
    )
    settings = [f"{name}={value!r}" for name, value in shown.items() if value is not None]
    return ", ".join([str(objective.num_classes), *metric, f"nms_threshold={objective.nms_threshold}", *settings])
