"""The five detectors behind one face: built from a seed, trained by their stock losses, detecting with labels from 0."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from experiments.drop_in import batch, first_label
from experiments.drop_in_models import build
from experiments.endless.soft_labels import soft_cross_entropy, soften
from stepgrad.cli.configs import read_config
from stepgrad.data import FreshImage, ShapesDataset
from stepgrad.train.build import build_model, enter_phase
from stepgrad.train.config import from_dict
from stepgrad.train.inputs import mix
from stepgrad.train.step import WINDOWS

CLASS_NAMES = ShapesDataset("train").class_names


class Family(Protocol):
    """A kind of detector."""

    soft_labels: bool
    """Whether it can learn from IoU-aware soft labels, too."""

    def build(self, seed: int, labels: str = "hard") -> nn.Module:
        """The detector with random weights; its class labels are "hard", the stock model's own, or "soft"."""

    def losses(self, model: Any, images: list[FreshImage], seed: int) -> dict[str, Tensor]:
        """The losses, whose sum is the objective; `seed` decides the model's own draws of windows."""

    def detect(self, model: Any, image: FreshImage) -> dict[str, Tensor]:
        """Boxes, labels from 0 and scores."""


class FastRCNNFamily:
    """The product's Fast R-CNN as the preset `shapes` has it: backbone `tiny`, windows that are scored but not moved."""

    soft_labels = True

    def build(self, seed: int, labels: str = "hard") -> nn.Module:
        config = from_dict({"run": {"seed": seed}}, read_config(["shapes"], {}))
        model: Any = build_model(config, len(CLASS_NAMES), None)
        enter_phase(model, config, "nll", config.nll, len(CLASS_NAMES))
        model.labels = labels
        return model

    def losses(self, model: Any, images: list[FreshImage], seed: int) -> dict[str, Tensor]:
        generators = [torch.Generator().manual_seed(mix(seed, fresh.number, WINDOWS)) for fresh in images]
        targets = [fresh.target for fresh in images]
        samples = model.draw([fresh.windows for fresh in images], targets, generators)
        activations = model.activate([fresh.image for fresh in images], [s.windows for s in samples])
        if model.labels == "soft":
            return {"loss_nll": soft_cross_entropy(activations, samples, targets)}
        losses: dict[str, Tensor] = model.losses_of(activations, samples, targets)
        return losses

    def detect(self, model: Any, image: FreshImage) -> dict[str, Tensor]:
        (found,) = model([image.image], [image.windows])
        return dict(found)


class TorchvisionFamily:
    """A small version of one of torchvision's detectors (`experiments/drop_in_models.py`)."""

    def __init__(self, name: str, soft_labels: bool) -> None:
        self.name = name
        self.soft_labels = soft_labels

    def build(self, seed: int, labels: str = "hard") -> nn.Module:
        with torch.random.fork_rng():
            model = build(self.name, len(CLASS_NAMES), seed)
        if labels == "soft":
            soften(model)
        return model

    def losses(self, model: Any, images: list[FreshImage], seed: int) -> dict[str, Tensor]:
        pairs = [(fresh.image, dict(fresh.target)) for fresh in images]
        with torch.random.fork_rng():
            torch.manual_seed(mix(seed, images[0].number, WINDOWS))
            losses: dict[str, Tensor] = model(*batch(pairs, first_label(self.name)))
        return losses

    def detect(self, model: Any, image: FreshImage) -> dict[str, Tensor]:
        (found,) = model([image.image / 255])
        return {**found, "labels": found["labels"] - first_label(self.name)}


FAMILIES: dict[str, Family] = {
    "fastrcnn": FastRCNNFamily(),
    "ssd": TorchvisionFamily("ssd", soft_labels=True),
    "retinanet": TorchvisionFamily("retinanet", soft_labels=True),
    "fcos": TorchvisionFamily("fcos", soft_labels=True),
    "fasterrcnn": TorchvisionFamily("faster_rcnn", soft_labels=False),
}
