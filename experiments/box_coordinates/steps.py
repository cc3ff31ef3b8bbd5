"""Nearest steps and pseudogradients of mAP after NMS in every coordinate of every box of a batch.

mAP is piecewise constant in the boxes as it is in the scores: it changes where an overlap crosses the match threshold or the
NMS threshold, or where another object becomes the best overlapped. All such places along a coordinate are roots of linear
and quadratic equations (places.py); between two of them the metric is constant and evaluated once (walk.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.box_coordinates.scene import Image, Rest, Rule, Rules, make_image, roles_now
from experiments.box_coordinates.walk import Found, search_image
from stepgrad.engine.jit import explain_wait
from stepgrad.engine.matching import ABSENT, IGNORED, TRUE_POSITIVE
from stepgrad.engine.order import descending_order
from stepgrad.errors import ConfigError, one_of, real_number
from stepgrad.metric.batch import Batch, Target, make_batch
from stepgrad.metric.options import check_nms_threshold, resolve_protocol
from stepgrad.metric.protocol import Protocol
from stepgrad.steps.estimators import check_min_step, mee, sde
from stepgrad.threads import run_threads

_NO_NMS = 2.0  # no IoU exceeds it


@dataclass(frozen=True)
class BoxMethod:
    """How a pseudogradient in box coordinates is taken. Lengths are shares of the box's side along the coordinate.

    Args:
        estimator: "mee", "sde" or "radius".
        radius: of the radius estimator; below 1, so that no box turns inside out.
        min_step: lower bound on the distance to a step where there is one on one side only.
        reach: steps farther away do not count; math.inf: all do. Without meaning for the radius estimator.

    A side of length zero has nothing within any share of it: no step, no gradient.
    """

    estimator: str = "mee"
    radius: float = 0.1
    min_step: float = 0.02
    reach: float = 0.5

    def __post_init__(self) -> None:
        one_of("the boxes' estimator", self.estimator, ["mee", "sde", "radius"])
        object.__setattr__(self, "min_step", check_min_step(self.min_step))
        object.__setattr__(self, "radius", real_number("the boxes' radius", self.radius))
        object.__setattr__(self, "reach", real_number("the boxes' reach", self.reach))
        if not 0.0 < self.radius < 1.0:
            raise ConfigError(
                f"Expected the boxes' radius to be in (0, 1), a share of the side, but got {self.radius!r}."
            )
        if not self.reach > 0.0:
            raise ConfigError(f"Expected the boxes' reach to be > 0 but got {self.reach!r}.")


@dataclass(frozen=True)
class BoxSteps:
    """Per class AP and, per window, class and coordinate x1, y1, x2, y2, the nearest steps of that class's AP.

    Lists hold one (N, K, 4) float64 tensor per image. up_at = +inf and down_at = -inf where there is no step; the value
    beyond is then the present one.
    """

    value: Tensor  # (K,)
    up_at: list[Tensor]
    up_value: list[Tensor]
    down_at: list[Tensor]
    down_value: list[Tensor]


@dataclass(frozen=True)
class Counted:
    """A batch, and how it is counted."""

    batch: Batch
    protocol: Protocol
    nms_threshold: float | None

    def class_boxes(self, c: int) -> NDArray[np.float64]:
        """(N, 4) boxes as class c sees them."""
        return np.ascontiguousarray(self.batch.boxes[:, c]) if self.batch.boxes_by_class else self.batch.boxes


@dataclass(frozen=True)
class _OneClass:
    """The images of a class with what is left of the batch around each of them."""

    images: list[Image]
    windows: list[NDArray[np.int64]]  # which window of the batch each of an image's is
    P: int


def _class_images(counted: Counted, c: int) -> _OneClass:
    batch, protocol = counted.batch, counted.protocol
    boxes = counted.class_boxes(c)
    order = descending_order(np.ascontiguousarray(batch.scores[:, c])).astype(np.int64)
    image_of = np.searchsorted(batch.offsets, order, side="right") - 1
    chosen = batch.object_labels == c
    crowd = batch.crowd & (protocol.duplicates == "best_free")
    ignored = crowd | (batch.difficult & (protocol.difficult == "ignore"))
    threshold = _NO_NMS if counted.nms_threshold is None else counted.nms_threshold
    images, windows = [], []
    for i in range(batch.images):
        position = np.flatnonzero(image_of == i)
        own, mine = order[position], np.flatnonzero(chosen & (batch.object_images == i))
        objects = batch.object_boxes[mine], ignored[mine], crowd[mine]
        images.append(make_image(boxes[own], position, *objects, threshold, float(protocol.pixel_offset)))
        windows.append(own)
    return _OneClass(images, windows, int(np.count_nonzero(chosen & ~ignored)))


def _rests(images: Sequence[Image], roles: Sequence[NDArray[np.int8]]) -> list[Rest]:
    """For each image, the counted detections of the others."""
    position = np.concatenate([np.zeros(0, dtype=np.int64), *(image.position for image in images)])
    role = np.concatenate([np.zeros(0, dtype=np.int8), *roles])
    owner = np.repeat(np.arange(len(images)), [len(r) for r in roles])
    by_rank = np.argsort(position)
    listed = by_rank[(role[by_rank] != ABSENT) & (role[by_rank] != IGNORED)]
    found = []
    for i, image in enumerate(images):
        others = listed[owner[listed] != i]
        true = np.flatnonzero(role[others] == TRUE_POSITIVE)
        found.append(Rest(position[others[true]], true + 1, np.searchsorted(position[others], image.position)))
    return found


def _search_class(counted: Counted, scene: _OneClass, rule: Rule, reach: float, radius: float) -> tuple[float, Found]:
    """AP of a class at one threshold, and what the search found, by window of the batch; sums already divided."""
    protocol = counted.protocol
    counts, norm = protocol.level_counts(scene.P)
    threshold = _NO_NMS if counted.nms_threshold is None else counted.nms_threshold
    rules = Rules(
        rule, threshold, float(protocol.pixel_offset), counted.protocol.max_detections or 2**31 - 1, np.cumsum(counts)
    )
    rests = _rests(scene.images, [roles_now(image, rules) for image in scene.images])
    shape = (len(counted.batch.scores), 4)
    columns = Found(*(np.zeros(shape) for _ in Found._fields))
    present = 0.0
    for image, rest, own in zip(scene.images, rests, scene.windows, strict=True):
        found, present = search_image(image, rest, rules, reach, radius)
        for column, part in zip(columns, found, strict=True):
            column[own] = part
    return present / norm, Found(columns.up_at, columns.up_sum / norm, columns.down_at, columns.down_sum / norm)


def _rules(counted: Counted) -> list[Rule]:
    protocol = counted.protocol
    best_free = protocol.duplicates == "best_free"
    return [Rule(float(threshold), protocol.equality, best_free) for threshold in protocol.match_thresholds]


def _class_gradient(counted: Counted, c: int, method: BoxMethod) -> NDArray[np.float64] | None:
    """(N, 4) pseudogradient of AP of class c: the mean of those at the protocol's thresholds; None if it has no objects."""
    scene = _class_images(counted, c)
    if scene.P == 0:
        return None
    boxes = counted.class_boxes(c)
    side = np.tile(boxes[:, 2:] - boxes[:, :2], 2)
    side[side == 0.0] = 1.0  # lengths are shares of the side: without one nothing is in reach, and any length gives 0
    total = np.zeros(boxes.shape)
    rules = _rules(counted)
    for rule in rules:
        radius = method.radius if method.estimator == "radius" else 0.0
        value, found = _search_class(counted, scene, rule, method.reach, radius)
        if radius > 0.0:
            total += (found.up_sum - found.down_sum) / (2.0 * radius * side)
            continue
        up, down = (found.up_at - boxes) / side, (found.down_at - boxes) / side
        estimate = sde if method.estimator == "sde" else mee
        nowhere, here = np.zeros(boxes.shape), np.full(boxes.shape, value)
        total += estimate(nowhere, here, up, found.up_sum, down, found.down_sum, method.min_step) / side
    return total / len(rules)


def all_box_gradients(counted: Counted, method: BoxMethod) -> tuple[NDArray[np.float64], int]:
    """The sum over classes of the pseudogradients of their APs, shaped like the batch's boxes, and classes with objects."""
    batch = counted.batch
    classes = range(batch.num_classes)
    parts = run_threads(lambda c: _class_gradient(counted, c, method), classes, torch.get_num_threads())
    total = np.zeros(batch.boxes.shape)
    for c, part in enumerate(parts):
        if part is not None:
            own = total[:, c] if batch.boxes_by_class else total
            own += part
    return total, sum(part is not None for part in parts)


def box_pseudogradient(
    scores: Sequence[Tensor],
    boxes: Sequence[Tensor],
    targets: Sequence[Target],
    *,
    protocol: str | Protocol = "voc12",
    nms_threshold: float | None = 0.3,
    match_threshold: float | Sequence[float] | None = None,
    absent_classes: str | None = None,
    method: BoxMethod | None = None,
) -> list[Tensor]:
    """The raw pseudogradient dmAP / dboxes, one float64 tensor per image, (N, 4) or, if any image has them, (N, K, 4).

    Boxes shared by the classes get the sum of what the classes want. `method` None: MEE and the other defaults.

    >>> window = torch.tensor([[0.0, 0.0, 4.0, 10.0]])                       # IoU 0.4 with the object: a false positive
    >>> target = {"boxes": torch.tensor([[0.0, 0.0, 10.0, 10.0]]), "labels": torch.tensor([0])}
    >>> box_pseudogradient([torch.tensor([[1.0]])], [window], [target])[0].tolist()     # x2 = 5 would do: AP from 0 to 1
    [[0.0, 0.0, 0.5, 0.0]]
    """
    counted = _counted(scores, boxes, targets, protocol, nms_threshold, match_threshold, absent_classes)
    with explain_wait():
        total, present = all_box_gradients(counted, method or BoxMethod())
    skips = counted.protocol.absent_classes == "skip"
    total /= max(present if skips else counted.batch.num_classes, 1)
    return list(torch.from_numpy(total).split([len(s) for s in scores]))


def box_steps(
    scores: Sequence[Tensor],
    boxes: Sequence[Tensor],
    targets: Sequence[Target],
    *,
    protocol: str | Protocol = "voc12",
    nms_threshold: float | None = 0.3,
    match_threshold: float | None = None,
    reach: float = BoxMethod.reach,
) -> BoxSteps:
    """The nearest steps of each class's AP in each coordinate of each box, at one match threshold.

    >>> window = torch.tensor([[0.0, 0.0, 4.0, 10.0]])
    >>> target = {"boxes": torch.tensor([[0.0, 0.0, 10.0, 10.0]]), "labels": torch.tensor([0])}
    >>> steps = box_steps([torch.tensor([[1.0]])], [window], [target])
    >>> steps.up_at[0].tolist(), steps.up_value[0].tolist()
    ([[[inf, inf, 5.0, inf]]], [[[0.0, 0.0, 1.0, 0.0]]])
    """
    counted = _counted(scores, boxes, targets, protocol, nms_threshold, match_threshold, None)
    rules, method = _rules(counted), BoxMethod(reach=reach)
    if len(rules) != 1:
        raise ConfigError(
            f"Expected one match threshold but protocol {counted.protocol.name!r} averages over {len(rules)}; "
            "pass match_threshold=, one at a time."
        )

    def of_class(c: int) -> tuple[float, Found]:
        scene = _class_images(counted, c)
        if scene.P > 0:
            return _search_class(counted, scene, rules[0], method.reach, 0.0)
        blank = np.zeros((len(counted.batch.scores), 4))
        return 0.0, Found(blank + np.inf, blank, blank - np.inf, blank)

    with explain_wait():
        classes = run_threads(of_class, range(counted.batch.num_classes), torch.get_num_threads())
    columns = (
        (np.stack([found[i] for _, found in classes], axis=1) for i in range(4))
        if classes
        else [np.zeros((0, 0, 4))] * 4
    )
    sizes = [len(s) for s in scores]
    lists = ([*torch.from_numpy(column).split(sizes)] if sizes else [] for column in columns)
    return BoxSteps(torch.tensor([ap for ap, _ in classes], dtype=torch.float64), *lists)


def _counted(
    scores: Sequence[Tensor],
    boxes: Sequence[Tensor],
    targets: Sequence[Target],
    protocol: str | Protocol,
    nms_threshold: float | None,
    match_threshold: float | Sequence[float] | None,
    absent_classes: str | None,
) -> Counted:
    nms_threshold = check_nms_threshold(nms_threshold)
    resolved = resolve_protocol(protocol, match_threshold, absent_classes)
    return Counted(make_batch(scores, boxes, targets), resolved, nms_threshold)
