"""A small RT-DETR of transformers for `shapes`: its stock classes and loss, on the trunk that the other families have.

Its classification loss, varifocal, has IoU-aware labels already: here "hard" labels are the stock model's own, as for every
family, and there are no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.ops import box_convert
from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrResNetConfig

from experiments.drop_in_models import SmallPyramid
from stepgrad.data import FreshImage
from stepgrad.detector.training.inputs import mix
from stepgrad.detector.training.step import WINDOWS
from stepgrad.models.detr.transformers import AutoWeight, corners, train_for_map

CHANNELS = 64
STAGES = [64, 96, 128]
"""Channels of the trunk at strides 8, 16 and 32."""
QUERIES = 50


def config(classes: int) -> RTDetrConfig:
    placeholder = RTDetrResNetConfig(
        embedding_size=8,
        hidden_sizes=STAGES,
        depths=[1] * len(STAGES),
        layer_type="basic",
        out_features=["stage1", "stage2", "stage3"],
    )
    return RTDetrConfig(
        backbone_config=placeholder,
        num_labels=classes,
        num_queries=QUERIES,
        num_denoising=QUERIES,
        decoder_layers=3,
        d_model=CHANNELS,
        encoder_hidden_dim=CHANNELS,
        encoder_in_channels=STAGES,
        decoder_in_channels=[CHANNELS] * 3,
        encoder_ffn_dim=2 * CHANNELS,
        decoder_ffn_dim=2 * CHANNELS,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        hidden_expansion=0.5,
    )


class Trunk(nn.Module):
    """The convolutions of `SmallPyramid`, in the place of RT-DETR's ResNet; RT-DETR has a pyramid of its own."""

    def __init__(self) -> None:
        super().__init__()
        pyramid = SmallPyramid()
        self.stem = pyramid.stem
        self.stages = pyramid.stages

    def forward(self, images: Tensor) -> SimpleNamespace:
        maps = [self.stem(images)]
        for stage in self.stages:
            maps.append(stage(maps[-1]))
        return SimpleNamespace(feature_maps=maps[1:])


class DETRFamily:
    """RT-DETR: every query is a detection, without NMS."""

    soft_labels = False
    class_head = "model.decoder.class_embed."
    task = "boxes"

    def __init__(self, classes: int) -> None:
        self.classes = classes

    def build(self, seed: int, labels: str = "hard") -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = RTDetrForObjectDetection(config(self.classes))
            model.model.backbone.model = Trunk()
            redraw(model)
        return model

    def add_map(
        self, model: Any, protocol: str, mode: str = "mix", share: float = 1.0, task: str | None = None
    ) -> None:
        train_for_map(model, mode=mode, weight=AutoWeight(share), protocol=protocol, absent_classes="skip")

    def losses(self, model: Any, images: Sequence[FreshImage], seed: int) -> dict[str, Tensor]:
        with torch.random.fork_rng():
            torch.manual_seed(mix(seed, images[0].number, WINDOWS))  # of the denoising queries
            found = model(pixels(images), labels=[label(fresh) for fresh in images])
        return {"loss": found.loss}

    def detect(self, model: Any, image: FreshImage) -> dict[str, Tensor]:
        """Every query in every class, as stock post-processing ranks them, and COCO's hundred best of them."""
        found = model(pixels([image]))
        scores, places = found.logits[0].sigmoid().flatten().topk(100)
        size = torch.tensor(image.image.shape[:0:-1], dtype=torch.float32)
        boxes = corners(found.pred_boxes[0], size)[places // self.classes]
        return {"boxes": boxes, "labels": places % self.classes, "scores": scores}


def redraw(model: Any) -> None:
    """Draw anew what transformers sets for weights that are about to be loaded: it scales normalised features by 0.01.

    What it sets on purpose stays: weights of zero (boxes begin at their anchors, attention at a grid of points), and layers
    with a bias (classes begin rare).
    """
    for module in model.modules():
        is_plain = isinstance(module, nn.Linear) and bool(module.weight.any()) and not bool(module.bias.any())
        if is_plain or isinstance(module, (nn.BatchNorm2d, nn.Conv2d)):
            module.reset_parameters()
    last = model.model.enc_bbox_head.layers[-1]
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)


def pixels(images: Sequence[FreshImage]) -> Tensor:
    """(B, 3, H, W) from 0 to 1, as RT-DETR's image processor makes them."""
    return torch.stack([fresh.image for fresh in images]) / 255


def label(fresh: FreshImage) -> dict[str, Tensor]:
    """An image's objects as transformers has them: centres and sides in parts of the image."""
    height, width = fresh.image.shape[1:]
    boxes = fresh.target["boxes"].float() / torch.tensor([width, height, width, height])
    return {
        "boxes": box_convert(boxes, "xyxy", "cxcywh"),
        "class_labels": fresh.target["labels"],
        "orig_size": torch.tensor([height, width]),
    }
