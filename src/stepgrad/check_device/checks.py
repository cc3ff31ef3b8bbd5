"""What a device must do: give the CPU's numbers, and copy no more than a step needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepgrad.check_device.scene import DeviceScene, draw_scene
from stepgrad.check_device.transfers import CountTransfers
from stepgrad.evaluation.evaluator import Evaluator
from stepgrad.losses.detection import DetectionLoss, MAPLoss
from stepgrad.losses.ranking.losses import APLoss, NDCGLoss

CPU = torch.device("cpu")
_CLASSES = 5
LOSSES: dict[str, Callable[[], DetectionLoss]] = {
    "MAPLoss voc12": lambda: MAPLoss(_CLASSES),
    "MAPLoss coco": lambda: MAPLoss(_CLASSES, "coco", nms_threshold=0.6),
    "MAPLoss of the paper, without L4": lambda: MAPLoss.paper(_CLASSES, l4=None),
    "DetectionLoss recall@precision=0.9": lambda: DetectionLoss(_CLASSES, "recall@precision=0.9"),
}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Check:
    """Something that was looked at."""

    name: str
    problem: str
    """Empty: all is well."""

    def __str__(self) -> str:
        return f"WRONG  {self.name}: {self.problem}" if self.problem else f"equal  {self.name}"


def check_all(device: torch.device) -> Iterator[Check]:
    """Every loss in every dtype, called and started early; two rankings; the evaluator."""
    for dtype in DTYPES:
        scene = draw_scene(3, 40, _CLASSES, dtype=dtype)
        named = str(dtype).removeprefix("torch.")
        for name, make in LOSSES.items():
            for how in ("called", "started"):
                expected = _loss(make(), scene, CPU, "called")
                yield Check(f"{name}, {named}, {how}", _difference(_loss(make(), scene, device, how), expected))
    for ranking in (APLoss(), NDCGLoss(k=5)):
        expected = _ranked(ranking, CPU)
        yield Check(type(ranking).__name__, _difference(_ranked(ranking, device), expected))
    yield Check("Evaluator coco", "" if _judged(device) == _judged(CPU) else "another mAP than on the CPU")


def step_transfers(device: torch.device) -> list[str]:
    """What one step of MAPLoss copies between the device and the CPU, in order."""
    scene = draw_scene(3, 40, _CLASSES).on(device)
    with CountTransfers() as count:
        MAPLoss(_CLASSES)(scene.scores, scene.boxes, scene.targets).backward()
    return [str(transfer) for transfer in count.seen]


def _loss(loss_fn: DetectionLoss, scene: DeviceScene, device: torch.device, how: str) -> list[Tensor]:
    """The loss and its gradients."""
    there = scene.on(device)
    call = there.scores, there.boxes, there.targets
    loss = loss_fn.start(*call).finish() if how == "started" else loss_fn(*call)
    return [loss.detach(), *torch.autograd.grad(loss, there.scores)]


def _ranked(loss_fn: Any, device: torch.device) -> list[Tensor]:
    random = torch.Generator().manual_seed(1)
    scores = torch.randn(12, generator=random).to(device).requires_grad_()
    relevance = torch.randint(0, 3, (12,), generator=random).to(device)
    loss = loss_fn(scores, relevance)
    return [loss.detach(), *torch.autograd.grad(loss, scores)]


def _judged(device: torch.device) -> float:
    scene = draw_scene(4, 60, _CLASSES, seed=2)
    evaluator = Evaluator(_CLASSES, "coco")
    for scores, boxes, target in zip(scene.scores, scene.boxes, scene.targets, strict=True):
        best, labels = scores.detach().sigmoid().max(dim=1)
        found = {"boxes": boxes.to(device), "scores": best.to(device), "labels": labels.to(device)}
        evaluator.update([found], [{key: value.to(device) for key, value in target.items()}])
    return evaluator.compute().map


def _difference(found: list[Tensor], expected: list[Tensor]) -> str:
    """What differs between results of the device and of the CPU; empty if nothing does."""
    for f, e in zip(found, expected, strict=True):
        if f.dtype != e.dtype:
            return f"expected {e.dtype} but got {f.dtype}"
        here = f.cpu()
        if not torch.equal(here, e):
            return f"differs by up to {float((here.double() - e.double()).abs().max()):.3g}"
    return ""
