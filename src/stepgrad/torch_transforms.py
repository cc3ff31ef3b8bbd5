"""Torch's function transforms (torch.func, vmap, forward-mode derivatives) and why losses and layers are not for them.

Steps are found by kernels that read plain numbers. Inside a transform a tensor stands for others that do not exist yet, and
has none to read.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from stepgrad.errors import UnsupportedTransformError


def refuse_transforms(*given: object) -> None:
    """Raise unless every tensor among the arguments holds plain numbers: the one door to every loss, layer and metric."""
    if torch.compiler.is_compiling():  # the compiler's own stand-ins are no transform, and cannot be asked
        return
    for tensor in given:
        if isinstance(tensor, Tensor) and (_is_wrapped(tensor) or forward_ad.unpack_dual(tensor).tangent is not None):
            raise UnsupportedTransformError(
                "Expected a tensor of plain numbers but got one inside torch.func.grad, vmap, jvp or another transform of "
                "torch.func, or a dual number of forward-mode derivatives: steps are found by kernels outside of torch, "
                "which a transform cannot follow. Call loss.backward() or torch.autograd.grad in place of torch.func.grad, "
                "and loop over examples in place of vmap; there are no forward-mode or second derivatives."
            )


def _is_wrapped(tensor: Tensor) -> bool:
    """Whether a transform of torch.func, or the vmap behind `is_grads_batched`, is at work. Torch says so in private only."""
    ask = torch._C._functorch
    return bool(ask.is_functorch_wrapped_tensor(tensor) or ask.is_legacy_batchedtensor(tensor))
