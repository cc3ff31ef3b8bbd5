"""From a config to the things it describes."""

from __future__ import annotations

import torch

from stepgrad.detector import FastRCNN, Sampling
from stepgrad.losses.map_loss import MAPLoss
from stepgrad.train.config import PhaseConfig, PhaseName, TrainConfig


def build_model(config: TrainConfig, num_classes: int, weights: str | None) -> FastRCNN:
    """The detector, with weights drawn from the run's seed where none are given; the caller's randomness is untouched."""
    m = config.model
    with torch.random.fork_rng():
        torch.manual_seed(config.run.seed)
        return FastRCNN(
            num_classes,
            m.backbone,
            weights=weights,
            score=config.score,
            hidden=m.hidden,
            dropout=m.dropout,
            freeze=m.freeze,
            shortest_side=m.shortest_side,
            longest_side=m.longest_side,
            nms_threshold=m.nms_threshold,
            candidates=m.candidates,
            loss=config.phases()[0][0],
        )


def build_map_loss(config: TrainConfig, num_classes: int) -> MAPLoss:
    """The loss of the mAP phase: the run's protocol, the model's NMS."""
    options = {name: value for name, value in vars(config.map_loss).items() if name != "nll_weight"}
    return MAPLoss(num_classes, config.protocol, config.model.nms_threshold, **options)


def enter_phase(model: FastRCNN, config: TrainConfig, name: PhaseName, phase: PhaseConfig, num_classes: int) -> None:
    """Have the model train for the objective of a phase."""
    sampling = Sampling(phase.windows, phase.foreground, phase.background_overlap, phase.ground_truth)
    if name == "map":
        loss = build_map_loss(config, num_classes)
        model.train_for("map", map_loss=loss, nll_weight=config.map_loss.nll_weight, sampling=sampling)
    else:
        model.train_for("nll", sampling=sampling)
