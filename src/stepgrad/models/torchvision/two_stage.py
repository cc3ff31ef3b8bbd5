"""Faster, Mask and Keypoint R-CNN: mAP over the proposals of the RPN.

The stock step samples 512 windows per image, ground-truth boxes among them, and runs its box head on these. Ground truth is
no window at test time: it still trains the box regression (and masks), and stays out of the list that mAP ranks.

* "mix": the list is what the stock step has scored anyway: its sampled proposals.
* "replace": the sampled negatives are not needed any more, as box regression, masks and keypoints train on positives. Their
  places go to the proposals that the RPN ranks highest, as at test time: as many windows, so the same cost. A box head
  with batch normalisation keeps its negatives, because its statistics, and with them all losses, depend on them.
* `windows_per_image=n` also scores those of the n best proposals that are not among these: an extra pass of the box head.

Where masks or keypoints are what counts, `shaped.py` compares those that the model predicts for the candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision.ops.boxes import clip_boxes_to_image

from stepgrad.losses.ragged import ScoredPairs
from stepgrad.metric.batch import Target
from stepgrad.models.auto_weight import StockLoss
from stepgrad.models.left_out import LEAST_SHARE, covered_shares, hidden_pairs, hide
from stepgrad.models.specialised import Specialised
from stepgrad.models.switch import wide
from stepgrad.models.torchvision.detector import Detector, DetectorSwitch
from stepgrad.models.torchvision.shaped import PAIRS_PER_IMAGE, Shaper, with_shares
from stepgrad.overlaps import Boxes, Keypoints


class TwoStageDetector(Detector):
    """A two-stage detector whose box head trains for mAP."""

    def forward(self, images: Any, targets: Any = None) -> Any:
        self.check_call(images, targets)
        if targets is not None and isinstance(self.map_loss_switch.overlap, Keypoints):
            targets = with_shares(images, targets)
        with self.crowds_aside(targets):
            return super().forward(images, targets)


class ProposalNetwork(Specialised):
    """The RPN, for which windows in ignored regions are no background."""

    map_switch: DetectorSwitch
    box_coder: Any
    _anchors: Sequence[Tensor]

    def assign_targets_to_anchors(self, anchors: list[Tensor], targets: list[Target]) -> Any:
        """The stock choice; anchors are remembered where there are regions."""
        if self.map_switch.aside is not None:
            self._anchors = anchors
        return super().assign_targets_to_anchors(anchors, targets)  # type: ignore[misc]

    def compute_loss(self, objectness: Tensor, moves: Tensor, labels: list[Tensor], regression: Any) -> Any:
        """The stock losses; half of a window or more in one region of any class, and it costs nothing to call it an object."""
        aside = self.map_switch.aside
        if aside is not None:
            boxes = self.box_coder.decode(moves.detach(), self.__dict__.pop("_anchors")).view(len(labels), -1, 4)
            covered = [
                covered_shares(b, c["boxes"].to(b)) >= LEAST_SHARE for b, c in zip(boxes, aside.crowds, strict=True)
            ]
            hidden = torch.cat([of_image.any(dim=1) for of_image in covered]) & (torch.cat(labels) == 0)
            objectness = hide(objectness, hidden.view_as(objectness))
        return super().compute_loss(objectness, moves, labels, regression)  # type: ignore[misc]


@dataclass
class _BoxHeadPass:
    """Windows, labels and outputs of one pass of the box head."""

    sampled: list[Tensor] = field(default_factory=list)  # per image, numbers of the windows; ground truth comes last
    windows: list[Tensor] = field(default_factory=list)  # per image, boxes of these windows
    labels: list[Tensor] = field(default_factory=list)  # per image, 0: background
    outputs: tuple[Tensor, Tensor] | None = None  # logits (R, K + 1), regression (R, 4 (K + 1))
    all_labels: list[Tensor] = field(default_factory=list)  # per image, of all windows there are; -1: of none
    hidden: Tensor | None = None  # (R, K + 1) pairs in ignored regions of the class; None: there are none
    replaced: bool = False  # the negatives' places have gone to other windows, whose labels are not `labels`

    @property
    def logits(self) -> Tensor:
        assert self.outputs is not None
        return self.outputs[0]

    @property
    def counts(self) -> list[int]:
        return [len(boxes) for boxes in self.windows]

    def classification_loss(self, stock: Tensor) -> Tensor:
        """The model's own: `stock`, unless other windows have taken the negatives' places, and have labels of their own."""
        if not self.replaced:
            return stock
        logits = wide(self.logits)
        return cross_entropy(
            logits if self.hidden is None else hide(logits, self.hidden), self.labels_now(), ignore_index=-1
        )

    def labels_now(self) -> Tensor:
        """(R,) of the windows that are there, -1: of none."""
        if not self.replaced:
            return torch.cat(self.labels)
        return torch.cat([every[s] for every, s in zip(self.all_labels, self.sampled, strict=True)])


class BoxHeads(Specialised):
    """RoIHeads with mAP among its losses."""

    map_switch: DetectorSwitch
    _pass: _BoxHeadPass
    box_roi_pool: Any
    box_head: Any
    box_predictor: Any
    box_coder: Any

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: list[Target] | None = None,
    ) -> tuple[Any, dict[str, Tensor]]:
        if not self.training or targets is None or not self.map_switch.watches:
            return super().forward(features, proposals, image_shapes, targets)
        self._pass = _BoxHeadPass()
        hook = self.box_predictor.register_forward_hook(partial(self._keep_outputs, image_shapes))
        try:
            detections, losses = super().forward(features, proposals, image_shapes, targets)
            done = self._pass
        finally:
            hook.remove()
            del self._pass

        def find_candidates() -> tuple[ScoredPairs, StockLoss]:
            stock = done.classification_loss(losses["loss_classifier"])
            passes = [done, *self._score_more(done, features, proposals, image_shapes)]
            parts = [self._candidates(one, [len(p) for p in proposals], image_shapes, targets) for one in passes]
            columns = zip(*((p.scores, p.boxes, p.images, p.classes) for p, _ in parts), strict=True)
            scores, boxes, images, classes = map(torch.cat, columns)
            pairs = ScoredPairs(scores, boxes, images, classes)
            switch = self.map_switch
            if not isinstance(switch.overlap, Boxes):
                positive = torch.cat([flags & switch.selection.keep_positives for _, flags in parts])
                most = switch.selection.topk or PAIRS_PER_IMAGE
                shaper = Shaper(self, features, image_shapes)
                pairs = shaper.with_overlaps(pairs, positive, switch.with_crowds(targets), switch.overlap, most)
            return pairs, StockLoss(stock, [one.logits for one in passes])

        return detections, self.map_switch.put_into(losses, "loss_classifier", targets, find_candidates)

    def _keep_outputs(
        self, shapes: Sequence[tuple[int, int]], module: nn.Module, inputs: Any, outputs: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Remember what the box predictor says; the stock loss sees it without windows in ignored regions."""
        self._pass.outputs = outputs
        aside = self.map_switch.aside
        if aside is None:
            return outputs
        logits, moves = outputs
        boxes = self._boxes(self._pass, shapes).split(self._pass.counts)
        K = logits.shape[1] - 1
        found = [hidden_pairs(b, c["boxes"], c["labels"] - 1, K) for b, c in zip(boxes, aside.crowds, strict=True)]
        hidden = torch.nn.functional.pad(torch.cat(found), (1, 0))
        rows = torch.arange(len(hidden), device=hidden.device)
        hidden[rows, self._pass.labels_now().clamp(min=0)] = False  # an object's window still learns its class
        self._pass.hidden = hidden
        return hide(logits, hidden), moves

    def subsample(self, labels: list[Tensor]) -> list[Tensor]:
        """The stock choice; remembered where a training pass wants to know it."""
        chosen: list[Tensor] = super().subsample(labels)  # type: ignore[misc]
        if hasattr(self, "_pass"):
            self._pass.sampled = chosen
            self._pass.all_labels = list(labels)  # torchvision then cuts the list itself down to the chosen
        return chosen

    def select_training_samples(self, proposals: list[Tensor], targets: Any) -> Any:
        """The stock choice, with the negatives' places given to the best proposals where only mAP ranks them."""
        boxes, matched, labels, regression = super().select_training_samples(proposals, targets)  # type: ignore[misc]
        if hasattr(self, "_pass"):
            if self.map_switch.replacing and not has_batch_norm(self.box_head):
                self._pass.sampled = [
                    best_in_place_of_negatives(s, y, len(p))
                    for s, y, p in zip(self._pass.sampled, labels, proposals, strict=True)
                ]
                everything = [
                    torch.cat([p, t["boxes"].to(p.dtype)]) for p, t in zip(proposals, targets, strict=True)
                ]  # as numbered
                boxes = [every[s] for every, s in zip(everything, self._pass.sampled, strict=True)]
                self._pass.replaced = True
            self._pass.windows, self._pass.labels = list(boxes), list(labels)
        return boxes, matched, labels, regression

    def _score_more(
        self,
        done: _BoxHeadPass,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        shapes: Sequence[tuple[int, int]],
    ) -> list[_BoxHeadPass]:
        """Another pass of the box head, over those of the best `windows_per_image` proposals that it has not seen, if any."""
        least = self.map_switch.selection.windows_per_image
        if least is None:
            return []
        missing = [_missing(s, min(least, len(p))) for s, p in zip(done.sampled, proposals, strict=True)]
        if not any(len(m) for m in missing):
            return []
        boxes = [p[m] for p, m in zip(proposals, missing, strict=True)]
        outputs = self.box_predictor(self.box_head(self.box_roi_pool(features, boxes, shapes)))
        return [_BoxHeadPass(missing, boxes, [torch.zeros_like(m) for m in missing], outputs)]

    @torch.no_grad()
    def _boxes(self, done: _BoxHeadPass, shapes: Sequence[tuple[int, int]]) -> Tensor:
        """(R, K, 4) boxes as inference decodes and clips them, without background."""
        assert done.outputs is not None
        parts = self.box_coder.decode(wide(done.outputs[1]), done.windows).split(done.counts)
        return torch.cat([clip_boxes_to_image(p, shape) for p, shape in zip(parts, shapes, strict=True)])[:, 1:]

    def _candidates(
        self, done: _BoxHeadPass, proposals: Sequence[int], shapes: Sequence[tuple[int, int]], targets: Sequence[Target]
    ) -> tuple[ScoredPairs, Tensor]:
        """Windows that are proposals, as candidates of the classes present; and which of them have an object's class."""
        switch, device = self.map_switch, done.logits.device
        switch.check_columns(done.logits.shape[1] - 1)
        classes = switch.present(targets)
        rows = torch.where(torch.cat([s < n for s, n in zip(done.sampled, proposals, strict=True)]))[0]
        scores = log_softmax(wide(done.logits[rows]), dim=-1)[:, 1:][:, classes]
        boxes = self._boxes(done, shapes)[rows][:, classes]
        positive = torch.cat(done.labels)[rows, None] == classes + 1
        taken = switch.family.is_shown(boxes)
        if switch.selection.score_thresh > 0.0:
            above = scores.detach().exp() > switch.selection.score_thresh
            taken &= above | positive if switch.selection.keep_positives else above
        image = torch.arange(len(shapes), device=device).repeat_interleave(torch.tensor(done.counts, device=device))
        images, columns = image[rows, None].expand_as(taken), classes.expand_as(taken)
        return ScoredPairs(scores[taken], boxes[taken], images[taken], columns[taken]), positive[taken]


def has_batch_norm(module: nn.Module) -> bool:
    """Whether the module has batch normalisation, with which a window's output depends on the other windows."""
    return any(isinstance(part, _BatchNorm) for part in module.modules())


def best_in_place_of_negatives(sampled: Tensor, labels: Tensor, proposals: int) -> Tensor:
    """Window numbers with those labelled 0 replaced by the first proposals not among the others (the RPN's order).

    >>> best_in_place_of_negatives(torch.tensor([1, 4, 7]), torch.tensor([2, 0, 0]), proposals=7).tolist()
    [1, 0, 2]
    """
    negative = labels == 0
    free = torch.ones(proposals, dtype=torch.bool, device=sampled.device)
    positives = sampled[~negative]
    free[positives[positives < proposals]] = False
    best = torch.where(free)[0][: int(negative.sum())]
    out = sampled.clone()
    out[torch.where(negative)[0][: len(best)]] = best
    return out


def _missing(sampled: Tensor, count: int) -> Tensor:
    """Of the first `count` numbers, those not in `sampled`."""
    is_sampled = torch.zeros(count, dtype=torch.bool, device=sampled.device)
    is_sampled[sampled[sampled < count]] = True
    return torch.where(~is_sampled)[0]
