"""What is known of torchvision's detectors: their class layers, their scores and boxes, and what inference passes on to NMS.

Training for mAP and new heads both ask here. What is scored is the log of the model's own score (softmax, sigmoid, or FCOS's
geometric mean with centre-ness). AP only looks at order, which the log keeps; but a pseudogradient divides by distances
between scores, and near 0 and 1, where most windows are, probabilities have hardly any distance left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, logsigmoid
from torchvision.models.detection import FCOS, RetinaNet
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.ssd import SSD

from stepgrad.errors import ConfigError
from stepgrad.models.switch import wide

SUPPORTED = ["FasterRCNN", "MaskRCNN", "KeypointRCNN", "RetinaNet", "FCOS", "SSD"]
"""The models of torchvision that `train_for_map` takes; SSDlite is an SSD."""
Outputs = dict[str, Tensor]
"""Of a dense head: "cls_logits" (images, A, columns), "bbox_regression" (images, A, 4) and more."""


class TwoStage:
    """Faster, Mask and Keypoint R-CNN: softmax, background in column 0."""

    first_label = 1
    background: str | None = "first"

    def columns(self, model: Any) -> int | None:
        """Classes of the model, without background; None: not known before the first batch."""
        columns: int | None = getattr(getattr(model.roi_heads.box_predictor, "cls_score", None), "out_features", None)
        return None if columns is None else columns - 1

    def nms_threshold(self, model: Any) -> float:
        return float(model.roi_heads.nms_thresh)

    def is_shown(self, boxes: Tensor) -> Tensor:
        """Which of (..., 4) boxes RoIHeads keeps: those with sides of at least a hundredth of a pixel."""
        return ((boxes[..., 2:] - boxes[..., :2]) >= 1e-2).all(dim=-1)


class RetinaNetFamily:
    """RetinaNet, and what all dense detectors share. Score: sigmoid of the logit.

    A ranking orders pairs of anchor and class as the model's scores do; scores_at gives the log of the score.
    """

    first_label = 0
    background: str | None = None
    columns_name = "num_classes"  # of the classification head's attribute

    def columns(self, model: Any) -> int | None:
        """Classes of the model, without background; None: not known before the first batch."""
        columns: int | None = getattr(getattr(model.head, "classification_head", None), self.columns_name, None)
        return None if columns is None else columns - (self.background is not None)

    def nms_threshold(self, model: Any) -> float:
        return float(model.nms_thresh)

    def class_layers(self, model: Any) -> list[nn.Module]:
        """The last class convolution for all levels, or one for each."""
        return [model.head.classification_head.cls_logits]

    def ranking(self, outputs: Outputs) -> Tensor:
        """(images, A, K), in the order of the model's scores."""
        return outputs["cls_logits"]

    def ranking_at(self, score: float) -> float:
        """The ranking's value at a score."""
        return math.log(score) - math.log1p(-score)

    def scores_at(self, outputs: Outputs, image: Tensor, anchor: Tensor, column: Tensor) -> Tensor:
        """(M,) log of the model's score, with its graph."""
        return logsigmoid(wide(outputs["cls_logits"][image, anchor, column]))

    def best_pairs(
        self, ranking: Tensor, classes: Tensor, level_sizes: Sequence[int], topk: int, floor: float
    ) -> Tensor:
        """The pairs of an image, anchor * K + class, that inference would pass on to NMS.

        RetinaNet and FCOS: on every level of the pyramid, the `topk` best pairs above the floor, all classes together.

        Args:
            ranking: (A, K) anything that orders pairs as their scores do.
            classes: columns of the classes that are looked at.
            level_sizes: anchors of each level; they sum to A.
            topk: pairs of a level or of a class.
            floor: pairs at or below it stay out; -inf: none.

        >>> ranking = torch.tensor([[0.1, 0.9], [0.5, 0.2], [0.3, 0.4]])
        >>> RetinaNetFamily().best_pairs(ranking, torch.tensor([0, 1]), [2, 1], topk=1, floor=0.0).tolist()
        [1, 5]
        """
        K = ranking.shape[1]
        pairs, start = [torch.zeros(0, dtype=torch.long, device=ranking.device)], 0
        for size in level_sizes:
            level = ranking[start : start + size].flatten()
            values, at = level.topk(min(topk, len(level)), sorted=False)
            pairs.append(at[values > floor] + start * K)
            start += size
        return torch.cat(pairs)

    def decode(self, model: Any, codes: Tensor, anchors: Tensor) -> Tensor:
        """(n, 4) boxes from (n, 4) codes."""
        boxes: Tensor = model.box_coder.decode_single(codes, anchors)
        return boxes


class FCOSFamily(RetinaNetFamily):
    """Score: geometric mean of the class's and the centre-ness's sigmoid."""

    def ranking(self, outputs: Outputs) -> Tensor:
        return 0.5 * (logsigmoid(wide(outputs["cls_logits"])) + logsigmoid(wide(outputs["bbox_ctrness"])))

    def ranking_at(self, score: float) -> float:
        return math.log(score)

    def scores_at(self, outputs: Outputs, image: Tensor, anchor: Tensor, column: Tensor) -> Tensor:
        of_class = logsigmoid(wide(outputs["cls_logits"][image, anchor, column]))
        return 0.5 * (of_class + logsigmoid(wide(outputs["bbox_ctrness"][image, anchor, 0])))

    def decode(self, model: Any, codes: Tensor, anchors: Tensor) -> Tensor:
        boxes: Tensor = model.box_coder.decode(codes, anchors)
        return boxes


class SSDFamily(RetinaNetFamily):
    """Score: softmax, background in column 0."""

    first_label = 1
    background = "first"
    columns_name = "num_columns"

    def class_layers(self, model: Any) -> list[nn.Module]:
        """One for each level; in SSDlite the last of a chain."""
        levels = model.head.classification_head.module_list
        return [list(m.children())[-1] if isinstance(m, nn.Sequential) else m for m in levels]

    def ranking(self, outputs: Outputs) -> Tensor:
        return log_softmax(wide(outputs["cls_logits"]), dim=-1)[..., 1:]

    def ranking_at(self, score: float) -> float:
        return math.log(score)

    def scores_at(self, outputs: Outputs, image: Tensor, anchor: Tensor, column: Tensor) -> Tensor:
        of_anchor = log_softmax(wide(outputs["cls_logits"][image, anchor]), dim=-1)
        return of_anchor.gather(1, column[:, None] + 1)[:, 0]

    def best_pairs(
        self, ranking: Tensor, classes: Tensor, level_sizes: Sequence[int], topk: int, floor: float
    ) -> Tensor:
        """For each of `classes`, the `topk` best anchors above the floor, all levels together.

        >>> ranking = torch.tensor([[0.1, 0.9], [0.5, 0.2]])
        >>> SSDFamily().best_pairs(ranking, torch.tensor([1, 0]), [2], topk=1, floor=0.0).tolist()
        [1, 2]
        """
        values, anchors = ranking[:, classes].topk(min(topk, len(ranking)), dim=0, sorted=False)
        return (anchors * ranking.shape[1] + classes)[values > floor]


def family_of(model: nn.Module) -> TwoStage | RetinaNetFamily:
    """The family of a model; ConfigError for one that is no detector of torchvision."""
    if isinstance(model, GeneralizedRCNN) and isinstance(model.roi_heads, RoIHeads):
        return TwoStage()
    for kind, family in ((RetinaNet, RetinaNetFamily), (FCOS, FCOSFamily), (SSD, SSDFamily)):
        if isinstance(model, kind):
            return family()
    hint = "; call train_for_map on the model inside, then wrap it" if hasattr(model, "module") else ""
    raise ConfigError(
        f"Expected a torchvision detection model ({', '.join(SUPPORTED)}, or a subclass) but got "
        f"{type(model).__name__}{hint}. For other detectors, see MAPLoss."
    )
