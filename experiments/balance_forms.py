"""Ways to give a pseudogradient the invariances of AP, as plain functions of gradient and scores.

AP of a class does not change when all its scores move by one constant or are scaled by one factor, so its gradient
should be orthogonal to the ones and to the scores. A pseudogradient is neither. Each form below takes the gradient and
the scores of a batch, both (windows, K), and mends this in its own way; "support" means the windows with a gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Form = Callable[[Tensor, Tensor], Tensor]


def keep(gradient: Tensor, scores: Tensor) -> Tensor:
    """As it comes."""
    return gradient


def smaller_total(gradient: Tensor, scores: Tensor) -> Tensor:
    """Per class, scale the heavier sign down until both weigh the same.

    >>> smaller_total(torch.tensor([[3.0], [1.0], [-2.0]]), torch.zeros(3, 1)).flatten().tolist()
    [1.5, 0.5, -2.0]
    """
    up, down = gradient.clamp(min=0), gradient.clamp(max=0)
    total_up, total_down = up.sum(0), -down.sum(0)
    target = torch.minimum(total_up, total_down)
    return up * _ratio(target, total_up) + down * _ratio(target, total_down)


def geometric_total(gradient: Tensor, scores: Tensor) -> Tensor:
    """Per class, scale both signs to the geometric mean of their totals."""
    up, down = gradient.clamp(min=0), gradient.clamp(max=0)
    total_up, total_down = up.sum(0), -down.sum(0)
    target = (total_up * total_down).sqrt()
    return up * _ratio(target, total_up) + down * _ratio(target, total_down)


def shift_support(gradient: Tensor, scores: Tensor) -> Tensor:
    """Project out the ones: subtract, per class, the mean over the support.

    >>> shift_support(torch.tensor([[3.0], [0.0], [-1.0]]), torch.zeros(3, 1)).flatten().tolist()
    [2.0, 0.0, -2.0]
    """
    support = (gradient != 0).to(gradient.dtype)
    return gradient - support * _ratio(gradient.sum(0), support.sum(0))


def project_support(gradient: Tensor, scores: Tensor) -> Tensor:
    """Project out the ones and the scores, per class and on the support."""
    return remove_scale(shift_support(gradient, scores), scores, support=gradient != 0)


def smaller_total_then_scale(gradient: Tensor, scores: Tensor) -> Tensor:
    """Balance the signs as in `smaller_total`, then project out the scores."""
    balanced = smaller_total(gradient, scores)
    return remove_scale(balanced, scores, support=balanced != 0)


def remove_scale(gradient: Tensor, scores: Tensor, support: Tensor) -> Tensor:
    """Project out the centred scores on the support; the sum of the gradient stays as it is."""
    weight = support.to(gradient.dtype)
    centred = weight * (scores - _ratio((weight * scores).sum(0), weight.sum(0)))
    return gradient - centred * _ratio((gradient * centred).sum(0), centred.square().sum(0))


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Zero where the denominator is zero."""
    return torch.where(denominator > 0, numerator / denominator.clamp(min=torch.finfo(denominator.dtype).tiny), 0.0)


FORMS: dict[str, Form] = {
    "none": keep,
    "class": smaller_total,
    "geometric": geometric_total,
    "shift": shift_support,
    "project": project_support,
    "class+scale": smaller_total_then_scale,
}
