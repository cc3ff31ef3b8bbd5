"""`finetune`: the recipe of docs/fine_tuning.md as one call."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from inspect import signature
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stepgrad.errors import ConfigError, InputError, LikelyMistakeWarning
from stepgrad.evaluation.result import best_thresholds
from stepgrad.locks import only_writer
from stepgrad.metric.protocol import Protocol, get_protocol
from stepgrad.models.fine_tuning.folder import FinishedHeads, by_value
from stepgrad.models.fine_tuning.outputs import Reading, UsualLoss
from stepgrad.models.fine_tuning.result import FineTuned, choose
from stepgrad.models.fine_tuning.training import Task, detections, outputs_of
from stepgrad.models.fine_tuning.ways import Budget, FineTuning, Refit, with_test
from stepgrad.models.fine_tuning.windows import ImageWindows, Labelled, checked, images_by_value, labelled
from stepgrad.progress import Watch, bar

if TYPE_CHECKING:
    from stepgrad.data.base import DetectionDataset

_BUDGET = ("steps", "images_per_step", "rates", "stock_rates", "seeds")
_ALSO_FREE = ("fresh_images", "stock_loss", "refit", "folds")
"""Options, besides those of the budget, that a caller of `finetune` leaves to its own caller."""


@torch.inference_mode(False)  # in which nothing could be trained
def finetune(
    head: nn.Module,
    train_images: Sequence[ImageWindows],
    val_images: Sequence[ImageWindows],
    *,
    test_images: Sequence[ImageWindows] | None = None,
    fresh_images: Sequence[ImageWindows] | None = None,
    refit: Refit | None = None,
    folds: int = 4,
    protocol: str | Protocol = "coco",
    nms_threshold: float | None = 0.5,
    background: str | None = None,
    labels: str = "hard",
    stock_loss: UsualLoss | None = None,
    steps: int = 100,
    images_per_step: int = 32,
    rates: Sequence[float] = (1e-3, 3e-3, 1e-2),
    stock_rates: Sequence[float] = (3e-4, 1e-3, 3e-3),
    stock_weight_decay: float = 0.0,
    seeds: Sequence[int] = (0, 1, 2),
    class_names: Sequence[str] | None = None,
    out: str | Path | None = None,
    pictures: DetectionDataset | None = None,
    watch: Watch | None = None,
    progress: bool = True,
    **loss_options: Any,
) -> FineTuned:
    """Fine-tune a trained class head for mAP, compare with a control of equal budget, and keep the better one.

    Three ways start from the head's weights: no training, more of the usual loss, and mAP on as many images. Each chooses its
    best rate of a grid on held-out images with the first seed, then trains with every seed. The head trained for mAP is kept
    if it gains more on held-out images than its gain varies over seeds and with the choice of these images; otherwise the
    better of the other two is kept.

    Args:
        head: a trained module from features (N, F) to outputs (N, K), or (N, K + 1) with a background column.
        train_images: per image (features, boxes, target): see `ImageWindows`.
        val_images: held-out images, by which the rates and the way are chosen.
        test_images: used once, at the end, to measure every way; None: no such images.
        fresh_images: labelled images that the head was not trained on, if there are some: mAP trains on these, the
            control on these and `train_images`.
        refit: for use without fresh images: a function that trains a new head on the images it is given. A fourth way then
            trains a correction for mAP on scores of heads that did not see the image.
        folds: number of heads that `refit` trains.
        protocol: what mAP means.
        nms_threshold: of the detector that the head belongs to.
        background: None, "first" or "last": the column of the outputs that is background.
        labels: the label of a hit in the usual loss: "hard", 1; "soft", its IoU, as in varifocal loss; "aligned", as in YOLOv8,
            the best of the three in all trials. With background only "hard".
        stock_loss: the usual loss, a function of the outputs for all windows of some images, and of these images. None:
            cross-entropy, where a window shows an object from IoU 0.5.
        steps: number of training steps for mAP.
        images_per_step: number of images per step for mAP; the usual loss takes more steps, of 8 images each.
        rates: learning rates of Adam to try for mAP.
        stock_rates: learning rates of Adam to try for the usual loss.
        stock_weight_decay: weight decay of AdamW for the usual loss: the one the head was trained with.
        seeds: seeds of the order of images, no two of them equal. The spread over seeds shows whether a gain is more than luck.
        class_names: for the report.
        out: a folder for the report and for finished trainings, with which the same call continues. A call with another head,
            other images or other settings is refused there; of your own functions it knows the names only.
        pictures: the dataset of `test_images`, or without them of `val_images`, in order: for pictures in the report.
        watch: is called with the name of the present training, its steps so far and its total steps.
        progress: without `watch`, show a bar on a terminal, and lines where there is none.
        loss_options: options of `MAPLoss`.

    >>> g = torch.Generator().manual_seed(0)
    >>> def image():
    ...     corner = 80 * torch.rand(12, 2, generator=g)
    ...     boxes = torch.cat([corner, corner + 20], dim=1)
    ...     target = {"boxes": boxes[:1], "labels": torch.tensor([0])}
    ...     return ImageWindows(torch.randn(12, 3, generator=g) + 2 * (torch.arange(12) == 0)[:, None], boxes, target)
    >>> images = [image() for _ in range(40)]
    >>> _ = torch.manual_seed(0)
    >>> budget = {"steps": 10, "images_per_step": 8, "rates": [0.1], "stock_rates": [0.1], "seeds": [0, 1]}
    >>> tuned = finetune(nn.Linear(3, 1), images[:30], images[30:], **budget)
    >>> tuned.chosen, list(tuned.ways)
    ('more of the usual loss', ['start', 'more of the usual loss', 'mAP'])
    """
    head = _own_copy(head)
    reading = Reading(_columns(head, train_images) - (background is not None), background, labels=labels)
    task = Task(
        reading, get_protocol(protocol), nms_threshold, stock_loss or reading.stock_loss, class_names, loss_options
    )
    task.check()
    given = {"train": train_images, "val": val_images, "test": test_images, "fresh": fresh_images}
    images = {
        name: labelled(f"{name}_images", part, reading.num_classes) for name, part in given.items() if part is not None
    }
    task = replace(task, by_table=images["train"][0].table is not None)
    _warn_of_background(chain(*images.values()), reading)
    budget = Budget(steps, images_per_step, rates, stock_rates, seeds, stock_weight_decay)
    folder = None if out is None else Path(out)
    lock = nullcontext() if folder is None else only_writer(folder, "wait until it has finished, or choose another out")
    with lock, bar(progress and watch is None) as shown:
        settings = {} if folder is None else _settings(head, images, task, budget, refit, folds)
        records = FinishedHeads(folder, settings)
        known = images["train"], images["val"], images.get("fresh")
        ways = FineTuning(head, *known, task, budget, records, watch or shown).run(refit, folds)
        chosen = choose(ways)  # by held-out images; test images are looked at once, after that
        if "test" in images:
            ways = {name: with_test(way, images["test"], task) for name, way in ways.items()}
        kept = ways[chosen].heads[0]
        cuts = best_thresholds(detections(kept, images["val"], task).compute())
        thresholds = {name: reading.probability(score) for name, score in cuts.items()}
        tuned = FineTuned(kept, chosen, ways, task.protocol.name, thresholds=thresholds)
        if folder is None:
            return tuned
        from stepgrad.models.fine_tuning.report import write

        return replace(tuned, report=write(folder, tuned, images, task, pictures, settings))


def check_options(task: Task, options: Mapping[str, Any]) -> None:
    """Raise ConfigError unless `finetune` can work with the options, for a caller that works for hours before it.

    Args:
        task: what the caller trains for.
        options: of `finetune`; those of the loss are among them.
    """
    own = {name: p.default for name, p in signature(finetune).parameters.items() if p.kind is p.KEYWORD_ONLY}
    taken = [name for name in options if name in own and name not in (*_BUDGET, *_ALSO_FREE)]
    if taken:
        raise ConfigError(
            f"Expected options without {taken[0]}, which follows from the detector and its data; leave it out."
        )
    Budget(**{name: options.get(name, own[name]) for name in _BUDGET})
    replace(task, loss_options={name: value for name, value in options.items() if name not in own}).check()


def _own_copy(head: nn.Module) -> nn.Module:
    """In eval mode. What is kept may be the start, or have it inside: nobody else may change its weights or its mode."""
    if not isinstance(head, nn.Module) or next(head.parameters(), None) is None:
        raise InputError(f"Expected head to be a torch.nn.Module with weights but got {type(head).__name__}.")
    return copy.deepcopy(head).eval()


def _columns(head: nn.Module, images: Sequence[ImageWindows]) -> int:
    """Of the head's outputs, by asking it."""
    first = checked("train_images", images)[:1]
    with torch.no_grad():
        outputs = outputs_of(head, first)
    if outputs.ndim != 2 or len(outputs) != len(first[0].features):
        raise InputError(f"Expected the head's outputs to be (N, K) for N windows but got {list(outputs.shape)}.")
    return outputs.shape[1]


def _warn_of_background(images: Iterable[Labelled], reading: Reading) -> None:
    """A first or last column that no object belongs to is most likely background."""
    seen = {label for image in images for label in image.target["labels"].tolist()}
    outer = {"first": 0, "last": reading.num_classes - 1}
    empty = [name for name, column in outer.items() if column not in seen]
    if reading.background is None and reading.num_classes > 1 and len(empty) == 1:
        warnings.warn(
            f"No object of any image has label {outer[empty[0]]}, the {empty[0]} of the head's {reading.num_classes} columns: "
            f'if that column is background, pass background="{empty[0]}".',
            LikelyMistakeWarning,
            stacklevel=3,
        )


def _settings(
    head: nn.Module,
    images: Mapping[str, list[Labelled]],
    task: Task,
    budget: Budget,
    refit: Refit | None,
    folds: int,
) -> dict[str, Any]:
    """All that the trainings depend on, but the code of `stock_loss` and `refit`."""
    settings: dict[str, Any] = by_value(
        {
            "head": head,
            "frozen weights": [name for name, weight in head.named_parameters() if not weight.requires_grad],
            **{f"{name}_images": images_by_value(images.get(name)) for name in ("train", "val", "test", "fresh")},
            "protocol": task.protocol,
            "nms_threshold": task.nms_threshold,
            "background": task.reading.background,
            "labels": task.reading.labels,
            "stock_loss": None if task.stock_loss == task.reading.stock_loss else task.stock_loss,
            "loss_options": task.loss_options,
            **vars(budget),
            "refit": refit,
            "folds": folds if refit else None,
        }
    )
    return settings
