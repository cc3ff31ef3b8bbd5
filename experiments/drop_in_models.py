"""Small versions of torchvision's detectors for `shapes`: one backbone, heads of the stock classes, from random weights."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torchvision.models.detection import FCOS, FasterRCNN, MaskRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.retinanet import RetinaNetHead
from torchvision.ops import MultiScaleRoIAlign

from stepgrad.models.demo.detector import CHANNELS, SIZE, SmallPyramid, small_ssd

FAMILIES = ["faster_rcnn", "retinanet", "fcos", "ssd"]
WITHOUT_BACKGROUND = ["retinanet", "fcos"]
"""Their labels are columns; the others count classes from 1."""


def build(family: str, classes: int, seed: int) -> nn.Module:
    """A stock model with random weights, in training mode."""
    torch.manual_seed(seed)
    made = {"faster_rcnn": _faster_rcnn, "mask_rcnn": _mask_rcnn}
    return {**made, "retinanet": _retinanet, "fcos": _fcos, "ssd": small_ssd}[family](classes)


def _anchors() -> AnchorGenerator:
    return AnchorGenerator(((16, 23), (32, 45), (64, 91)), ((0.6, 1.0, 1.6),) * 3)


def _faster_rcnn(classes: int) -> nn.Module:
    return FasterRCNN(SmallPyramid(), **_two_stages(classes))


def _mask_rcnn(classes: int) -> nn.Module:
    """Masks of 20 x 20 pixels, from two convolutions."""
    return MaskRCNN(
        SmallPyramid(),
        mask_roi_pool=_pool(10),
        mask_head=MaskRCNNHeads(CHANNELS, (CHANNELS, CHANNELS), 1),
        mask_predictor=MaskRCNNPredictor(CHANNELS, CHANNELS, classes + 1),
        **_two_stages(classes),
    )


def _two_stages(classes: int) -> dict[str, Any]:
    """What Faster and Mask R-CNN share."""
    return {
        "min_size": SIZE,
        "max_size": SIZE,
        "rpn_anchor_generator": _anchors(),
        "rpn_pre_nms_top_n_train": 600,
        "rpn_post_nms_top_n_train": 300,
        "rpn_pre_nms_top_n_test": 600,
        "rpn_post_nms_top_n_test": 150,
        "box_roi_pool": _pool(5),
        "box_head": TwoMLPHead(CHANNELS * 25, 256),
        "box_predictor": FastRCNNPredictor(256, classes + 1),
        "box_batch_size_per_image": 128,
        "box_score_thresh": 0.01,
    }


def _pool(side: int) -> MultiScaleRoIAlign:
    return MultiScaleRoIAlign(["0", "1", "2"], side, 2, canonical_scale=64)


def _retinanet(classes: int) -> nn.Module:
    """With the head of `retinanet_resnet50_fpn_v2`; without its group normalisation, training takes far longer."""
    anchors = _anchors()
    norm = partial(nn.GroupNorm, 8)
    head = RetinaNetHead(CHANNELS, anchors.num_anchors_per_location()[0], classes, norm_layer=norm)
    head.regression_head._loss_type = "giou"
    return RetinaNet(
        SmallPyramid(), classes, min_size=SIZE, max_size=SIZE, anchor_generator=anchors, head=head, score_thresh=0.01
    )


def _fcos(classes: int) -> nn.Module:
    points = AnchorGenerator(((8,), (16,), (32,)), ((1.0,),) * 3)
    return FCOS(SmallPyramid(), classes, min_size=SIZE, max_size=SIZE, anchor_generator=points, score_thresh=0.01)
