"""How a head is trained."""

from __future__ import annotations

import torch
from torch import nn

from stepgrad.metric.protocol import COCO
from stepgrad.models.fine_tuning.outputs import Reading
from stepgrad.models.fine_tuning.training import Plan, Task, train
from stepgrad.models.fine_tuning.windows import labelled
from tests.models.fine_tuning.made_up import CLASSES, images


def trained(steps: int, average: float) -> torch.Tensor:
    given = labelled("images", images(0, 6), CLASSES)
    reading = Reading(CLASSES)
    torch.manual_seed(0)
    head = nn.Linear(given[0].features.shape[1], CLASSES).double()
    plan = Plan("stock", steps, 2, 0.1, average=average)
    return train(head, given, Task(reading, COCO, 0.5, reading.stock_loss), plan, 0, lambda: None).weight.detach()


def test_a_running_mean_that_forgets_at_once_is_the_last_weights() -> None:
    torch.testing.assert_close(trained(5, 1e-15), trained(5, 0.0))


def test_a_running_mean_lies_between_the_weights_it_is_a_mean_of() -> None:
    first, last = trained(2, 1 - 1e-15), trained(2, 0.0)  # a mean that forgets nothing stays with the first step's
    between = trained(2, 0.5)
    torch.testing.assert_close(between, (first + last) / 2)
