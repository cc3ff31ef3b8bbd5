"""`train_new_head`: classes of one's own for a trained detector, as one call."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stepgrad.errors import ConfigError, InputError, NonFiniteError, whole_number
from stepgrad.evaluation import Evaluator
from stepgrad.fine_tuning import ImageWindows, finetune
from stepgrad.fine_tuning.outputs import Reading
from stepgrad.fine_tuning.records import FinishedHeads, fingerprint
from stepgrad.fine_tuning.training import Plan, Task, judge, train
from stepgrad.fine_tuning.ways import STOCK_IMAGES, Watch
from stepgrad.fine_tuning.windows import labelled
from stepgrad.locks import only_writer
from stepgrad.metric.protocol import Protocol, get_protocol
from stepgrad.new_head.bar import bar
from stepgrad.new_head.cache import Data, Features, pair
from stepgrad.new_head.frozen import Choice, FrozenDetector, as_used
from stepgrad.new_head.layer import ClassLayer
from stepgrad.new_head.models import frozen_detector
from stepgrad.new_head.result import NewHead


def train_new_head(
    model: nn.Module,
    train_data: Data,
    val_data: Data,
    *,
    test_data: Data | None = None,
    num_classes: int | None = None,
    class_names: Sequence[str] | None = None,
    out: str | Path | None = None,
    protocol: str | Protocol = "coco",
    windows: int = 300,
    others: int = 100,
    centre_only: bool = False,
    dtype: torch.dtype = torch.float16,
    start_steps: int = 2000,
    start_rates: Sequence[float] = (1e-2, 1e-3),
    weight_decays: Sequence[float] = (0.0, 1.0),
    soft_labels: bool | None = None,
    seed: int = 0,
    progress: bool = True,
    **options: Any,
) -> NewHead:
    """Give a trained detector new classes: its last class layer is trained anew, all else stays as it is.

    The detector runs once over all images; features and boxes of its best windows are kept. On these a new last class
    layer is trained by cross-entropy to the end, then for mAP beside a control of equal budget (`finetune`), and the
    better goes into the model, which from then on detects the new classes. Until then the model is as it was.

    Args:
        model: a detector of torchvision (SSD, SSDlite, RetinaNet, FCOS, Faster R-CNN).
        train_data: images (3, H, W), uint8 or in [0, 1], each with a target: boxes in pixels, and labels in [0, K). The
            datasets of `stepgrad.data` are such.
        val_data: the same, held out: rates and the way to train are chosen by them.
        test_data: the same; looked at once, at the end. None: none.
        num_classes: K. None: as many as `class_names`, or as `train_data` has.
        class_names: None: those of `train_data`, or numbers.
        out: a folder for features, trained layers and a report; the same call goes on from there. None: memory only.
        protocol: what mAP means.
        windows: per image, those that the detector as it is finds most likely to show something.
        others: so many more, at random.
        centre_only: where the last class layer is a convolution of 3 x 3, the new one sees its centre only: a ninth of
            the features, for less memory.
        dtype: of the features that are kept.
        start_steps: of cross-entropy, 8 images each.
        start_rates: of AdamW, to try for cross-entropy.
        weight_decays: to try for cross-entropy.
        soft_labels: cross-entropy takes the IoU of a hit as its label. None: wherever classes have a sigmoid each.
        seed: of the layer's first weights and of the order of images.
        progress: show a bar on a terminal.
        options: of `finetune`.
    """
    detector = frozen_detector(model, centre_only)
    names = _class_names(train_data, num_classes, class_names)
    choice = Choice(whole_number("windows", windows, least=1), whole_number("others", others, least=0))
    given = {"train": _checked("train_data", train_data), "val": _checked("val_data", val_data)}
    if test_data is not None:
        given["test"] = _checked("test_data", test_data)
    if options.get("refit") is not None:
        raise ConfigError(
            "refit trains a correction with a hidden layer, which no last class layer can hold; leave it out."
        )
    folder = None if out is None else Path(out)
    lock = nullcontext() if folder is None else only_writer(folder, "wait until it is done, or choose another out")
    with lock, bar(progress) as watch:
        store = None if folder is None else folder / "features"
        parts = [
            Features(store, part, data, detector, choice, dtype, len(names))
            for part, data in given.items()  # all folders are looked at before any work is done
        ]
        images = {features.part: _read(features, watch) for features in parts}
        soft = detector.background is None if soft_labels is None else soft_labels
        reading = Reading(len(names), detector.background, soft_labels=soft)
        task = Task(reading, get_protocol(protocol), detector.nms_threshold, reading.stock_loss, names)
        start = Start(detector.new_layer, images["train"], images["val"], task, seed, watch)
        layer, decay = start.trained(folder, start_steps, start_rates, weight_decays)
        tuned = finetune(
            layer,
            images["train"],
            images["val"],
            protocol=protocol,
            nms_threshold=detector.nms_threshold,
            background=detector.background,
            soft_labels=soft,
            stock_weight_decay=decay,
            class_names=names,
            test_images=images.get("test"),
            pictures=_with_pictures(given["val" if test_data is None else "test"]),
            out=None if folder is None else folder / "fine-tuning",
            watch=watch,
            **options,
        )
        assert isinstance(tuned.head, ClassLayer)
        detector.install(*tuned.head.folded(), names)
        return NewHead(model, tuned, tuple(names), detector.first_label, _whole(detector, val_data, task, watch))


class Start:
    """Cross-entropy to the end: the best of some rates and weight decays on held-out images."""

    def __init__(
        self,
        new_layer: Any,
        train_images: list[ImageWindows],
        val_images: list[ImageWindows],
        task: Task,
        seed: int,
        watch: Watch,
    ) -> None:
        K = task.reading.num_classes
        self.train_images = labelled("train_data", train_images, K)
        self.val_images = labelled("val_data", val_images, K)
        self.task, self.seed, self.watch = task, seed, watch
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layer: ClassLayer = new_layer(K)
        self.layer.standardise_like(image.features for image in train_images)

    def trained(
        self, folder: Path | None, steps: int, rates: Sequence[float], decays: Sequence[float]
    ) -> tuple[nn.Module, float]:
        """The best layer, and the weight decay it was trained with."""
        plans = [
            Plan("stock", whole_number("start_steps", steps, least=1), STOCK_IMAGES, rate, decay)
            for rate in rates
            for decay in decays
        ]
        if not plans:
            raise ConfigError("Expected at least one of start_rates and of weight_decays.")
        records = FinishedHeads(None if folder is None else folder / "cross-entropy", self._settings(steps))
        found = []
        for plan in plans:
            try:
                layer, _ = records.trained(
                    f"{plan.rate!r}-{plan.weight_decay!r}", self.layer, partial(self._train, plan)
                )
            except NonFiniteError:  # too high a rate is one of those not to choose
                continue
            (value,) = judge(layer, self.val_images, self.task, [self.task.protocol])
            found.append((value, layer, plan.weight_decay))
        if not found:
            raise NonFiniteError(f"cross-entropy diverged at every rate of {list(rates)}; lower start_rates.")
        _, layer, decay = max(found, key=lambda one: one[0])
        return layer, decay

    def _train(self, plan: Plan) -> nn.Module:
        done = 0

        def tick() -> None:
            nonlocal done
            done += 1
            self.watch(f"cross-entropy, rate {plan.rate:g}, decay {plan.weight_decay:g}", done, plan.steps)

        return train(self.layer, self.train_images, self.task, plan, self.seed, tick)

    def _settings(self, steps: int) -> dict[str, Any]:
        everything = [tensor for image in self.train_images for tensor in image.tensors]
        return {
            "layer": fingerprint(self.layer.state_dict().values()),
            "images": fingerprint(everything),
            "soft_labels": self.task.reading.soft_labels,
            "steps": steps,
            "seed": self.seed,
        }


def _read(features: Features, watch: Watch) -> list[ImageWindows]:
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        watch(f"features of {features.part} images", done, len(features.data))

    return features.read(tick)


def _whole(detector: FrozenDetector, data: Data, task: Task, watch: Watch) -> float:
    """mAP of the model as a whole, with the new layer in it, on held-out images."""
    evaluator = Evaluator(task.reading.num_classes, task.protocol)
    with as_used(detector.model):
        for n in range(len(data)):
            image, target = pair(data, n, "val")
            evaluator.update([detector.detect(image)], [target])
            watch("the model as a whole", n + 1, len(data))
    return evaluator.compute().map


def _with_pictures(data: Any) -> Any:
    """The data, if the report can show its pictures: a dataset of stepgrad.data."""
    return data if hasattr(data, "ids") and hasattr(data, "source") else None


def _checked(name: str, data: Data) -> Data:
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise InputError(f"Expected {name} to be a list or a dataset with a length but got {type(data).__name__}.")
    if len(data) == 0:
        raise InputError(f"Expected {name} to hold at least one image but it is empty.")
    return data


def _class_names(data: Data, num_classes: int | None, class_names: Sequence[str] | None) -> list[str]:
    names = class_names if class_names is not None else getattr(data, "class_names", None)
    if num_classes is None:
        if names is None:
            raise ConfigError("Expected num_classes, as neither class_names nor the data tell; labels are in [0, K).")
        return list(names)
    count = whole_number("num_classes", num_classes, least=1)
    if names is not None and len(names) != count:
        raise ConfigError(f"Expected as many class_names as num_classes, {count}, but got {len(names)}.")
    return list(names) if names is not None else [str(k) for k in range(count)]
