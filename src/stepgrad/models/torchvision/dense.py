"""RetinaNet, FCOS and SSD: mAP over the (anchor, class) pairs that inference would pass on to NMS.

A dense head scores some hundred thousand anchors for every class; inference passes on the best few thousand pairs. So does
training here, by the same rule, with two differences. There is no score threshold unless one is asked for: early in
training nothing would pass it. And the pairs of positive anchors with their objects' classes always take part
(`keep_positives`): otherwise nothing would raise the scores of a missed object. What is left out are pairs that the
model itself ranks below everything it would report.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.ops.boxes import clip_boxes_to_image

from stepgrad.losses.ragged import ScoredPairs
from stepgrad.metric.batch import Target
from stepgrad.models.auto_weight import StockLoss
from stepgrad.models.left_out import hidden_pairs, hide
from stepgrad.models.specialised import Specialised
from stepgrad.models.switch import wide
from stepgrad.models.torchvision.detector import Detector, DetectorSwitch
from stepgrad.models.torchvision.families import Outputs

KEY = "classification"  # of the loss dict


@dataclass
class _AnchorPass:
    """Facts that compute_loss does not get: sizes of the images and of the pyramid's levels, and the matched anchors."""

    image_sizes: list[tuple[int, int]] = field(default_factory=list)
    level_cells: list[int] = field(default_factory=list)
    matched: Sequence[Tensor] = ()  # per image, (A,) number of each anchor's object; negative: none
    hidden: Tensor | None = None  # (images, A, columns) pairs in ignored regions of the class; None: there are none

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
        with self.crowds_aside(targets):
            if not self.training or not (self.map_loss_switch.needed or self.has_crowds(targets)):
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
        if self.map_loss_switch.aside is not None:
            self._pass.hidden = self._hidden(head_outputs, anchors)
        losses = self._stock_losses(targets, head_outputs, anchors, *more)

        def find_candidates() -> tuple[ScoredPairs, StockLoss]:
            stock = StockLoss(losses[KEY], [head_outputs["cls_logits"]])
            return self._candidates(targets, head_outputs, anchors), stock

        return self.map_loss_switch.put_into(losses, KEY, targets, find_candidates)

    def _stock_losses(self, targets: Any, head_outputs: Outputs, anchors: Any, *more: Any) -> dict[str, Tensor]:
        if not isinstance(self.head, AnchorHead):  # SSD: the matched anchors come with the call
            (self._pass.matched,) = more
            if self.map_loss_switch.skips_stock_loss:
                targets, head_outputs = without_classification(targets, head_outputs, label=1)
            else:
                head_outputs = without_hidden(head_outputs, self._pass, targets)
            return super().compute_loss(targets, head_outputs, anchors, *more)  # type: ignore[misc]
        self.head._pass = self._pass  # the head is told which anchors were matched, and passes it on
        try:
            return super().compute_loss(targets, head_outputs, anchors, *more)  # type: ignore[misc]
        finally:
            del self.head._pass

    def _hidden(self, outputs: Outputs, anchors: Sequence[Tensor]) -> Tensor:
        """(images, A, columns) pairs whose window lies in an ignored region of the class, by half or more."""
        aside, columns = self.map_loss_switch.aside, outputs["cls_logits"].shape[-1]
        assert aside is not None
        found = []
        for i, crowds in enumerate(aside.crowds):
            every = torch.arange(len(anchors[i]), device=anchors[i].device)
            boxes = self._decode(outputs["bbox_regression"][i].detach(), anchors[i], every, i)
            found.append(hidden_pairs(boxes, crowds["boxes"], crowds["labels"], columns))
        return torch.stack(found)

    def _candidates(self, targets: Sequence[Target], outputs: Outputs, anchors: Sequence[Tensor]) -> ScoredPairs:
        """The chosen pairs of every image, those of classes present."""
        switch = self.map_loss_switch
        ranking = switch.family.ranking({name: output.detach() for name, output in outputs.items()})
        K = ranking.shape[-1]
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
        scores = switch.family.scores_at(outputs, image, pairs // K, pairs % K)
        return ScoredPairs(scores, torch.cat(boxes), image, pairs % K)

    def _choose(self, ranking: Tensor, classes: Tensor, matched: Tensor, labels: Tensor) -> Tensor:
        """Pairs (anchor * K + class) of one image, in ascending order."""
        selection, family = self.map_loss_switch.selection, self.map_loss_switch.family
        floor = family.ranking_at(selection.score_thresh) if selection.score_thresh > 0.0 else -math.inf
        topk = selection.topk or self.topk_candidates
        pairs = family.best_pairs(ranking, classes, self._pass.level_sizes(len(ranking)), topk, floor)
        if selection.keep_positives:
            pairs = torch.cat([pairs, positive_pairs(matched, labels, ranking.shape[1])])
        return pairs.unique()

    @torch.no_grad()
    def _decode(self, regression: Tensor, anchors: Tensor, chosen: Tensor, image: int) -> Tensor:
        """(n, 4) boxes of the chosen anchors, as inference decodes and clips them."""
        decoded = self.map_loss_switch.family.decode(self, wide(regression[chosen]), anchors[chosen])
        return clip_boxes_to_image(decoded, self._pass.image_sizes[image])


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
            else:
                head_outputs = without_hidden(head_outputs, self._pass, targets)
        losses: dict[str, Tensor] = super().compute_loss(targets, head_outputs, anchors, matched_idxs)  # type: ignore[misc]
        return losses


def without_classification(targets: Sequence[Target], outputs: Outputs, label: int) -> tuple[list[Target], Outputs]:
    """The same boxes, all of one class, with empty logits, for which the stock classification loss costs nothing.

    The other losses ask whether an anchor has an object, never of which class, so they are the same to the last bit.
    """
    logits = outputs["cls_logits"]
    one_class: list[Target] = [{**target, "labels": torch.full_like(target["labels"], label)} for target in targets]
    return one_class, {**outputs, "cls_logits": logits.new_zeros(*logits.shape[:-1], label + 1)}


def without_hidden(outputs: Outputs, seen: _AnchorPass, targets: Sequence[Target]) -> Outputs:
    """The outputs without the pairs in ignored regions; a matched anchor still learns its object's class."""
    if seen.hidden is None:
        return outputs
    hidden = seen.hidden.clone()
    for of_image, matched, target in zip(hidden, seen.matched, targets, strict=True):
        of_image.view(-1)[positive_pairs(matched, target["labels"], of_image.shape[1])] = False
    return {**outputs, "cls_logits": hide(outputs["cls_logits"], hidden)}


def positive_pairs(matched: Tensor, labels: Tensor, K: int) -> Tensor:
    """Anchors the model's own matching gives an object (`matched` >= 0), with that object's class.

    >>> positive_pairs(torch.tensor([-1, 0, -2]), torch.tensor([3]), K=4).tolist()
    [7]
    """
    anchors = torch.where(matched >= 0)[0]
    return anchors * K + labels[matched[anchors]]
