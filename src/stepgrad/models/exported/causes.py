"""The way from one pipeline to another in steps, each of which changes one thing: what a difference of mAP is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stepgrad.models.exported.layouts import Array, Windows
from stepgrad.models.exported.limits import Detected, choose
from stepgrad.models.exported.pipeline import Pipeline
from stepgrad.models.exported.recipe import LIMITS, PREPARATION, Recipe, shown

SAME_PLACE = 0.5
"""The IoU from which on two detections of a class are the same object."""


@dataclass(frozen=True)
class CauseStage:
    """Detections on the way, by the change that leads to them."""

    cause: str
    group: str
    """preprocessing, network, quantisation, or NMS and limits."""
    before: str
    after: str
    windows: Callable[[Views], Windows]
    limits: Recipe
    labelled_by: Pipeline

    def detect(self, views: Views) -> Detected:
        """The detections of this stage in one picture."""
        found = choose(self.windows(views), self.limits)
        return self.labelled_by.known(found, views.picture.size)


class Views:
    """What networks say of one picture; each is asked once for each input."""

    def __init__(self, picture: Image.Image) -> None:
        self.picture = picture
        self.known: dict[tuple[int, Recipe], Windows] = {}

    def of(self, pipeline: Pipeline, recipe: Recipe) -> Windows:
        """The windows of a pipeline's network after the preprocessing of a recipe."""
        usual = Recipe()
        key = id(pipeline.network), replace(recipe, **{name: getattr(usual, name) for name in LIMITS})
        if key not in self.known:
            self.known[key] = pipeline.windows(self.picture, recipe)
        return self.known[key]


def stages_between(start: Pipeline, end: Pipeline) -> list[CauseStage]:
    """The stages from one pipeline to the other; the first is `start` itself, the last `end`."""
    return list(_stages(start, end))


def _stages(start: Pipeline, end: Pipeline) -> Iterator[CauseStage]:
    recipe = start.recipe
    yield CauseStage("", "", "", "", _asking(start, recipe), recipe, start)
    for name in _first_changes(start, end):
        recipe, words = _changed(recipe, end.recipe, name)
        yield CauseStage(name, "preprocessing", *words, _asking(start, recipe), recipe, start)
    limits = recipe
    now, windows = start, _asking(start, recipe)
    for network, group, what in _networks(start, end):
        if network.recipe is not start.recipe:
            recipe = replace(recipe, **{name: getattr(end.recipe, name) for name in PREPARATION})
        if network.layout.dense != now.layout.dense:
            limits = end.recipe  # one of them needs NMS, the other does not
        then = _asking(network, recipe)
        names = start.network.name, end.network.name
        if network.labels.shape == now.labels.shape and (network.labels == now.labels).all():
            yield CauseStage(
                f"{what}boxes", group, *names, _mixed(windows, then, limits, _rows_agree(now, network)), limits, network
            )
            yield CauseStage(f"{what}scores", group, *names, then, limits, network)
        else:
            yield CauseStage(f"{what}boxes and scores", group, *names, then, limits, network)
        now, windows = network, then
    for name in LIMITS:
        if getattr(limits, name) != getattr(end.recipe, name):
            limits, words = _changed(limits, end.recipe, name)
            yield CauseStage(name, "NMS and limits", *words, windows, limits, end)


def _first_changes(start: Pipeline, end: Pipeline) -> list[str]:
    """Preprocessing that differs and that the first network can take; what it cannot changes with the network."""
    differing = [name for name in PREPARATION if getattr(start.recipe, name) != getattr(end.recipe, name)]
    if start.network.size is not None:
        fits = end.recipe.resize in ("letterbox", "stretch")
        differing = [name for name in differing if name != "size" and (name != "resize" or fits)]
    if start.network.bytes_in != end.network.bytes_in:
        differing = [name for name in differing if name != "scale"]
    return differing


def _changed(recipe: Recipe, target: Recipe, name: str) -> tuple[Recipe, tuple[str, str]]:
    before, after = getattr(recipe, name), getattr(target, name)
    return replace(recipe, **{name: after}), (shown(name, before), shown(name, after))


def _networks(start: Pipeline, end: Pipeline) -> Iterator[tuple[Pipeline, str, str]]:
    """The networks on the way, each with the group and the words for the change that leads to it.

    Where one is quantised, its activations are rounded in a step of their own, if its file can be taken apart so.
    """
    if start.network is end.network:
        return
    now = start
    for which in (start, end):
        plain = which.network.activations_in_float()
        if plain is None:
            continue
        between = replace(which, network=plain)
        if which is start:
            yield between, "quantisation", "activations: "
            now = between
        else:
            yield between, "quantisation", "weights: "
            yield end, "quantisation", "activations: "
            return
    quantised = now.network.rounded or end.network.rounded or now is not start
    yield end, "quantisation" if quantised else "network", "weights: " if now is not start else ""


def _asking(pipeline: Pipeline, recipe: Recipe) -> Callable[[Views], Windows]:
    return lambda views: views.of(pipeline, recipe)


def _rows_agree(a: Pipeline, b: Pipeline) -> bool:
    """Whether row n is the same place of the picture for both."""
    return a.layout.kind == b.layout.kind and a.layout.dense and a.recipe.size == b.recipe.size


def _mixed(
    scored: Callable[[Views], Windows], boxed: Callable[[Views], Windows], limits: Recipe, rows_agree: bool
) -> Callable[[Views], Windows]:
    """Scores of the one and boxes of the other."""

    def mixed(views: Views) -> Windows:
        a, b = scored(views), boxed(views)
        if rows_agree and a.boxes.shape == b.boxes.shape:
            return Windows(b.boxes, a.scores, a.labels)
        one, other = (choose(windows, limits) for windows in (a, b))
        partner = partners(one, other)
        boxes = one.boxes.copy()
        boxes[partner >= 0] = other.boxes[partner[partner >= 0]]
        return Windows(boxes, one.scores, one.labels)

    return mixed


def partners(a: Detected, b: Detected) -> NDArray[np.int64]:
    """For each detection of `a` the row of the same object in `b`, or -1; each of `b` once, best overlaps by decreasing score."""
    found = np.full(len(a.scores), -1, dtype=np.int64)
    free = np.ones(len(b.scores), dtype=bool)
    for row in np.argsort(-a.scores, kind="stable"):
        near = np.flatnonzero(free & (b.labels == a.labels[row]))
        if len(near) == 0:
            continue
        overlaps = _overlaps(a.boxes[row], b.boxes[near])
        best = int(overlaps.argmax())
        if overlaps[best] >= SAME_PLACE:
            found[row] = near[best]
            free[near[best]] = False
    return found


def _overlaps(box: Array, others: Array) -> Array:
    """IoU of one box with each of others."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.maximum(high - low, 0.0).prod(axis=1)
    areas = (box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(axis=1)
    whole: Array = areas - shared
    return np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0.0)
