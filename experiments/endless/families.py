"""The seven detectors behind one face: built from a seed, trained by their stock losses, detecting with labels from 0."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from experiments.drop_in import batch, first_label
from experiments.drop_in_models import build
from experiments.endless.detr import DETRFamily
from experiments.endless.soft_labels import soft_cross_entropy, soften
from stepgrad.cli.configs import read_config
from stepgrad.data import FreshImage, ShapesDataset
from stepgrad.detector.sampling import Sample
from stepgrad.detector.training.build import build_model, enter_phase
from stepgrad.detector.training.config import from_dict
from stepgrad.detector.training.inputs import mix
from stepgrad.detector.training.step import WINDOWS
from stepgrad.losses.detection import MAPLoss
from stepgrad.models.auto_weight import StockLoss
from stepgrad.models.switch import FINE_TUNING, MapLossSwitch
from stepgrad.models.torchvision import AutoWeight, train_for_map

CLASS_NAMES = ShapesDataset("train").class_names


class Family(Protocol):
    """A kind of detector."""

    soft_labels: bool
    """Whether it can learn from IoU-aware soft labels, too."""
    class_head: str
    """What the names of the weights begin with that only decide the classes' scores."""
    task: str
    """What is judged, and what mAP compares: "boxes" or "masks"."""

    def build(self, seed: int, labels: str = "hard") -> nn.Module:
        """The detector with random weights; its class labels are "hard", the stock model's own, or "soft"."""

    def add_map(
        self, model: Any, protocol: str, mode: str = "mix", share: float = 1.0, task: str | None = None
    ) -> None:
        """Have `losses` hold mAP from now on: with the stock classification loss ("mix"), or in its place ("replace").

        Its weight is automatic: `share` as in `AutoWeight`. It compares what the family's task says, unless `task` does.
        """

    def losses(self, model: Any, images: list[FreshImage], seed: int) -> dict[str, Tensor]:
        """The losses, whose sum is the objective; `seed` decides the model's own draws of windows."""

    def detect(self, model: Any, image: FreshImage) -> dict[str, Tensor]:
        """Boxes, labels from 0 and scores; masks where the task says so."""


class FastRCNNFamily:
    """The product's Fast R-CNN as the preset `shapes` has it: backbone `tiny`, windows that are scored but not moved."""

    soft_labels = True
    class_head = "head."
    task = "boxes"

    def build(self, seed: int, labels: str = "hard") -> nn.Module:
        config = from_dict({"run": {"seed": seed}}, read_config(["shapes"], {}))
        model: Any = build_model(config, len(CLASS_NAMES), None)
        enter_phase(model, config, "nll", config.nll, len(CLASS_NAMES))
        model.labels = labels
        model.map_switch = None
        return model

    def add_map(
        self, model: Any, protocol: str, mode: str = "mix", share: float = 1.0, task: str | None = None
    ) -> None:
        options = {**FINE_TUNING, "absent_classes": "skip"}
        loss_fn = MAPLoss(len(CLASS_NAMES), protocol, nms_threshold=model.nms_threshold, **options)
        model.map_switch = MapLossSwitch(loss_fn, mode, AutoWeight(share))

    def losses(self, model: Any, images: list[FreshImage], seed: int) -> dict[str, Tensor]:
        if model.map_switch is not None:
            return self._losses_with_map(model, images, seed)
        targets = [fresh.target for fresh in images]
        samples = self._draw(model, images, seed)
        activations = model.activate([fresh.image for fresh in images], [s.windows for s in samples])
        if model.labels == "soft":
            return {"loss_nll": soft_cross_entropy(activations, samples, targets)}
        losses: dict[str, Tensor] = model.losses_of(activations, samples, targets)
        return losses

    def _draw(self, model: Any, images: list[FreshImage], seed: int) -> list[Sample]:
        """The windows of a step, those of each image from a stream of its own."""
        generators = [torch.Generator().manual_seed(mix(seed, fresh.number, WINDOWS)) for fresh in images]
        samples: list[Sample] = model.draw(
            [fresh.windows for fresh in images], [fresh.target for fresh in images], generators
        )
        return samples

    def _losses_with_map(self, model: Any, images: list[FreshImage], seed: int) -> dict[str, Tensor]:
        """Cross-entropy of the windows it would draw, and mAP of all windows, as when detecting; one pass of the trunk."""
        targets = [fresh.target for fresh in images]
        samples = self._draw(model, images, seed)
        windows = [torch.cat([s.windows, fresh.windows]) for s, fresh in zip(samples, images, strict=True)]
        both = model.activate([fresh.image for fresh in images], windows)
        drawn = [a[: len(s.windows)] for a, s in zip(both, samples, strict=True)]
        scores = [model._ranking(a[len(s.windows) :]) for a, s in zip(both, samples, strict=True)]
        losses: dict[str, Tensor] = model.losses_of(drawn, samples, targets)
        stock = StockLoss(losses["loss_nll"], both)
        loss = model.map_switch.map_loss(scores, [fresh.windows for fresh in images], targets, stock)
        return {"loss_map": loss} if model.map_switch.mode == "replace" else {**losses, "loss_map": loss}

    def detect(self, model: Any, image: FreshImage) -> dict[str, Tensor]:
        (found,) = model([image.image], [image.windows])
        return dict(found)


class TorchvisionFamily:
    """A small version of one of torchvision's detectors (`experiments/drop_in_models.py`)."""

    def __init__(
        self, name: str, soft_labels: bool, class_head: str = "head.classification_head.", task: str = "boxes"
    ) -> None:
        self.name = name
        self.soft_labels = soft_labels
        self.class_head = class_head
        self.task = task

    def build(self, seed: int, labels: str = "hard") -> nn.Module:
        with torch.random.fork_rng():
            model = build(self.name, len(CLASS_NAMES), seed)
        if labels == "soft":
            soften(model)
        return model

    def add_map(
        self, model: Any, protocol: str, mode: str = "mix", share: float = 1.0, task: str | None = None
    ) -> None:
        options = {"mode": mode, "weight": AutoWeight(share), "protocol": protocol, "absent_classes": "skip"}
        train_for_map(model, task=task or self.task, **options)

    def losses(self, model: Any, images: list[FreshImage], seed: int) -> dict[str, Tensor]:
        pairs = [(fresh.image, dict(fresh.target)) for fresh in images]
        with torch.random.fork_rng():
            torch.manual_seed(mix(seed, images[0].number, WINDOWS))
            losses: dict[str, Tensor] = model(*batch(pairs, first_label(self.name)))
        return losses

    def detect(self, model: Any, image: FreshImage) -> dict[str, Tensor]:
        (found,) = model([image.image / 255])
        found = {**found, "labels": found["labels"] - first_label(self.name)}
        return {**found, "masks": found["masks"][:, 0] > 0.5} if self.task == "masks" else found


FAMILIES: dict[str, Family] = {
    "fastrcnn": FastRCNNFamily(),
    "ssd": TorchvisionFamily("ssd", soft_labels=True),
    "retinanet": TorchvisionFamily("retinanet", soft_labels=True),
    "fcos": TorchvisionFamily("fcos", soft_labels=True),
    "fasterrcnn": TorchvisionFamily("faster_rcnn", soft_labels=False, class_head="roi_heads.box_predictor.cls_score."),
    "maskrcnn": TorchvisionFamily("mask_rcnn", False, "roi_heads.box_predictor.cls_score.", "masks"),
    "detr": DETRFamily(len(CLASS_NAMES)),
}
