"""What the pre-selection of dense heads leaves out: the loss and its gradient against those of all anchors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stepgrad.models.torchvision import restore, train_for_map

SELECTIONS: dict[str, dict[str, Any]] = {
    "the model's best, and positives": {},
    "the model's best": {"keep_positives": False},
    "a tenth of them, and positives": {"share": 0.1},
}
"""Options of `train_for_map` under each name; `share` scales the model's own `topk_candidates`."""
EVERYTHING = 10**9


def left_out(model: nn.Module, images: list[Tensor], targets: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each selection: candidates, mAP and the gradient in the class logits, next to those of all anchors.

    `gradient left out` is the share of the full gradient (sum of absolute values) in logits without a gradient now;
    `gradient error` the length of the difference of the two gradients, relative to the full one's.
    """
    full_map, full, pairs = _gradient(model, images, targets, topk=EVERYTHING)
    rows = []
    for name, options in SELECTIONS.items():
        given = dict(options)
        share = given.pop("share", None)
        if share is not None:
            given["topk"] = max(1, int(share * model.topk_candidates))
        value, found, candidates = _gradient(model, images, targets, **given)
        outside = found == 0.0
        rows.append(
            {
                "selection": name,
                "candidates": candidates / pairs,
                "map": value,
                "map of all": full_map,
                "gradient left out": float(full[outside].abs().sum() / full.abs().sum().clamp(min=1e-30)),
                "gradient error": float((full - found).norm() / full.norm().clamp(min=1e-30)),
                "cosine": float(torch.cosine_similarity(full.flatten(), found.flatten(), dim=0)),
            }
        )
    restore(model)
    return rows


def _gradient(
    model: nn.Module, images: list[Tensor], targets: list[dict[str, Any]], **options: Any
) -> tuple[float, Tensor, int]:
    """mAP, its loss's gradient in the class logits of all anchors, and how many pairs took part."""
    train_for_map(model, mode="replace", weight=1.0, absent_classes="skip", **options)
    logits: list[Tensor] = []
    hook = model.head.register_forward_hook(lambda _module, _inputs, out: logits.append(out["cls_logits"]))
    try:
        loss = model.train()(images, targets)["classification"]
    finally:
        hook.remove()
    (gradient,) = torch.autograd.grad(loss, logits)
    metrics = model.map_loss.metrics
    return metrics["map"], gradient, metrics["candidates"]
