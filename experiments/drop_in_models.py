"""Small versions of torchvision's detectors for `shapes`: one backbone, heads of the stock classes, from random weights."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import torch
from torch import Tensor, nn
from torchvision.models.detection import FCOS, FasterRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.retinanet import RetinaNetHead
from torchvision.models.detection.ssd import SSD
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign

SIZE = 160
CHANNELS = 64
FAMILIES = ["faster_rcnn", "retinanet", "fcos", "ssd"]
WITHOUT_BACKGROUND = ["retinanet", "fcos"]
"""Their labels are columns; the others count classes from 1."""


def _stage(inputs: int, outputs: int) -> nn.Sequential:
    """Half the size; group normalisation, as batches are small and of different sizes."""
    layers: list[nn.Module] = []
    for i, stride in ((inputs, 2), (outputs, 1)):
        layers += [nn.Conv2d(i, outputs, 3, stride, 1, bias=False), nn.GroupNorm(8, outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class SmallPyramid(nn.Module):
    """Features of 64 channels at strides 8, 16 and 32, from ten convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_stage(3, 16), _stage(16, 32))
        self.stages = nn.ModuleList([_stage(32, 64), _stage(64, 96), _stage(96, 128)])
        self.fpn = FeaturePyramidNetwork([64, 96, 128], CHANNELS)
        self.out_channels: int | list[int] = CHANNELS

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        levels: OrderedDict[str, Tensor] = OrderedDict()
        x = self.stem(x)
        for number, stage in enumerate(self.stages):
            x = stage(x)
            levels[str(number)] = x
        found: dict[str, Tensor] = self.fpn(levels)
        return found


def build(family: str, classes: int, seed: int) -> nn.Module:
    """A stock model with random weights, in training mode."""
    torch.manual_seed(seed)
    return {"faster_rcnn": _faster_rcnn, "retinanet": _retinanet, "fcos": _fcos, "ssd": _ssd}[family](classes)


def _anchors() -> AnchorGenerator:
    return AnchorGenerator(((16, 23), (32, 45), (64, 91)), ((0.6, 1.0, 1.6),) * 3)


def _faster_rcnn(classes: int) -> nn.Module:
    return FasterRCNN(
        SmallPyramid(),
        min_size=SIZE,
        max_size=SIZE,
        rpn_anchor_generator=_anchors(),
        rpn_pre_nms_top_n_train=600,
        rpn_post_nms_top_n_train=300,
        rpn_pre_nms_top_n_test=600,
        rpn_post_nms_top_n_test=150,
        box_roi_pool=MultiScaleRoIAlign(["0", "1", "2"], 5, 2, canonical_scale=64),
        box_head=TwoMLPHead(CHANNELS * 25, 256),
        box_predictor=FastRCNNPredictor(256, classes + 1),
        box_batch_size_per_image=128,
        box_score_thresh=0.01,
    )


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


def _ssd(classes: int) -> nn.Module:
    backbone = SmallPyramid()
    backbone.out_channels = [CHANNELS] * 3
    boxes = DefaultBoxGenerator([[2], [2], [2]], scales=[0.12, 0.25, 0.5, 0.8])
    return SSD(backbone, boxes, (SIZE, SIZE), classes + 1, score_thresh=0.01)
