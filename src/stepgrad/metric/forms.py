"""The forms in which windows may be handed to a loss, as the one it works on: lists with one entry per image."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stepgrad.errors import InputError
from stepgrad.metric.boxes import check_box_format
from stepgrad.plain_tensors import refuse_unreadable

Windows = Sequence[Tensor] | Tensor  # one entry per image, or all images in one tensor


def as_lists(
    scores: Windows, boxes: Windows | None, num_classes: int, mask: Tensor | None = None, width: int | None = 4
) -> tuple[Sequence[Tensor], Sequence[Tensor] | None]:
    """Scores (N, K) and boxes (N, 4) or (N, K, 4) per image; whatever is neither form comes back for `make_batch` to refuse.

    Args:
        scores: a list per image of (N, K), or a tensor (B, N, K) of all images; of one class also (N,) and (B, N).
        boxes: a list per image, or a tensor (B, N, 4) or (B, N, K, 4), as the scores are.
        num_classes: K.
        mask: (B, N), True for windows, False for what only fills up a tensor; None: all are windows.
        width: numbers of a box; None: any, since other shapes than upright boxes stand in their place, or none.

    >>> scores, boxes = as_lists(torch.zeros(2, 5), torch.zeros(2, 5, 4), 1, torch.arange(5) < torch.tensor([[5], [3]]))
    >>> [tuple(of_image.shape) for of_image in (*scores, *boxes)]
    [(5, 1), (3, 1), (5, 4), (3, 4)]
    """
    if isinstance(scores, Tensor):
        scores, boxes = _images_of(scores, boxes, num_classes, mask, width)
    elif mask is not None:
        raise InputError("Expected no mask with lists, whose entries can have any length; a mask is for tensors.")
    if num_classes == 1 and isinstance(scores, Sequence):
        scores = [s[:, None] if isinstance(s, Tensor) and s.ndim == 1 else s for s in scores]
    return scores, boxes  # type: ignore[return-value]  # what else boxes may be is refused by make_batch


def _images_of(
    scores: Tensor, boxes: Windows | None, num_classes: int, mask: Tensor | None, width: int | None
) -> tuple[Sequence[Tensor], Sequence[Tensor] | None]:
    """A tensor's images. Padding is left out here, so that nothing later has to know of it."""
    refuse_unreadable(scores, boxes, mask)
    check_box_format(boxes, "Expected boxes")
    B, N = scores.shape[:2] if scores.ndim > 1 else (0, 0)
    K = num_classes
    wanted = [(B, N, K), (B, N)] if K == 1 else [(B, N, K)]
    if width is None and boxes is None:
        fits = True
    else:
        forms = [(B, N, 4), (B, N, K, 4)] if width else [(B, N, *boxes.shape[2:])] if isinstance(boxes, Tensor) else []
        fits = isinstance(boxes, Tensor) and tuple(boxes.shape) in forms
    if tuple(scores.shape) not in wanted or not fits:
        came = f"boxes {tuple(boxes.shape)}" if isinstance(boxes, Tensor) else f"boxes as {type(boxes).__name__}"
        raise InputError(
            f"Expected scores to be a list with one entry per image, each (N, {K}), or a tensor (B, N, {K}) with boxes "
            f"(B, N, 4) or (B, N, {K}, 4), but got scores {tuple(scores.shape)} and {came}."
        )
    if mask is None:
        return rows_of_images(scores, None), None if boxes is None else rows_of_images(boxes, None)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or tuple(mask.shape) != (B, N):
        came = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise InputError(f"Expected mask of torch.bool and shape ({B}, {N}), True for windows, but got {came}.")
    return rows_of_images(scores, mask), None if boxes is None else rows_of_images(boxes, mask)


def rows_of_images(given: Windows, mask: Tensor | None) -> Sequence[Tensor]:
    """What a tensor (B, N, ...) has for each image, without padding; lists as they are. The mask is best on the CPU."""
    if not isinstance(given, Tensor) or mask is None:
        return given.unbind() if isinstance(given, Tensor) else given
    # Rows chosen by number: with a mask, a device would have to say for each image how many there are.
    there = mask.cpu()
    chosen = there.flatten().nonzero().flatten().to(given.device)
    return given.flatten(0, 1).index_select(0, chosen).split(there.sum(dim=1).tolist())
