"""mAP after NMS as a loss (Henderson & Ferrari 2016, Sec. 4.5 and 5): a drop-in module with pseudogradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from stepgrad.errors import one_of
from stepgrad.losses.detection_loss import DetectionLoss
from stepgrad.losses.objective import MAPObjective
from stepgrad.metric.mean_ap import resolve_protocol
from stepgrad.metric.protocol import Protocol
from stepgrad.steps.map_steps import THROUGH_NMS, MAPMethod


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
        absent_classes: classes without objects in the batch count as AP 0 ("zero") or are left out ("skip").
        score_floor: pairs of window and class that score below are left out and get no gradient. A dense detector or a
            DETR uses few of its pairs, and the loss of those few is many times faster; None: every pair counts.
        class_weights: K weights for a weighted mean of AP, for classes that are rare or matter more; None: equal weights.

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
        absent_classes: str = "zero",
        score_floor: float | None = None,
        class_weights: Sequence[float] | Tensor | None = None,
    ) -> None:
        one_of("through_nms", through_nms, THROUGH_NMS)
        usual = "mee" if through_nms == "paper" else "radius"
        objective = MAPObjective(
            num_classes=num_classes,
            protocol=resolve_protocol(protocol, match_threshold, absent_classes),
            nms_threshold=nms_threshold,
            method=MAPMethod(usual if estimator is None else estimator, radius, min_step, through_nms),
            log=log,
            eps=eps,
            l4=l4,
            clip=clip,
            balance=balance,
            score_floor=score_floor,
            class_weights=class_weights,  # type: ignore[arg-type]  # made a tuple on creation
        )
        self._set_up(objective)

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
