"""A network with all that happens before and after it: from pictures to detections of the data's classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stepgrad.data.base import DetectionDataset
from stepgrad.data.read_detections import FileDetections
from stepgrad.errors import ConfigError
from stepgrad.evaluation.records import Detections
from stepgrad.models.exported.class_names import labels_of
from stepgrad.models.exported.layouts import Layout, Windows, recognise
from stepgrad.models.exported.limits import Detected, choose
from stepgrad.models.exported.network import Network, open_network
from stepgrad.models.exported.pixels import prepare
from stepgrad.models.exported.recipe import Recipe, with_options


@dataclass(frozen=True)
class Pipeline:
    """What makes detections of pictures."""

    network: Network
    layout: Layout
    recipe: Recipe
    labels: NDArray[np.int64]
    """The label in the data of each of its classes, -1 for none."""

    def windows(self, picture: Image.Image, recipe: Recipe | None = None) -> Windows:
        """What the network says of a picture, by this recipe or another; classes the data has not are still there."""
        pixels, placed = prepare(picture, recipe or self.recipe)
        return self.layout.read(self.network(pixels, picture.size), placed)

    def known(self, found: Detected, size: tuple[int, int]) -> Detected:
        """Detections of the data's classes, cut at the border of a picture of this width and height; none is empty."""
        inside = (found.labels >= 0) & (found.labels < len(self.labels))
        found = found.take(inside)
        found = replace(found, labels=self.labels[found.labels], boxes=np.clip(found.boxes, 0.0, np.tile(size, 2)))
        return found.take((found.labels >= 0) & (found.boxes[:, 2:] >= found.boxes[:, :2]).all(axis=1))

    def detect(self, picture: Image.Image) -> Detected:
        """Its detections in one picture."""
        return self.known(choose(self.windows(picture), self.recipe), picture.size)

    def __str__(self) -> str:
        return f"{self.network.name}: {self.layout.kind}, {self.recipe}"


def open_pipeline(
    path: str | Path,
    class_names: Sequence[str],
    words: Sequence[str] = (),
    model_classes: Sequence[str] | None = None,
    option: str = "recipe",
) -> Pipeline:
    """The pipeline of a model on data with these classes.

    Args:
        path: an exported model .onnx, or weights .pt of ultralytics.
        class_names: the classes of the data.
        words: changes of the usual recipe, such as `kernel=nearest`.
        model_classes: the classes of the model, if its file does not name them.
        option: the option that the words come from, for messages.
    """
    network = open_network(path)
    names = model_classes or network.class_names
    trial = _fitting(network, with_options(Recipe(), words, option), words, option)
    trial = replace(trial, size=trial.size if trial.resize != "none" else (640, 640), resize="stretch")
    pixels, _ = prepare(Image.new("RGB", (trial.size[1], trial.size[0]), (114, 114, 114)), trial)
    outputs = network(pixels, (trial.size[1], trial.size[0]))
    layout = recognise(outputs, trial.size, None if names is None else len(names), network.name, network.sizes_given)
    recipe = with_options(_usual(network, layout), words, option)
    layout = replace(layout, first_label=recipe.first_label)
    labels, _ = labels_of(names, layout.classes, class_names, network.name)
    return Pipeline(network, layout, _fitting(network, recipe, words, option), labels)


def _usual(network: Network, layout: Layout) -> Recipe:
    """What is usual for a layout."""
    size = network.size or network.usual_size or (640, 640)
    scale = 1.0 if network.bytes_in else 255.0
    if layout.kind in ("v5", "v8", "end-to-end"):
        return Recipe(size=size, scale=scale, nms=0.7 if layout.dense else None)
    fixed = network.size is not None
    if layout.kind == "detr":
        resize, size = ("stretch", size) if fixed else ("short", (800, 800))
        return Recipe(resize, size, "pillow-linear", 0, "rgb", scale, "imagenet", 0.001, True, None)
    if network.sizes_given:  # RT-DETR and its kin
        return Recipe("stretch", size, "pillow-linear", 0, "rgb", scale, nms=None, first_label=0)
    return Recipe(
        "stretch" if fixed else "none", size, "pillow-linear", 0, "rgb", scale, nms=None
    )  # torchvision resizes itself


def _fitting(network: Network, recipe: Recipe, words: Sequence[str], option: str) -> Recipe:
    """The recipe with the input size of the network, where that is fixed."""
    if network.size is None:
        said = any(word.startswith("size=") for word in words)
        return recipe if said or network.usual_size is None else replace(recipe, size=network.usual_size)
    if any(word.startswith("size=") for word in words) and recipe.size != network.size:
        raise ConfigError(
            f"{option}: {network.name} takes pictures of {network.size[0]} x {network.size[1]} pixels only; leave size out, or "
            "export it with a dynamic input"
        )
    if recipe.resize in ("rect", "short", "none"):
        raise ConfigError(
            f"{option}: resize={recipe.resize} needs an input of any size, but {network.name} takes "
            f"{network.size[0]} x {network.size[1]} pixels only; expected letterbox or stretch"
        )
    return replace(recipe, size=network.size)


def detect_all(
    pipeline: Pipeline, dataset: DetectionDataset, tick: Callable[[], object] = lambda: None
) -> FileDetections:
    """The detections of every picture of the data."""
    every = []
    for i in range(len(dataset)):
        every.append(pipeline.detect(dataset.image(i)))
        tick()
    return as_detections(every)


def as_detections(of_images: Sequence[Detected]) -> FileDetections:
    """The detections of all images as the evaluator takes them."""
    images = np.repeat(np.arange(len(of_images), dtype=np.int32), [len(found.scores) for found in of_images])
    none = Detected(np.zeros((0, 4)), np.zeros(0), np.zeros(0, dtype=np.int64))
    boxes, scores, labels = (
        np.concatenate([getattr(none, name), *(getattr(found, name) for found in of_images)])
        for name in ("boxes", "scores", "labels")
    )
    return FileDetections(Detections(images, labels, scores, boxes), inclusive=False)
