"""torchvision's detectors at their smallest: random weights, images of 64 pixels, three classes, no batch normalisation."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection import FCOS, FasterRCNN, KeypointRCNN, MaskRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.keypoint_rcnn import KeypointRCNNHeads, KeypointRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.ssd import SSD
from torchvision.ops import MultiScaleRoIAlign

SIZE, CLASSES, CHANNELS, HIDDEN, KEYPOINTS = 64, 3, 32, 64, 2
SAMPLED = 48  # windows per image that two-stage models sample
FAMILIES = ["faster_rcnn", "mask_rcnn", "keypoint_rcnn", "retinanet", "fcos", "ssd"]
TWO_STAGE = FAMILIES[:3]
DENSE = FAMILIES[3:]
WITHOUT_BACKGROUND = ["retinanet", "fcos"]  # labels are columns, column 0 is an ordinary class


class TwoLevels(nn.Module):
    """Features at strides 8 and 16."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, CHANNELS, 7, 8, 3), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 3, 2, 1), nn.ReLU())
        self.out_channels: Any = CHANNELS

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        fine = self.first(x)
        return OrderedDict([("0", fine), ("1", self.second(fine))])


def tiny_model(family: str, seed: int = 0, **options: Any) -> nn.Module:
    """A stock model in training mode."""
    torch.manual_seed(seed)
    backbone = TwoLevels()
    size = {"min_size": SIZE, "max_size": SIZE}
    anchors = AnchorGenerator(((12, 20), (28, 44)), ((0.5, 1.0, 2.0),) * 2)
    if family in TWO_STAGE:
        windows = {"rpn_pre_nms_top_n_train": 300, "rpn_post_nms_top_n_train": 100, "box_batch_size_per_image": SAMPLED}
        kind = {"faster_rcnn": FasterRCNN, "mask_rcnn": MaskRCNN, "keypoint_rcnn": KeypointRCNN}[family]
        parts = {**size, **windows, **box_parts(), **extra_parts(family), **options}
        return kind(backbone, rpn_anchor_generator=anchors, **parts)
    if family == "retinanet":
        return with_spread_scores(RetinaNet(backbone, CLASSES, anchor_generator=anchors, **{**size, **options}))
    if family == "fcos":
        points = AnchorGenerator(((8,), (16,)), ((1.0,),) * 2)
        model = FCOS(backbone, CLASSES, anchor_generator=points, **{**size, **options})
        nn.init.constant_(model.head.regression_head.bbox_reg.bias, 1.2)  # boxes as large as the objects, not points
        return with_spread_scores(model)
    backbone.out_channels = [CHANNELS, CHANNELS]
    return SSD(backbone, DefaultBoxGenerator([[2], [2]]), (SIZE, SIZE), CLASSES + 1, **options)


def permissive(family: str, **options: Any) -> nn.Module:
    """A model that reports whatever it sees, so that there are detections; of two-stage models a few are enough."""
    if family in TWO_STAGE:
        return tiny_model(family, box_score_thresh=0.0, box_detections_per_img=5, **options)
    return tiny_model(family, score_thresh=0.0, **options)


def with_spread_scores(model: nn.Module) -> nn.Module:
    """As after some training: not all anchors at the prior."""
    nn.init.normal_(model.head.classification_head.cls_logits.weight, std=0.2)
    nn.init.constant_(model.head.classification_head.cls_logits.bias, -1.0)
    for layer in model.head.classification_head.conv.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
    return model


def box_parts() -> dict[str, nn.Module]:
    return {
        "box_roi_pool": MultiScaleRoIAlign(["0", "1"], 3, 2),
        "box_head": TwoMLPHead(CHANNELS * 9, HIDDEN),
        "box_predictor": FastRCNNPredictor(HIDDEN, CLASSES + 1),
    }


def extra_parts(family: str) -> dict[str, nn.Module]:
    pool = MultiScaleRoIAlign(["0", "1"], 6, 2)
    if family == "mask_rcnn":
        heads = MaskRCNNHeads(CHANNELS, (16,), 1), MaskRCNNPredictor(16, 16, CLASSES + 1)
        return {"mask_roi_pool": pool, "mask_head": heads[0], "mask_predictor": heads[1]}
    if family == "keypoint_rcnn":
        heads = KeypointRCNNHeads(CHANNELS, (16,)), KeypointRCNNPredictor(16, KEYPOINTS)
        return {"keypoint_roi_pool": pool, "keypoint_head": heads[0], "keypoint_predictor": heads[1]}
    return {}


def tiny_batch(family: str, images: int = 2, seed: int = 1) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Noise with four objects per image, of all classes, in brighter rectangles."""
    g = torch.Generator().manual_seed(seed)
    first = 0 if family in WITHOUT_BACKGROUND else 1
    pictures, targets = [], []
    for _ in range(images):
        corner = torch.randint(0, SIZE - 28, (4, 2), generator=g).float()
        boxes = torch.cat([corner, corner + torch.randint(14, 28, (4, 2), generator=g)], dim=1)
        labels = torch.tensor([0, 1, 2, 1])
        picture = 0.3 * torch.rand(3, SIZE, SIZE, generator=g)
        for (x1, y1, x2, y2), label in zip(boxes.int().tolist(), labels.tolist(), strict=True):
            picture[label, y1:y2, x1:x2] += 0.6
        target = {"boxes": boxes, "labels": labels + first}
        if family == "mask_rcnn":
            target["masks"] = torch.ones(4, SIZE, SIZE, dtype=torch.uint8)
        if family == "keypoint_rcnn":
            centre = (boxes[:, :2] + boxes[:, 2:]) / 2
            target["keypoints"] = (
                torch.cat([centre, torch.ones(4, 1)], dim=1)[:, None].expand(-1, KEYPOINTS, -1).contiguous()
            )
        pictures.append(picture)
        targets.append(target)
    return pictures, targets


def classification_key(family: str) -> str:
    return "loss_classifier" if family in TWO_STAGE else "classification"


def classifier_weight(model: nn.Module) -> Tensor:
    """A parameter that only the classification loss trains."""
    if hasattr(model, "roi_heads"):
        return model.roi_heads.box_predictor.cls_score.weight
    return [p for name, p in model.head.classification_head.named_parameters() if "weight" in name][-1]
