"""The functions and modules that take tensors, and valid arguments for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

import stepgrad as sg
from tests.fuzz.damage_arguments import damage_arguments

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Door:
    """One way into the library."""

    name: str
    arguments: Callable[[], Arguments]
    call: Callable[..., Any]

    def damaged(self, number: int) -> Arguments:
        """The arguments of a case."""
        return damage_arguments(self.arguments(), Random(f"{self.name} {number}"))

    def enter(self, arguments: Arguments) -> None:
        """Call, and go back through whatever has a gradient."""
        answer = self.call(**arguments)
        for part in answer if isinstance(answer, (tuple, list)) else [answer]:
            if isinstance(part, Tensor) and part.requires_grad:
                part.sum().backward()


def _boxes() -> Tensor:
    return torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 0.0, 11.0, 10.0], [20.0, 0.0, 30.0, 10.0]])


def _target() -> dict[str, Any]:
    return {
        "boxes": _boxes()[:2],
        "labels": torch.tensor([0, 1]),
        "difficult": torch.tensor([False, True]),
        "image_id": 7,
    }


def _batch() -> Arguments:
    scores = torch.tensor([[0.5, 0.25], [0.125, 0.75], [0.0, -1.0]], requires_grad=True)
    return {"scores": [scores, scores[:1]], "boxes": [_boxes(), _boxes()[:1]], "targets": [_target(), _target()]}


def _detections() -> Arguments:
    found = {"boxes": _boxes(), "scores": torch.tensor([0.5, 0.25, 0.125]), "labels": torch.tensor([0, 1, 1])}
    more = {"iscrowd": torch.tensor([0, 1]), "area": torch.tensor([100.0, 100.0])}
    return {"preds": [found, dict(found)], "targets": [_target() | more, _target()]}


def _evaluate(preds: Any, targets: Any) -> None:
    evaluator = sg.Evaluator(2, ["voc12", "coco"])
    evaluator.update(preds, targets)
    str(evaluator.compute())


def _nms() -> Arguments:
    return {"boxes": _boxes(), "scores": torch.tensor([0.5, 0.25, 0.125]), "threshold": 0.3}


def _documents() -> Arguments:
    return {
        "scores": torch.tensor([0.5, 0.25, 0.125, 0.0], requires_grad=True),
        "relevance": torch.tensor([1, 0, 1, 0]),
        "query": torch.tensor([3, 3, 5, 5]),
        "mask": torch.tensor([True, True, True, False]),
    }


def _rows() -> Arguments:
    return {
        "scores": torch.tensor([[0.5, 0.25], [0.125, 0.0]], requires_grad=True),
        "relevance": torch.tensor([[1, 0], [0, 1]]),
    }


def _step_function(x: Any, candidates: Any, radius: Any, min_step: Any) -> Any:
    accuracy = sg.step_function(
        lambda s: (s > 0.5).double().mean(),
        estimator="radius",
        candidates=candidates,
        radius=radius,
        min_step=min_step,
    )
    return accuracy(x)


def _stepped() -> Arguments:
    return {"x": torch.tensor([0.25, 0.0], requires_grad=True), "candidates": 0.5, "radius": 1.0, "min_step": 0.1}


def _map_options() -> Arguments:
    return {"num_classes": 2, "protocol": "voc12", "nms_threshold": 0.3, "match_threshold": 0.5, "estimator": "mee"} | {
        "radius": 3.0,
        "through_nms": "exact",
        "eps": 0.01,
        "l4": 0.001,
        "clip": 1.0,
        "min_step": 0.1,
        "balance": "class",
        "absent_classes": "zero",
    }


def _map_loss_with(**options: Any) -> Any:
    return sg.MAPLoss(**options)(**_batch())


DOORS = {
    door.name: door
    for door in (
        Door("MAPLoss", _batch, lambda **given: sg.MAPLoss(2)(**given)),
        Door("MAPLoss-coco", _batch, lambda **given: sg.MAPLoss(2, "coco", l4=0.1, estimator="mee")(**given)),
        Door("MAPLoss-options", _map_options, _map_loss_with),
        Door("mAP", _batch, lambda **given: float(sg.mean_average_precision(**given))),
        Door("Evaluator", _detections, _evaluate),
        Door("nms", _nms, sg.nms),
        Door("APLoss", _documents, lambda **given: sg.APLoss()(**given)),
        Door("NDCGLoss", _documents, lambda **given: sg.NDCGLoss(log=True)(**given)),
        Door("AUCLoss", _rows, lambda **given: sg.ranking.AUCLoss(estimator="radius")(**given)),
        Door("SpearmanLoss", _rows, lambda **given: sg.ranking.SpearmanLoss()(**given)),
        Door("MRRLoss", _rows, lambda **given: sg.ranking.MRRLoss()(**given)),
        Door("PrecisionAtKLoss", _documents, lambda **given: sg.ranking.PrecisionAtKLoss(2)(**given)),
        Door("RecallAtKLoss", _documents, lambda **given: sg.ranking.RecallAtKLoss(2)(**given)),
        Door("step_function", _stepped, _step_function),
    )
}
