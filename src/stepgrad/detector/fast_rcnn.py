"""Fast R-CNN (Girshick 2015) as Henderson & Ferrari (2016) train it: windows are scored, NMS is in the model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepgrad.detector.backbones import FREEZE, build_backbone, freeze_layers, hold_frozen_layers
from stepgrad.detector.head import Head, clip
from stepgrad.detector.inputs import (
    check_finite,
    check_images,
    check_lists,
    image_size,
    objects_on_cpu,
    windows_on_cpu,
)
from stepgrad.detector.pooling import Features, pool_windows, scaled_size, trunk_input
from stepgrad.detector.sampling import Sample, Sampling, sample_windows
from stepgrad.detector.weights import fill_weights
from stepgrad.errors import ConfigError, InputError, one_of
from stepgrad.losses.detection import MAPLoss
from stepgrad.losses.functional import suppress_and_rank
from stepgrad.losses.objective import BatchLoss
from stepgrad.metric.batch import Target
from stepgrad.metric.options import check_nms_threshold

SCORES = ["raw", "logprob"]
LOSSES = ["nll", "map"]
MAP_SAMPLING = Sampling(windows=500, foreground=None, background_overlap=0.0, ground_truth=False)
"""For mAP, windows are sampled at random, without regard to objects, as at test time."""

Image = Tensor | Features
Generators = torch.Generator | Sequence[torch.Generator] | None


class FastRCNN(nn.Module):
    """A detector that scores given windows.

    In training, `model(images, proposals, targets)` is a dict of losses whose sum is the objective; in evaluation,
    `model(images, proposals)` is a list of dicts of boxes (M, 4), labels (M,) and scores (M,) by decreasing score, after
    NMS. Images are (3, H, W) uint8 tensors, float ones in [0, 1], or `Features` of a trunk that does not train; proposals
    are (N, 4) continuous x1, y1, x2, y2; labels are in [0, num_classes). No image's result depends on the others.

    Args:
        num_classes: classes without background.
        backbone: "alexnet", "vgg16", "tiny" or another torchvision classifier by name.
        weights: "imagenet" or another name of torchvision's, a file (whole network or convolutions only), or None: drawn
            from torch's global random state. `weights_report` says what was loaded.
        score: "logprob", log-probabilities with background as one more class, or "raw", the last activations.
        loss: "nll" (cross-entropy) or "map"; `train_for` changes it.
        map_loss: the loss for "map"; None: MAPLoss's defaults with this model's NMS threshold.
        nll_weight: with "map", the weight of the cross-entropy that is added.
        sampling: the windows of a training step; None: the original's for "nll", 500 drawn without regard to objects for "map".
        hidden: units of fc6 and fc7.
        dropout: share of units that dropout switches off after both.
        freeze: "original" (conv1 of AlexNet, conv1_1 to conv2_2 of VGG16, of others what comes before stride 8),
            "trunk" or "none". BatchNorm never trains.
        shortest_side: images are scaled to it; None: as they are.
        longest_side: but no longer than this.
        nms_threshold: IoU above which a window suppresses a lower one; None: no NMS.
        candidates: windows per class and image that enter NMS in detection; None: all.
        box_regression: move the box of each class from its window, as the original does and the paper does not. Detections have
            the moved boxes, clipped to the image; mAP is that of the moved boxes; "loss_box" trains them, in either objective.
            `head.boxes.measure(samples)` takes the scale of the moves from training data.

    After each training call, `metrics` holds windows (drawn), positives (of them on objects), loss_seconds and, for
    "map", MAPLoss's map, ap, nonzero, positive_sum, negative_sum, kept and objects (to find).

    >>> model = FastRCNN(6, "tiny", hidden=32, shortest_side=None)
    >>> image = torch.zeros(3, 160, 160, dtype=torch.uint8)
    >>> windows = torch.tensor([[10.0, 10.0, 60.0, 60.0], [12.0, 10.0, 60.0, 60.0]])
    >>> target = {"boxes": windows[:1], "labels": torch.tensor([2])}
    >>> sorted(model([image], [windows], [target])), model.metrics["positives"]   # the object's own box is one more window
    (['loss_nll'], 3)
    >>> (found,) = model.eval()([image], [windows])
    >>> found["boxes"].shape, sorted(found["labels"].tolist())    # NMS leaves one window to each class
    (torch.Size([6, 4]), [0, 1, 2, 3, 4, 5])
    """

    def __init__(
        self,
        num_classes: int,
        backbone: str = "alexnet",
        *,
        weights: str | Path | None = None,
        score: str = "logprob",
        loss: str = "nll",
        map_loss: BatchLoss | None = None,
        nll_weight: float = 0.0,
        sampling: Sampling | None = None,
        hidden: int = 4096,
        dropout: float = 0.5,
        freeze: str = "original",
        shortest_side: int | None = 600,
        longest_side: int | None = 1000,
        nms_threshold: float | None = 0.3,
        candidates: int | None = 100,
        box_regression: bool = False,
    ) -> None:
        super().__init__()
        one_of("score", score, SCORES)
        one_of("freeze", freeze, FREEZE)
        for name, number in (("num_classes", num_classes), ("hidden", hidden), ("candidates", candidates)):
            if number is not None and number < 1:
                raise ConfigError(f"Expected {name} to be at least 1 but got {number!r}.")
        self.num_classes = num_classes
        self.score = score
        self.shortest_side = shortest_side
        self.longest_side = longest_side
        self.nms_threshold = check_nms_threshold(nms_threshold)
        self.candidates = candidates
        built = build_backbone(backbone)
        self.backbone = backbone
        self.channels = built.channels
        self.geometry = built.geometry
        self.pool = built.pool
        self.trunk = built.trunk
        self.outputs = num_classes + (score == "logprob")
        boxes = num_classes if box_regression else 0
        self.head = Head(built.channels * built.pool**2, hidden, self.outputs, dropout, boxes)
        freeze_layers(built, freeze)
        self.weights_report = fill_weights(built, self.head, weights)
        self.metrics: dict[str, Any] = {}
        self.train_for(loss, map_loss=map_loss, nll_weight=nll_weight, sampling=sampling)
        self.train()

    def train_for(
        self, loss: str, *, map_loss: BatchLoss | None = None, nll_weight: float = 0.0, sampling: Sampling | None = None
    ) -> None:
        """Change the objective; the weights stay."""
        one_of("loss", loss, LOSSES)
        if self.score == "raw" and (loss == "nll" or nll_weight > 0.0):
            raise ConfigError("Cross-entropy needs a background column: expected score 'logprob' but got 'raw'.")
        if nll_weight < 0.0:
            raise ConfigError(f"Expected nll_weight to be at least 0 but got {nll_weight!r}.")
        if map_loss is not None and map_loss.num_classes != self.num_classes:
            raise ConfigError(f"Expected a map_loss for {self.num_classes} classes but got {map_loss.num_classes}.")
        self.loss, self.nll_weight = loss, nll_weight
        self.map_loss = map_loss or MAPLoss(self.num_classes, nms_threshold=self.nms_threshold)
        self.sampling = sampling or (Sampling() if loss == "nll" else MAP_SAMPLING)

    def train(self, mode: bool = True) -> FastRCNN:
        """Training or evaluation mode; frozen layers stay in the latter."""
        super().train(mode)
        hold_frozen_layers(self.trunk)
        return self

    @property
    def trunk_is_frozen(self) -> bool:
        return not any(p.requires_grad for p in self.trunk.parameters())

    def forward(
        self,
        images: Sequence[Image],
        proposals: Sequence[Tensor],
        targets: Sequence[Target] | None = None,
        *,
        generator: Generators = None,
    ) -> Any:
        """Losses in training, detections in evaluation.

        In training this is `draw`, `activate` and `losses_of`, one after the other. `generator` draws the windows: one for
        all images, one for each, or None, torch's global one.
        """
        if not self.training:
            return self._detections(images, proposals)
        if targets is None:
            raise InputError("Expected targets in training mode but got None; call model.eval() to detect.")
        check_lists(images=images, proposals=proposals, targets=targets)
        samples = self.draw(proposals, targets, generator)
        return self.losses_of(self.activate(images, [s.windows for s in samples]), samples, targets)

    def draw(
        self, proposals: Sequence[Tensor], targets: Sequence[Target], generator: Generators = None
    ) -> list[Sample]:
        """Draw the windows of a training step, and label them."""
        check_lists(proposals=proposals, targets=targets)
        generators = list(generator) if isinstance(generator, Sequence) else [generator] * len(proposals)
        objects = objects_on_cpu(targets, self.num_classes)
        return [
            sample_windows(w, boxes, labels, self.num_classes, self.sampling, g)
            for w, (boxes, labels), g in zip(windows_on_cpu(proposals), objects, generators, strict=True)
        ]

    def activate(self, images: Sequence[Image], windows: Sequence[Tensor]) -> list[Tensor]:
        """The head's output for the windows of each image: (N, K), with one more column for background if it has one.

        The 4K columns of the box regression follow, if there is one.
        """
        features = self.extract(images)
        if not self.training:  # image by image: less memory, and nobody else's rounding
            pairs = zip(features, windows, strict=True)
            return [self.head(pool_windows([f], [w], self.geometry, self.pool)[0]) for f, w in pairs]
        none = self.head.scores.weight.new_zeros(0, self.channels * self.pool**2)
        pooled = torch.cat([none, *pool_windows(features, windows, self.geometry, self.pool)])  # one large product
        return list(self.head(pooled).split([len(w) for w in windows]))

    def extract(self, images: Sequence[Image]) -> list[Features]:
        """The trunk's output for each image; on a GPU, images of the same size after scaling go through it together."""
        check_lists(images=images)
        check_images(images, self.channels)
        features = {i: image for i, image in enumerate(images) if isinstance(image, Features)}
        if features and self.training and not self.trunk_is_frozen:
            raise InputError("Expected images, not features, because the trunk trains; freeze it with freeze='trunk'.")
        pixels = {i: image for i, image in enumerate(images) if isinstance(image, Tensor)}
        by_size: dict[tuple[int, int], list[int]] = {}
        for i, image in pixels.items():
            size = scaled_size(image.shape[1], image.shape[2], self.shortest_side, self.longest_side)
            by_size.setdefault(size, []).append(i)
        for size, members in by_size.items():
            for i, m in zip(members, self._run_trunk([pixels[i] for i in members], size), strict=True):
                height, width = pixels[i].shape[1:]
                features[i] = Features(m, (size[1] / width, size[0] / height), (height, width))
        return [features[i] for i in range(len(images))]

    def _run_trunk(self, images: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
        """(B, C, h, w) float32 maps of images that all get the same size.

        On the CPU, unless a graph is built, one by one: it takes no longer, and a batch of another size would round
        otherwise.
        """
        device = self.head.scores.weight.device
        with_graph = torch.is_grad_enabled() and not self.trunk_is_frozen
        with torch.no_grad():
            inputs = torch.stack([trunk_input(image.to(device, non_blocking=True), size) for image in images])
        with torch.set_grad_enabled(with_graph):
            alone = device.type == "cpu" and not with_graph
            maps: Tensor = torch.cat([self.trunk(one) for one in inputs.split(1)]) if alone else self.trunk(inputs)
            return maps.float()

    def losses_of(
        self,
        activations: Sequence[Tensor],
        samples: Sequence[Sample],
        targets: Sequence[Target],
        windows: float | None = None,
    ) -> dict[str, Tensor]:
        """The losses of a training step, which depend on the weights through the activations alone; sets `metrics`.

        Cross-entropy and the loss of boxes are sums over the windows divided by `windows`; None: by their number.
        """
        count = sum(len(s.windows) for s in samples)
        self.metrics = {"windows": count, "positives": sum(s.positives for s in samples)}
        divisor = (count if windows is None else windows) or 1.0
        losses: dict[str, Tensor] = {}
        if self.loss == "map" and activations and activations[0].is_cuda:
            torch.cuda.synchronize(activations[0].device)  # the clock shall see the loss alone, which would wait anyway
        began = time.perf_counter()
        if self.loss == "map":
            scores = [self._ranking(a) for a in activations]
            boxes = [self._moved(a, s.windows) for a, s in zip(activations, samples, strict=True)]
            losses["loss_map"] = self.map_loss(scores, boxes, targets).float()
            self.metrics.update(self.map_loss.metrics)
        if self.loss == "nll" or self.nll_weight > 0.0:
            weight = 1.0 if self.loss == "nll" else self.nll_weight
            total = _cross_entropy([a[:, : self.outputs] for a in activations], samples)
            losses["loss_nll"] = weight * (total / divisor)
        if self.head.boxes is not None:
            losses["loss_box"] = self.head.boxes.loss([a[:, self.outputs :] for a in activations], samples) / divisor
        self.metrics["loss_seconds"] = time.perf_counter() - began
        return losses

    def score_windows(self, images: Sequence[Image], windows: Sequence[Tensor]) -> list[Tensor]:
        """(N, K) scores of each image's windows that detections are ranked by, on the graph where there is one."""
        check_lists(images=images, windows=windows)
        return [self._ranking(a) for a in self.activate(images, windows_on_cpu(windows))]

    def _ranking(self, activations: Tensor) -> Tensor:
        """(N, K) scores; log-probabilities in float64 (where there is any), for float32 makes ties near 0."""
        activations = activations[:, : self.outputs]
        if self.score == "raw":
            return activations
        wide = activations if activations.device.type == "mps" else activations.double()
        return F.log_softmax(wide, dim=1)[:, : self.num_classes]

    def _moved(self, activations: Tensor, windows: Tensor) -> Tensor:
        """(N, K, 4) boxes by class, without a graph; the windows (N, 4) themselves where boxes are not moved."""
        return windows if self.head.boxes is None else self.head.boxes.boxes(activations[:, self.outputs :], windows)

    @torch.no_grad()
    def _detections(self, images: Sequence[Image], proposals: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        check_lists(images=images, proposals=proposals)
        windows = windows_on_cpu(proposals)
        activations = [a.cpu() for a in self.activate(images, windows)]
        devices = [p.device for p in proposals]
        return [self._detected(i, images[i], activations[i], windows[i], devices[i]) for i in range(len(images))]

    def _detected(
        self, i: int, image: Image, activations: Tensor, windows: Tensor, device: torch.device
    ) -> dict[str, Tensor]:
        check_finite(activations, i)
        boxes = self._moved(activations, windows)
        if boxes.ndim == 3:
            boxes = clip(boxes, *image_size(image, i)).float()  # as windows are
        index, labels, ranking = suppress_and_rank(
            self._ranking(activations), boxes, self.nms_threshold, self.candidates
        )
        scores = ranking.double().exp() if self.score == "logprob" else ranking
        found = boxes[index] if boxes.ndim == 2 else boxes[index, labels]
        return {"boxes": found.to(device), "labels": labels.to(device), "scores": scores.to(device)}

    def extra_repr(self) -> str:
        return f"{self.num_classes}, backbone={self.backbone!r}, score={self.score!r}, loss={self.loss!r}"


def _cross_entropy(activations: Sequence[Tensor], samples: Sequence[Sample]) -> Tensor:
    """The sum over all windows; 0, still on the graph, without any."""
    joined = torch.cat(list(activations)).float() if activations else torch.zeros(0, 1, requires_grad=True)
    labels = torch.cat([torch.zeros(0, dtype=torch.long), *(s.labels for s in samples)])
    return F.cross_entropy(joined, labels.to(joined.device, non_blocking=True), reduction="sum")
