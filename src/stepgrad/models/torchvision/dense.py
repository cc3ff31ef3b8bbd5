"""RetinaNet, FCOS and SSD: mAP over the (anchor, class) pairs that inference would pass on to NMS.

A dense head scores some hundred thousand anchors for every class; inference passes on the best few thousand pairs. So does
training here, by the same rule, with two differences. There is no score threshold unless one is asked for: early in
training nothing would pass it. And the pairs of positive anchors with their objects' classes always take part
(`keep_positives`), as a missed object would otherwise never hear that it is missed. What is left out are pairs that the
model itself ranks below everything it would report.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, logsigmoid
from torchvision.ops.boxes import clip_boxes_to_image

from stepgrad.losses.ragged import ScoredPairs
from stepgrad.metric.batch import Target
from stepgrad.models.auto_weight import StockLoss
from stepgrad.models.torchvision.detector import Detector, DetectorSwitch, Specialised, wide

KEY = "classification"  # of the loss dict
Outputs = dict[str, Tensor]


@dataclass
class _AnchorPass:
    """Facts that compute_loss does not get: sizes of the images and of the pyramid's levels, and the matched anchors."""

    image_sizes: list[tuple[int, int]] = field(default_factory=list)
    level_cells: list[int] = field(default_factory=list)
    matched: Sequence[Tensor] = ()  # per image, (A,) number of each anchor's object; negative: none

    def keep_sizes(self, module: nn.Module, inputs: tuple[Any, Any], anchors: Any) -> None:
        images, features = inputs
        self.image_sizes = list(images.image_sizes)
        self.level_cells = [f.shape[-2] * f.shape[-1] for f in features]

    def level_sizes(self, anchors: int) -> list[int]:
        """Anchors of each level, given those of all."""
        each = anchors // max(1, sum(self.level_cells))
        return [cells * each for cells in self.level_cells]


class DenseDetector(Detector):
    """A dense detector whose classification head trains for mAP."""

    _pass: _AnchorPass
    anchor_generator: Any
    head: Any
    box_coder: Any
    topk_candidates: int

    def forward(self, images: Any, targets: Any = None) -> Any:
        self.check_call(images, targets)
        if not self.training or not self.map_loss_switch.needed:
            return super().forward(images, targets)
        self._pass = _AnchorPass()
        hook = self.anchor_generator.register_forward_hook(self._pass.keep_sizes)
        try:
            return super().forward(images, targets)
        finally:
            hook.remove()
            del self._pass

    def compute_loss(self, targets: Any, head_outputs: Outputs, anchors: Any, *more: Any) -> dict[str, Tensor]:
        """The stock losses, with mAP among them."""
        if not hasattr(self, "_pass"):
            return super().compute_loss(targets, head_outputs, anchors, *more)  # type: ignore[misc]
        losses = self._stock_losses(targets, head_outputs, anchors, *more)

        def find_candidates() -> tuple[ScoredPairs, StockLoss]:
            stock = StockLoss(losses[KEY], [head_outputs["cls_logits"]])
            return self._candidates(targets, head_outputs, anchors), stock

        return self.map_loss_switch.put_into(losses, KEY, targets, find_candidates)

    def _stock_losses(self, targets: Any, head_outputs: Outputs, anchors: Any, *more: Any) -> dict[str, Tensor]:
        self.head._pass = self._pass  # the head is told who was matched, and passes it on
        try:
            return super().compute_loss(targets, head_outputs, anchors, *more)  # type: ignore[misc]
        finally:
            del self.head._pass

    def _candidates(self, targets: Sequence[Target], outputs: Outputs, anchors: Sequence[Tensor]) -> ScoredPairs:
        """The chosen pairs of every image, those of classes present."""
        ranking = self.ranking({name: output.detach() for name, output in outputs.items()})
        switch, K = self.map_loss_switch, ranking.shape[-1]
        switch.check_columns(K)
        classes = switch.present(targets)
        present = torch.zeros(K, dtype=torch.bool, device=ranking.device)
        present[classes] = True
        chosen, boxes = [], []
        for i, target in enumerate(targets):
            pairs = self._choose(ranking[i], classes, self._pass.matched[i], target["labels"] - switch.first_label)
            pairs = pairs[present[pairs % K]]
            decoded = self._decode(outputs["bbox_regression"][i].detach(), anchors[i], pairs // K, i)
            has_area = (decoded[:, 2:] > decoded[:, :2]).all(dim=1)
            chosen.append(pairs[has_area])
            boxes.append(decoded[has_area])
        image = torch.cat([torch.full_like(pairs, i) for i, pairs in enumerate(chosen)])
        pairs = torch.cat(chosen)
        return ScoredPairs(self.scores_at(outputs, image, pairs // K, pairs % K), torch.cat(boxes), image, pairs % K)

    def _choose(self, ranking: Tensor, classes: Tensor, matched: Tensor, labels: Tensor) -> Tensor:
        """Pairs (anchor * K + class) of one image, in ascending order."""
        selection = self.map_loss_switch.selection
        floor = self.ranking_at(selection.score_thresh) if selection.score_thresh > 0.0 else -math.inf
        pairs = self.best_pairs(ranking, classes, selection.topk or self.topk_candidates, floor)
        if selection.keep_positives:
            pairs = torch.cat([pairs, positive_pairs(matched, labels, ranking.shape[1])])
        return pairs.unique()

    @torch.no_grad()
    def _decode(self, regression: Tensor, anchors: Tensor, chosen: Tensor, image: int) -> Tensor:
        """(n, 4) boxes of the chosen anchors, as inference decodes and clips them."""
        decoded = self.decode(wide(regression[chosen]), anchors[chosen])
        return clip_boxes_to_image(decoded, self._pass.image_sizes[image])

    # What a family has to say. A ranking orders pairs as the model's scores do; scores_at gives the log of the score.

    def ranking(self, outputs: Outputs) -> Tensor:
        """(images, A, K), in the order of the model's scores."""
        raise NotImplementedError

    def ranking_at(self, score: float) -> float:
        """The ranking's value at a score."""
        return math.log(score)

    def scores_at(self, outputs: Outputs, image: Tensor, anchor: Tensor, column: Tensor) -> Tensor:
        """(M,) log of the model's score, with its graph."""
        raise NotImplementedError

    def best_pairs(self, ranking: Tensor, classes: Tensor, topk: int, floor: float) -> Tensor:
        """The pairs that inference would pass on to NMS."""
        return best_pairs_of_levels(ranking, self._pass.level_sizes(len(ranking)), topk, floor)

    def decode(self, regression: Tensor, anchors: Tensor) -> Tensor:
        """(n, 4) boxes from (n, 4) codes."""
        boxes: Tensor = self.box_coder.decode_single(regression, anchors)
        return boxes


class RetinaNetDetector(DenseDetector):
    """Score: sigmoid of the logit."""

    def ranking(self, outputs: Outputs) -> Tensor:
        return outputs["cls_logits"]

    def ranking_at(self, score: float) -> float:
        return math.log(score) - math.log1p(-score)

    def scores_at(self, outputs: Outputs, image: Tensor, anchor: Tensor, column: Tensor) -> Tensor:
        return logsigmoid(wide(outputs["cls_logits"][image, anchor, column]))


class FCOSDetector(DenseDetector):
    """Score: geometric mean of the class's and the centre-ness's sigmoid."""

    def ranking(self, outputs: Outputs) -> Tensor:
        return 0.5 * (logsigmoid(wide(outputs["cls_logits"])) + logsigmoid(wide(outputs["bbox_ctrness"])))

    def scores_at(self, outputs: Outputs, image: Tensor, anchor: Tensor, column: Tensor) -> Tensor:
        of_class = logsigmoid(wide(outputs["cls_logits"][image, anchor, column]))
        return 0.5 * (of_class + logsigmoid(wide(outputs["bbox_ctrness"][image, anchor, 0])))

    def decode(self, regression: Tensor, anchors: Tensor) -> Tensor:
        boxes: Tensor = self.box_coder.decode(regression, anchors)
        return boxes


class SSDDetector(DenseDetector):
    """Score: softmax, background in column 0."""

    def _stock_losses(self, targets: Any, head_outputs: Outputs, anchors: Any, *more: Any) -> dict[str, Tensor]:
        (self._pass.matched,) = more
        if self.map_loss_switch.skips_stock_loss:
            targets, head_outputs = without_classification(targets, head_outputs, label=1)
        return super(DenseDetector, self).compute_loss(targets, head_outputs, anchors, *more)  # type: ignore[misc]

    def ranking(self, outputs: Outputs) -> Tensor:
        return log_softmax(wide(outputs["cls_logits"]), dim=-1)[..., 1:]

    def scores_at(self, outputs: Outputs, image: Tensor, anchor: Tensor, column: Tensor) -> Tensor:
        of_anchor = log_softmax(wide(outputs["cls_logits"][image, anchor]), dim=-1)
        return of_anchor.gather(1, column[:, None] + 1)[:, 0]

    def best_pairs(self, ranking: Tensor, classes: Tensor, topk: int, floor: float) -> Tensor:
        return best_pairs_of_classes(ranking, classes, topk, floor)


class AnchorHead(Specialised):
    """The head of RetinaNet or FCOS: passes on the matched anchors, and leaves out the loss that mAP replaces."""

    map_switch: DetectorSwitch
    _pass: _AnchorPass

    def compute_loss(
        self, targets: Any, head_outputs: Outputs, anchors: Any, matched_idxs: list[Tensor]
    ) -> dict[str, Tensor]:
        """The stock losses; where mAP alone is wanted, the classification entry is a placeholder."""
        if hasattr(self, "_pass"):
            self._pass.matched = matched_idxs
            if self.map_switch.skips_stock_loss:
                targets, head_outputs = without_classification(targets, head_outputs, label=0)
        losses: dict[str, Tensor] = super().compute_loss(targets, head_outputs, anchors, matched_idxs)  # type: ignore[misc]
        return losses


def without_classification(targets: Sequence[Target], outputs: Outputs, label: int) -> tuple[list[Target], Outputs]:
    """The same boxes, all of one class, with empty logits, for which the stock classification loss costs nothing.

    The other losses ask whether an anchor has an object, never of which class, so they are the same to the last bit.
    """
    logits = outputs["cls_logits"]
    one_class: list[Target] = [{**target, "labels": torch.full_like(target["labels"], label)} for target in targets]
    return one_class, {**outputs, "cls_logits": logits.new_zeros(*logits.shape[:-1], label + 1)}


def best_pairs_of_levels(ranking: Tensor, level_sizes: Sequence[int], topk: int, floor: float) -> Tensor:
    """RetinaNet and FCOS: on every level of the pyramid, the `topk` best pairs above the floor, all classes together.

    Args:
        ranking: (A, K) anything that orders pairs as their scores do.
        level_sizes: anchors of each level; they sum to A.
        topk: pairs of a level.
        floor: pairs at or below it stay out; -inf: none.

    Returns:
        pairs: anchor * K + class.

    >>> best_pairs_of_levels(torch.tensor([[0.1, 0.9], [0.5, 0.2], [0.3, 0.4]]), [2, 1], topk=1, floor=0.0).tolist()
    [1, 5]
    """
    K = ranking.shape[1]
    pairs, start = [], 0
    for size in level_sizes:
        level = ranking[start : start + size].flatten()
        values, at = level.topk(min(topk, len(level)), sorted=False)
        pairs.append(at[values > floor] + start * K)
        start += size
    return torch.cat(pairs) if pairs else torch.zeros(0, dtype=torch.long, device=ranking.device)


def best_pairs_of_classes(ranking: Tensor, classes: Tensor, topk: int, floor: float) -> Tensor:
    """SSD: for each of `classes`, the `topk` best anchors above the floor, all levels together.

    >>> best_pairs_of_classes(torch.tensor([[0.1, 0.9], [0.5, 0.2]]), torch.tensor([1, 0]), topk=1, floor=0.0).tolist()
    [1, 2]
    """
    values, anchors = ranking[:, classes].topk(min(topk, len(ranking)), dim=0, sorted=False)
    return (anchors * ranking.shape[1] + classes)[values > floor]


def positive_pairs(matched: Tensor, labels: Tensor, K: int) -> Tensor:
    """Anchors the model's own matching gives an object (`matched` >= 0), with that object's class.

    >>> positive_pairs(torch.tensor([-1, 0, -2]), torch.tensor([3]), K=4).tolist()
    [7]
    """
    anchors = torch.where(matched >= 0)[0]
    return anchors * K + labels[matched[anchors]]
