"""`train_new_head`: your own classes for a trained detector, in one call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepgrad.errors import ConfigError, InputError, whole_number
from stepgrad.evaluation import Evaluator
from stepgrad.evaluation.result import EvaluationResult, best_thresholds
from stepgrad.locks import only_writer
from stepgrad.metric.protocol import Protocol, get_protocol
from stepgrad.models.fine_tuning import FineTuned, finetune
from stepgrad.models.fine_tuning.finetune import check_options
from stepgrad.models.fine_tuning.outputs import Reading
from stepgrad.models.fine_tuning.result import thresholds_text
from stepgrad.models.fine_tuning.training import Plan, Task
from stepgrad.models.fine_tuning.ways import STOCK_IMAGES
from stepgrad.models.held_out import as_used
from stepgrad.models.new_head.features import LabelledData, WindowReader, pair
from stepgrad.models.new_head.frozen import FrozenDetector, WindowChoice
from stepgrad.models.new_head.layer import ClassLayer
from stepgrad.models.new_head.shapes import as_named, asked_overlap
from stepgrad.models.new_head.start import start
from stepgrad.number_text import per_cent
from stepgrad.overlaps import Overlap
from stepgrad.progress import Watch, bar


@dataclass(frozen=True)
class NewHead:
    """The result of `train_new_head`."""

    model: Any
    """The model that was passed in; it now detects the new classes."""
    tuned: FineTuned
    """The result of `finetune`: numbers of every way on held-out images, and which way was kept."""
    class_names: tuple[str, ...]
    first_label: int
    """What the model calls the first class: 1 where 0 is background."""
    whole: float
    """mAP of the model as a whole on held-out images, by its own inference: with its own score threshold, its own limit
    of detections, and all windows."""

    thresholds: dict[str, float]
    """By class, the score of the model from which F1 is best on held-out images, at the protocol's first IoU. Classes of
    which no object was found have none."""

    @property
    def names(self) -> dict[int, str]:
        """The class names by the labels that the model gives."""
        return {label: name for label, name in enumerate(self.class_names, self.first_label)}

    def passes(self, labels: Tensor, scores: Tensor) -> Tensor:
        """(N,) which of the model's detections reach the threshold of their class; none does where there is no threshold."""
        least = [self.thresholds.get(self.names.get(int(label), ""), math.inf) for label in labels]
        return scores >= torch.tensor(least, dtype=torch.float64, device=scores.device)

    def __str__(self) -> str:
        judged = self.tuned.ways[self.tuned.chosen].val[0]
        return (
            f"{self.tuned.summary}\nThe model as a whole has {per_cent(self.whole)} points of {self.tuned.protocol} on held-out "
            f"images ({per_cent(judged)} on the windows that were kept).\n"
            f"{thresholds_text(self.thresholds, self.tuned.protocol)} Another threshold may show far too much or too little."
        )


@torch.inference_mode(False)  # in which nothing could be trained
def train_new_head(
    model: Any,
    train_data: LabelledData,
    val_data: LabelledData,
    *,
    test_data: LabelledData | None = None,
    num_classes: int | None = None,
    class_names: Sequence[str] | None = None,
    out: str | Path | None = None,
    protocol: str | Protocol = "coco",
    task: str | Overlap = "boxes",
    windows: int = 300,
    others: int = 100,
    rounds: int = 2,
    centre_only: bool = False,
    processor: Any = None,
    image_size: int = 640,
    dtype: torch.dtype = torch.float16,
    start_steps: int = 2000,
    start_rates: Sequence[float] = (1e-3, 1e-2),
    weight_decays: Sequence[float] = (0.1, 1.0),
    labels: str | None = None,
    seed: int = 0,
    progress: bool = True,
    **options: Any,
) -> NewHead:
    """Give a trained detector new classes: its last class layer is trained again, everything else stays as it is.

    The detector runs once over all images; features and boxes of its best windows are kept. On these a new last class
    layer is fully trained by cross-entropy, then for mAP and for a control of equal budget (`finetune`). The better one goes
    into the model, which then detects the new classes. Until then the model is unchanged.

    Args:
        model: a detector of torchvision (SSD, SSDlite, RetinaNet, FCOS, Faster, Mask or Keypoint R-CNN), a DETR-style one of
            transformers, or a YOLO of ultralytics (v8, 11; for detection, segmentation, pose or oriented boxes).
        train_data: images (3, H, W), uint8 or in [0, 1], each with a target: boxes in pixels, and labels in [0, K). The
            datasets of `stepgrad.data` are such.
        val_data: held-out images in the same form, by which the rates and the way to train are chosen.
        test_data: images in the same form, used once, at the end; None: no such images.
        num_classes: K. None: as many as `class_names`, or as `train_data` has.
        class_names: None: those of `train_data`, or numbers.
        out: a folder for features, trained layers and a report; the same call continues from there. A call with another
            model, other images or targets, or other settings is refused there. None: memory only.
        protocol: what mAP means.
        task: what windows and objects are compared by: "boxes"; "masks", "keypoints" or "oriented" (or one of `sg.overlaps`) of
            a model that predicts them: then targets have them, too, and the new classes learn how well they fit. Masks, poses and
            angles stay those of the model. A Mask R-CNN has a mask for each of its old classes; the surest one is taken.
        windows: number of windows per image: those with the highest scores of the detector as it is.
        others: number of further windows per image, drawn at random.
        rounds: passes over the images. Each after the first adds, per image, the `windows` that a layer trained on the
            windows before scores highest: the new layer will score all windows, and has to learn from its own mistakes.
        centre_only: where the last class layer is a convolution of 3 x 3, the new one sees its centre only: a ninth of
            the features, for less memory.
        processor: the image processor of a model of transformers. None: the model takes images as they are.
        image_size: longer side of the images for a YOLO; other models resize images themselves.
        dtype: dtype of the features that are kept.
        start_steps: number of cross-entropy steps, of 8 images each.
        start_rates: learning rates of AdamW to try for cross-entropy.
        weight_decays: weight decays to try for cross-entropy.
        labels: labels of cross-entropy, see `finetune`. None: "aligned" where classes have a sigmoid each and NMS comes after,
            "soft" where it does not, "hard" for a softmax with background.
        seed: seed of the layer's first weights and of the order of images.
        progress: show a bar on a terminal, and lines where there is none.
        options: options of `finetune`.
    """
    again = partial(frozen_detector, centre_only=centre_only, processor=processor, image_size=image_size)
    detector = again(model)
    _check_precision(detector)
    names = _class_names(train_data, num_classes, class_names)
    choice = WindowChoice(whole_number("windows", windows, least=1), whole_number("others", others, least=0))
    whole_number("rounds", rounds, least=1)
    whole_number("seed", seed, least=0)
    plans = _start_plans(start_steps, start_rates, weight_decays)
    given = {"train": _checked("train_data", train_data), "val": _checked("val_data", val_data)}
    if test_data is not None:
        given["test"] = _checked("test_data", test_data)
    overlap = asked_overlap(task, detector)
    if options.get("refit") is not None:
        raise ConfigError(
            "refit trains a correction with a hidden layer, which no last class layer can hold; leave it out."
        )
    kind = labels or _usual_labels(detector)
    reading = Reading(len(names), detector.background, labels=kind)
    folder = None if out is None else Path(out)
    lock = nullcontext() if folder is None else only_writer(folder, "wait until it has finished, or choose another out")
    aim = Task(
        reading,
        get_protocol(protocol),
        detector.nms_threshold,
        reading.stock_loss,
        names,
        by_table=overlap is not None,
    )
    check_options(aim, options)
    seen_by = {  # all that features depend on, but the data
        "model": detector.model,
        "num_classes": len(names),
        "windows": choice.best,
        "others": choice.others,
        "centre_only": centre_only,
        "processor": processor.to_dict() if hasattr(processor, "to_dict") else processor,
        "image_size": image_size,
        "dtype": dtype,
        **({} if overlap is None else {"task": repr(overlap)}),
    }
    with lock, bar(progress) as watch:
        reader = WindowReader(
            None if folder is None else folder / "features", given, choice, dtype, len(names), watch, overlap
        )
        reader.claim(seen_by)
        rounds = 1 if detector.keeps_all else rounds
        layer, decay, images = start(detector, again, reader, aim, plans, seed, rounds, folder)
        tuned = finetune(
            layer,
            images["train"],
            images["val"],
            protocol=protocol,
            nms_threshold=detector.nms_threshold,
            background=detector.background,
            labels=kind,
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
        whole = _whole(detector, val_data, aim, overlap, watch)
        thresholds = best_thresholds(whole)
        return NewHead(model, tuned, tuple(names), detector.first_label, whole.map, thresholds)


def frozen_detector(
    model: Any, centre_only: bool = False, processor: Any = None, image_size: int = 640
) -> FrozenDetector:
    """The model as a new last class layer sees it; ConfigError for models that are not known."""
    origin = {kind.__module__.partition(".")[0] for kind in type(model).__mro__}
    if "torchvision" in origin:
        from stepgrad.models.torchvision.frozen import torchvision_detector

        return torchvision_detector(model, centre_only)
    if "transformers" in origin:
        from stepgrad.models.detr.frozen import QueryDetector

        return QueryDetector(model, processor)
    if "ultralytics" in origin:
        from stepgrad.models.yolo.frozen import YOLODetector

        return YOLODetector(model, image_size)
    hint = "; pass the model inside it" if isinstance(model, nn.Module) and hasattr(model, "module") else ""
    raise ConfigError(
        f"Expected a detector of torchvision, transformers or ultralytics but got {type(model).__name__}{hint}."
    )


def _start_plans(steps: int, rates: Sequence[float], decays: Sequence[float]) -> list[Plan]:
    """Cross-entropy with every rate and every weight decay."""
    whole_number("start_steps", steps, least=1)
    plans = [Plan("stock", steps, STOCK_IMAGES, rate, decay) for rate in rates for decay in decays]
    if not plans:
        raise ConfigError(
            f"Expected at least one of start_rates and of weight_decays but got {list(rates)} and {list(decays)}."
        )
    return plans


def _check_precision(detector: FrozenDetector) -> None:
    """Raise ConfigError where the model's own NMS would fail: on a CPU it has no half precision."""
    weights: Tensor = next(detector.model.parameters())
    half = weights.dtype in (torch.float16, torch.bfloat16)
    if half and weights.device.type == "cpu" and detector.nms_threshold is not None:
        raise ConfigError(
            f"Expected a model in float32 or float64 but got {str(weights.dtype).removeprefix('torch.')}, for which there is "
            "no NMS on a CPU; call model.float() first."
        )


def _usual_labels(detector: FrozenDetector) -> str:
    """The best that fit: aligned labels leave ten windows of an object high, which is for NMS to clear."""
    if detector.background is not None:
        return "hard"
    return "soft" if detector.nms_threshold is None else "aligned"


def _whole(
    detector: FrozenDetector, data: LabelledData, task: Task, overlap: Overlap | None, watch: Watch
) -> EvaluationResult:
    """What the model as a whole finds, with the new layer in it, on held-out images."""
    evaluator = Evaluator(task.reading.num_classes, task.protocol, task.class_names, task=overlap or "boxes")
    with as_used(detector.model):
        for n in range(len(data)):
            image, target = pair(data, n, "val", overlap)
            evaluator.update([as_named(detector.detect(image), overlap)], [as_named(target, overlap)])
            watch("the model as a whole", n + 1, len(data))
    return evaluator.compute()


def _with_pictures(data: Any) -> Any:
    """The data, if the report can show its pictures: a dataset of stepgrad.data."""
    return data if hasattr(data, "ids") and hasattr(data, "source") else None


def _checked(name: str, data: LabelledData) -> LabelledData:
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise InputError(f"Expected {name} to be a list or a dataset with a length but got {type(data).__name__}.")
    if len(data) == 0:
        raise InputError(f"Expected {name} to hold at least one image but it is empty.")
    return data


def _class_names(data: LabelledData, num_classes: int | None, class_names: Sequence[str] | None) -> list[str]:
    names = class_names if class_names is not None else getattr(data, "class_names", None)
    if num_classes is None:
        if names is None:
            raise ConfigError(
                "Expected num_classes, since neither class_names nor the data gives it; labels are in [0, num_classes)."
            )
        return list(names)
    count = whole_number("num_classes", num_classes, least=1)
    if names is not None and len(names) != count:
        raise ConfigError(f"Expected as many class_names as num_classes, {count}, but got {len(names)}.")
    return list(names) if names is not None else [str(k) for k in range(count)]
