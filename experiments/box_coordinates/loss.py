"""The boxes' part of a mAP loss: a zero that passes the pseudogradient of the loss on to the boxes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from stepgrad.errors import ConfigError
from stepgrad.gradient.box_steps import BoxMethod, all_box_gradients
from stepgrad.kernels.jit import explain_wait
from stepgrad.losses.map_loss import MAPLoss, in_dtype
from stepgrad.metric.arrange import Arrangement
from stepgrad.metric.batch import Batch
from stepgrad.steps.torch_function import attach


def box_method(given: object, estimator: str) -> BoxMethod:
    """What `MAPLoss(box_gradient=...)` asks for: True is the loss's own estimator with the defaults for lengths."""
    if given is True:
        return BoxMethod(estimator)
    if isinstance(given, BoxMethod):
        return given
    raise ConfigError(f"Expected box_gradient to be True, False or a BoxMethod but got {given!r}.")


def box_term(loss_fn: MAPLoss, method: BoxMethod, boxes: Sequence[Tensor], batch: Batch, slope: float) -> Tensor:
    """0, with the gradient slope * d(sum of the classes' APs)/dboxes; adds `box_nonzero` to the loss's metrics."""
    loss_fn.metrics["box_nonzero"] = 0.0
    if not (torch.is_grad_enabled() and any(b.requires_grad for b in boxes)):
        return torch.zeros(())
    joined = torch.cat([_like_the_batch(b, batch) for b in boxes])
    arrangement = Arrangement(batch, loss_fn.protocol, loss_fn.nms_threshold, torch.get_num_threads(), None)
    with explain_wait():
        found, _ = all_box_gradients(arrangement, method)
    loss_fn.metrics["box_nonzero"] = np.count_nonzero(found) / max(found.size, 1)
    gradient = in_dtype(torch.from_numpy(slope * found), joined.dtype).to(joined.device)
    return attach(joined, torch.zeros(()), lambda outer: gradient * outer.to(gradient))


def _like_the_batch(boxes: Tensor, batch: Batch) -> Tensor:
    """(N, K, 4) if any image of the batch has boxes by class."""
    if batch.boxes_by_class and boxes.ndim == 2:
        return boxes[:, None].expand(-1, batch.num_classes, 4)
    return boxes
