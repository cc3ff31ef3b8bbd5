"""torchvision's detectors as a new last class layer sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection.roi_heads import keypointrcnn_inference
from torchvision.ops.boxes import clip_boxes_to_image

from stepgrad.errors import ConfigError
from stepgrad.models.new_head.convolutions import ClassConvolutions
from stepgrad.models.new_head.frozen import Found, FrozenDetector, Pick, inputs_of, linear_of, replace_layer, rows
from stepgrad.models.switch import wide
from stepgrad.models.torchvision import restore
from stepgrad.models.torchvision.detector import MASK_LEVEL
from stepgrad.models.torchvision.families import TwoStage, family_of


class TorchvisionDetector(FrozenDetector):
    """What dense and two-stage detectors share."""

    def __init__(self, model: Any) -> None:
        self.family: Any = family_of(model)
        self.model = model
        self.first_label = self.family.first_label
        self.background = self.family.background
        self.nms_threshold = self.family.nms_threshold(model)

    def detect(self, image: Tensor) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.model([self.prepared(image)])[0]
        kept: dict[str, Tensor] = {
            name: found[name].cpu() for name in ("boxes", "scores", "labels", "keypoints") if name in found
        }
        if "masks" in found:
            kept["masks"] = found["masks"][:, 0].cpu() > MASK_LEVEL
        return {**kept, "labels": kept["labels"] - self.first_label}

    def _in_pixels(self, boxes: Tensor, inside: tuple[int, int], image: Tensor) -> Tensor:
        """Boxes of the resized image, clipped to it, in pixels of the image, as the model itself gives them back."""
        clipped = clip_boxes_to_image(boxes, inside)
        size = (int(image.shape[-2]), int(image.shape[-1]))
        found: Tensor = self.model.transform.postprocess([{"boxes": clipped}], [inside], [size])[0]["boxes"]
        return found.cpu()


class FrozenDense(TorchvisionDetector):
    """SSD, SSDlite, RetinaNet and FCOS: a class convolution for all levels, or one for each."""

    def __init__(self, model: Any, centre_only: bool) -> None:
        super().__init__(model)
        self.centre_only = centre_only
        self.convolutions = self._convolutions()
        self.slots, self.width = self.convolutions.slots, self.convolutions.width
        self.quality = "mean" if hasattr(model.head.regression_head, "bbox_ctrness") else None

    def _convolutions(self) -> ClassConvolutions:
        columns = getattr(self.model.head.classification_head, self.family.columns_name)
        return ClassConvolutions(self.family.class_layers(self.model), columns, self.centre_only)

    def windows(self, image: Tensor, pick: Pick) -> Found:
        model, prepared = self.model, self.model.transform([self.prepared(image)])[0]
        maps = model.backbone(prepared.tensors)
        maps = [maps] if isinstance(maps, Tensor) else list(maps.values())
        with inputs_of(self.convolutions.layers) as seen:
            outputs = model.head(maps)
        ranking = self.family.ranking(outputs)[0]
        likely = ranking.logsumexp(dim=1) if self.background else ranking.amax(dim=1)
        chosen = pick(likely)
        slot, features = self.convolutions.read([m[0] for m in seen], chosen)
        quality = outputs["bbox_ctrness"][0, chosen, 0] if self.quality else None
        anchors = model.anchor_generator(prepared, maps)[0][chosen]
        boxes = self.family.decode(model, wide(outputs["bbox_regression"][0, chosen]), anchors)
        pixels = self._in_pixels(boxes, prepared.image_sizes[0], image)
        return Found(chosen.cpu(), rows(slot, quality, features), pixels)

    def install(self, weight: Tensor, bias: Tensor, class_names: Sequence[str]) -> None:
        restore(self.model)  # a loss for mAP would be one of the old classes
        for old, new in zip(self.convolutions.layers, self.convolutions.with_weights(weight, bias), strict=True):
            replace_layer(self.model, old, new)
        setattr(self.model.head.classification_head, self.family.columns_name, weight.shape[1])
        self.convolutions = self._convolutions()


class FrozenTwoStage(TorchvisionDetector):
    """Faster, Mask and Keypoint R-CNN: the class scores of the box predictor are a linear layer."""

    slots = 1

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        heads = model.roi_heads
        self.shapes = "masks" if heads.has_mask() else "keypoints" if heads.has_keypoint() else None
        scores = getattr(heads.box_predictor, "cls_score", None)
        if not isinstance(scores, nn.Linear):
            raise ConfigError(
                "Expected a box predictor with a linear layer cls_score, as torchvision's FastRCNNPredictor, but got "
                f"{type(heads.box_predictor).__name__}."
            )
        self.width = scores.in_features

    def windows(self, image: Tensor, pick: Pick) -> Found:
        model, prepared = self.model, self.model.transform([self.prepared(image)])[0]
        heads, inside = model.roi_heads, prepared.image_sizes
        maps = model.backbone(prepared.tensors)
        maps = {"0": maps} if isinstance(maps, Tensor) else maps
        proposals, _ = model.rpn(prepared, maps)
        features = heads.box_head(heads.box_roi_pool(maps, proposals, inside)).flatten(start_dim=1)
        logits, moves = heads.box_predictor(features)
        decoded = heads.box_coder.decode(best_class(logits, wide(moves)), proposals)[:, 0]
        boxes = self._in_pixels(decoded, inside[0], image).to(decoded.device)
        shown = torch.where(self.family.is_shown(clip_boxes_to_image(decoded, inside[0])))[0]
        picked = pick(wide(logits)[shown].log_softmax(dim=1)[:, 1:].logsumexp(dim=1))
        chosen = shown[picked]
        shaped = clip_boxes_to_image(decoded[chosen], inside[0])

        def shapes(some: Tensor) -> Tensor:
            return self._shapes(maps, shaped[some.to(shaped.device)], inside, image)

        kept = rows(torch.zeros_like(chosen), None, features[chosen])
        return Found(picked.cpu(), kept, boxes[chosen].cpu(), shapes if self.shapes else None)

    def _shapes(self, maps: dict[str, Tensor], boxes: Tensor, inside: Any, image: Tensor) -> Tensor:
        """Masks (n, H, W) or keypoints (n, k, 3) of boxes, in pixels of the image, as the model itself gives them back."""
        heads, found = self.model.roi_heads, {"boxes": boxes}
        if self.shapes == "masks":
            logits = heads.mask_predictor(heads.mask_head(heads.mask_roi_pool(maps, [boxes], inside)))
            one = logits if isinstance(heads.mask_predictor, SurestMask) else surest_mask(logits)
            found["masks"] = one[:, -1:].sigmoid()
        else:
            points = heads.keypoint_predictor(heads.keypoint_head(heads.keypoint_roi_pool(maps, [boxes], inside)))
            found["keypoints"] = keypointrcnn_inference(points, [boxes])[0][0]
        size = (int(image.shape[-2]), int(image.shape[-1]))
        given = self.model.transform.postprocess([found], inside, [size])[0][self.shapes].cpu()
        return given[:, 0] > MASK_LEVEL if self.shapes == "masks" else given

    def install(self, weight: Tensor, bias: Tensor, class_names: Sequence[str]) -> None:
        restore(self.model)
        old = self.model.roi_heads.box_predictor
        frozen = old.frozen if isinstance(old, NewClassScores) else old
        replace_layer(self.model, old, NewClassScores(frozen, linear_of(weight, bias)))
        if self.shapes == "masks":
            masks = self.model.roi_heads.mask_predictor
            frozen = masks.frozen if isinstance(masks, SurestMask) else masks
            replace_layer(self.model, masks, SurestMask(frozen, weight.shape[1]))


class NewClassScores(nn.Module):
    """A box predictor with scores of new classes; the box of each is that of the class which the old one finds likeliest.

    Faster R-CNN moves a proposal in a different way for each of its classes, and new classes have no such way yet.
    """

    def __init__(self, frozen: nn.Module, cls_score: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.cls_score = cls_score

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.flatten(start_dim=1)
        return self.cls_score(x), best_class(*self.frozen(x)).repeat(1, self.cls_score.out_features)


class SurestMask(nn.Module):
    """A mask predictor for new classes: of the masks of the old classes, which it has one each for, the surest for all."""

    def __init__(self, frozen: nn.Module, columns: int) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.columns = columns

    def forward(self, x: Tensor) -> Tensor:
        return surest_mask(self.frozen(x)).repeat(1, self.columns, 1, 1)


def surest_mask(logits: Tensor) -> Tensor:
    """(n, 1, M, M) of (n, K + 1, M, M): the mask whose pixels are, on average, furthest from undecided; background left out."""
    best = logits[:, 1:].abs().mean(dim=(2, 3)).argmax(dim=1) + 1
    return logits[torch.arange(len(best), device=best.device), best][:, None]


def best_class(logits: Tensor, moves: Tensor) -> Tensor:
    """(N, 4) of moves (N, 4 (K + 1)): those of the likeliest class, background (column 0) left out."""
    best = logits[:, 1:].argmax(dim=1) + 1
    # not by row numbers: an exporter would take their count for a constant
    return moves.unflatten(1, (-1, 4)).gather(1, best[:, None, None].expand(-1, 1, 4))[:, 0]


def torchvision_detector(model: nn.Module, centre_only: bool) -> TorchvisionDetector:
    """By its family; ConfigError for a model that is no detector of torchvision."""
    if isinstance(family_of(model), TwoStage):
        return FrozenTwoStage(model)
    return FrozenDense(model, centre_only)
