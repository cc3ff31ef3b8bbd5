"""Training of a rescorer's network, and its outputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from stepgrad.metric.protocol import Protocol
from stepgrad.models.rescore.images import ScoredImage, in_turn
from stepgrad.models.rescore.network import QualityNetwork, joined_rows
from stepgrad.models.rescore.ways import Setting, loss_of, ranked_by
from stepgrad.overlaps.base import Overlap

IMAGES, IMAGES_OF_METRIC = 16, 64
"""Images per step; the metric needs objects of every class in a step."""
METRIC_STEPS = 100
LEAST_STEPS, _MOST_STEPS = 150, 2400
_EPOCHS = 10
_AT_ONCE = 50
"""Images whose outputs are computed together."""


def new_network(images: Sequence[ScoredImage], num_classes: int, units: int, seed: int) -> QualityNetwork:
    """A network that changes nothing yet, standardised by the facts of these images."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = QualityNetwork(num_classes, images[0].rows.columns.shape[1], units)
    network.standardise(torch.cat([image.rows.columns for image in images]))
    return network


def train_network(
    start: QualityNetwork,
    images: Sequence[ScoredImage],
    setting: Setting,
    num_classes: int,
    protocol: Protocol,
    overlap: Overlap,
    seed: int,
    tick: Callable[[], object] = lambda: None,
) -> QualityNetwork:
    """A trained copy; the running mean of its weights is what is kept."""
    network = copy.deepcopy(start).train()
    before = start if setting.start is not None else None
    loss_fn = loss_of(setting, num_classes, protocol, overlap, before)
    usual = min(max(_EPOCHS * len(images) // IMAGES, LEAST_STEPS), _MOST_STEPS)
    steps = METRIC_STEPS if setting.is_metric else usual
    drawn = in_turn(images, IMAGES_OF_METRIC if setting.is_metric else IMAGES, seed)
    optimizer = torch.optim.AdamW(network.parameters(), setting.rate, weight_decay=0.0 if setting.is_metric else 0.01)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    mean = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(setting.mean)) if setting.mean else None
    with torch.enable_grad():
        for _ in range(steps):
            chosen = next(drawn)
            rows = joined_rows([image.rows for image in chosen])
            optimizer.zero_grad()
            loss_fn(network(rows), rows, chosen).backward()
            optimizer.step()
            decay.step()
            if mean is not None:
                mean.update_parameters(network)
            tick()
    if mean is not None:
        network.load_state_dict(mean.module.state_dict())
    return network.eval()


@torch.no_grad()
def outputs_of(network: QualityNetwork, images: Sequence[ScoredImage]) -> list[Tensor]:
    """(M,) outputs per image."""
    found: list[Tensor] = []
    for first in range(0, len(images), _AT_ONCE):
        part = images[first : first + _AT_ONCE]
        outputs = network(joined_rows([image.rows for image in part]))
        found += outputs.split([len(image.boxes) for image in part])
    return found


def scores_of(network: QualityNetwork, images: Sequence[ScoredImage], setting: Setting) -> list[Tensor]:
    """(M,) per image, what its detections are ranked by."""
    outputs = outputs_of(network, images)
    return [ranked_by(output, image.rows.own, setting) for output, image in zip(outputs, images, strict=True)]
