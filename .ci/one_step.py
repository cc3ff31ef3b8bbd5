"""Takes one step with MAPLoss by the stepgrad of this environment: it raises the object's window and lowers the false alarm."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import stepgrad as sg

where = Path(sg.__file__)
assert where.is_relative_to(sys.prefix), f"expected the package installed in {sys.prefix} but got {where}"
boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0]])
scores = torch.tensor([[0.2], [0.9]], requires_grad=True)
loss_fn = sg.MAPLoss(num_classes=1)
loss_fn([scores], [boxes], [{"boxes": boxes[:1], "labels": torch.tensor([0])}]).backward()
assert scores.grad is not None
assert scores.grad.flatten().sign().tolist() == [-1.0, 1.0], scores.grad
assert loss_fn.metrics["map"] == 0.5, loss_fn.metrics
