"""What the loss costs per training step, by threads of the CPU."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stepgrad.check_device.scene import DeviceScene, draw_scene
from stepgrad.losses.detection import MAPLoss

IMAGES, WINDOWS, CLASSES = 16, 300, 80
_ROUNDS = 15


@dataclass(frozen=True)
class StepCost:
    """Seconds of one step by threads, and of its copies alone."""

    by_threads: dict[int, float]
    copies: float

    def computed(self, threads: int) -> float | None:
        """Seconds with more threads than there are, from those with one and two: the part that two threads halve is divided
        further, the rest stays (Amdahl). None where only one was measured."""
        if not {1, 2} <= set(self.by_threads):
            return None
        one, two = self.by_threads[1], self.by_threads[2]
        shared = min(max(2.0 * (one - two), 0.0), one)
        return one - shared + shared / threads


def measure_cost(device: torch.device, threads: Sequence[int]) -> StepCost:
    """The smallest of several rounds, in each of which every number of threads has its turn."""
    before = torch.get_num_threads()
    scene = draw_scene(IMAGES, WINDOWS, CLASSES).on(device)
    loss_fn = MAPLoss(CLASSES, "coco", nms_threshold=0.6)
    best = dict.fromkeys(threads, float("inf"))
    copies = float("inf")
    try:
        _step(loss_fn, scene, device)  # compiles
        for _ in range(_ROUNDS):
            for count in threads:
                torch.set_num_threads(count)
                best[count] = min(best[count], _step(loss_fn, scene, device))
            copies = min(copies, _copies(scene, device))
    finally:
        torch.set_num_threads(before)
    return StepCost(best, copies)


def _step(loss_fn: MAPLoss, scene: DeviceScene, device: torch.device) -> float:
    """Seconds of the loss and its backward pass."""
    wait(device)
    began = time.perf_counter()
    loss = loss_fn(scene.scores, scene.boxes, scene.targets)
    torch.autograd.grad(loss, scene.scores)
    wait(device)
    return time.perf_counter() - began


def _copies(scene: DeviceScene, device: torch.device) -> float:
    """Seconds of scores and boxes on their way down and a gradient on its way up."""
    scores, boxes = (torch.cat([t.detach() for t in part]) for part in (scene.scores, scene.boxes))
    wait(device)
    began = time.perf_counter()
    boxes.cpu()
    scores.cpu().to(device)
    wait(device)
    return time.perf_counter() - began


def wait(device: torch.device) -> None:
    """Return when the device has done all that it was given."""
    if device.type == "xla":
        import torch_xla

        torch_xla.sync(wait=True)
    elif device.type != "cpu":
        torch.get_device_module(device).synchronize()
