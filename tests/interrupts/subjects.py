"""Calls to interrupt: each gives numbers that are the same every time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import stepgrad as sg

Call = Callable[[], list[Any]]


def scene(classes: int, windows: int = 400, images: int = 2) -> tuple[list[Tensor], list[Tensor], list[Any]]:
    """Crowded windows, a third of them near an object."""
    random = torch.Generator().manual_seed(0)
    scores, boxes, targets = [], [], []
    for _ in range(images):
        corners = torch.rand(windows, 2, generator=random) * 100
        boxes.append(torch.cat([corners, corners + 10 + 20 * torch.rand(windows, 2, generator=random)], dim=1))
        scores.append(torch.randn(windows, classes, generator=random, requires_grad=True))
        labels = torch.arange(windows // 40) % classes
        targets.append({"boxes": boxes[-1][: len(labels)] + 1.0, "labels": labels})
    return scores, boxes, targets


def loss(classes: int, threads: int, estimator: str = "radius", metric: str | None = None) -> Call:
    """A loss and its gradient."""
    scores, boxes, targets = scene(classes)
    if metric is None:
        loss_fn: Any = sg.MAPLoss(classes, "voc12", estimator=estimator)
    else:
        loss_fn = sg.DetectionLoss(classes, metric, protocol="voc12", nms_threshold=0.5)

    def call() -> list[Any]:
        torch.set_num_threads(threads)
        value = loss_fn(scores, boxes, targets)
        return [value.detach(), *torch.autograd.grad(value, scores)]

    return call


def steps() -> Call:
    scores, boxes, targets = scene(2)

    def call() -> list[Any]:
        found = sg.map_steps(scores, boxes, targets, nms_threshold=0.3)
        return [found.value, *found.up_at, *found.down_value]

    return call


def mean_ap() -> Call:
    scores, boxes, targets = scene(3)
    return lambda: [torch.tensor(sg.mean_average_precision(scores, boxes, targets, nms_threshold=0.3).map)]


def nms() -> Call:
    scores, boxes, _ = scene(1, windows=2000)
    return lambda: list(sg.nms(boxes[0], scores[0][:, 0].detach(), 0.5))


def layers() -> Call:
    scores, boxes, _ = scene(1, windows=100)
    row = scores[0][:, 0].detach().requires_grad_()
    through_nms, ranks = sg.layers.NMSLayer(0.5), sg.layers.Ranks()

    def call() -> list[Any]:
        kept, places = through_nms(row, boxes[0]), ranks(row)
        weights = torch.arange(len(row), dtype=row.dtype)
        return [kept.detach(), *torch.autograd.grad((weights * (kept + places)).sum(), row)]

    return call


def ranking() -> Call:
    random = torch.Generator().manual_seed(0)
    scores = torch.randn(200, generator=random, requires_grad=True)
    relevance = torch.randint(0, 3, (200,), generator=random)
    query = torch.arange(200) // 20

    def call() -> list[Any]:
        both = sg.APLoss()(scores, relevance > 0, query) + sg.NDCGLoss()(scores, relevance, query)
        return [both.detach(), *torch.autograd.grad(both, scores)]

    return call


def evaluator() -> Call:
    scores, boxes, targets = scene(3)
    found = [
        {"boxes": b, "scores": s.detach().amax(1), "labels": s.argmax(1)} for s, b in zip(scores, boxes, strict=True)
    ]

    def call() -> list[Any]:
        judge = sg.Evaluator(3, "coco")
        judge.update(found, targets)
        return [torch.tensor(judge.compute().map)]

    return call


def new_head() -> Call:
    from tests.models.new_head.test_train_new_head import run
    from tests.models.tiny import tiny_model

    def call() -> list[Any]:
        torch.set_num_threads(1)
        return list(run(tiny_model("ssd")).model.state_dict().values())

    return call


SUBJECTS: dict[str, Callable[[], Call]] = {
    "MAPLoss, radius, 5 classes, 1 thread": partial(loss, 5, 1),
    "MAPLoss, radius, 5 classes, 2 threads": partial(loss, 5, 2),
    "MAPLoss, MEE, 4 classes, 1 thread": partial(loss, 4, 1, "mee"),
    "MAPLoss, MEE, 1 class, 2 threads": partial(loss, 1, 2, "mee"),
    "DetectionLoss, F1": partial(loss, 2, 2, metric="f1"),
    "map_steps": steps,
    "mean_average_precision": mean_ap,
    "nms": nms,
    "layers": layers,
    "ranking losses": ranking,
    "Evaluator": evaluator,
    "train_new_head": new_head,
}
