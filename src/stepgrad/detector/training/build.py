"""From a config to the things it describes: the model with its weights, and the objective of a phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from safetensors import safe_open
from torch import Tensor, nn

from stepgrad.detector import FastRCNN, Sampling, WeightsReport
from stepgrad.detector.inputs import objects_on_cpu
from stepgrad.detector.sampling import Sample, sample_windows
from stepgrad.detector.training.checkpoint import load_checkpoint
from stepgrad.detector.training.config import PhaseConfig, TrainConfig
from stepgrad.detector.training.inputs import Images, mirrored_boxes
from stepgrad.errors import DataError
from stepgrad.losses.distributed import DistributedDetectionLoss, DistributedMAPLoss
from stepgrad.names import from_home
from stepgrad.weights_file import load_weights

BEST_FILE = "best.safetensors"
"""The best weights of a run, in its folder."""


def build_model(config: TrainConfig, num_classes: int, weights: str | None) -> FastRCNN:
    """The detector, with weights drawn from the run's seed where none are given; the caller's randomness is untouched.

    Args:
        weights: as `model.weights` of the config, which may also name a run or one of its checkpoints.
    """
    own = own_weights(weights)
    options = {**vars(config.model), "score": config.score, "weights": weights if own is None else None}
    with torch.random.fork_rng():
        torch.manual_seed(config.run.seed)
        model = FastRCNN(num_classes, loss=config.phases()[0].name, **options)
    if own is not None:
        load_into(model, own, str(weights))
        model.weights_report = WeightsReport(str(weights), model.weights_report.random, ())
    return model


def own_weights(source: str | None) -> dict[str, Tensor] | None:
    """The weights of a run (the best), or in one of its files; None if `source` is none of these."""
    if source is None:
        return None
    path = from_home(source)
    if path.is_dir():
        return load_weights(path / BEST_FILE)[0]
    if not path.is_file() or path.suffix != ".safetensors":
        return None
    if path.parent.name == "checkpoints":
        return load_checkpoint(path).weights
    try:
        with safe_open(path, "pt") as file:
            is_own = "stepgrad" in (file.metadata() or {})
    except Exception:  # not safetensors at all: who reads it next says so
        return None
    return load_weights(path)[0] if is_own else None


def load_into(model: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Put weights into a model that must fit them."""
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise DataError(
            f"{source}: the weights do not fit the model ({error}); backbone, hidden, score, box_regression and the number of "
            "classes must be those it was trained with"
        ) from error


def measure_boxes(model: FastRCNN, data: Sequence[Images], flip: bool) -> None:
    """Give a new box regression the scale of the moves from windows to objects, mirrored ones too, over all training data.

    Weights that come from another run keep the scale they were trained with.
    """
    if model.head.boxes is None or model.head.boxes.measured:
        return
    samples: list[Sample] = []
    for windows, target in (part.facts(index) for part in data for index in range(len(part))):
        ((boxes, labels),) = objects_on_cpu([target], model.num_classes)
        drawn = sample_windows(windows, boxes, labels, model.num_classes, Sampling(windows=None))
        on = drawn.labels < model.num_classes
        found = Sample(drawn.windows[on], drawn.labels[on], drawn.positives, drawn.boxes[on])
        samples.append(found)
        if flip:  # about x = 0: moves do not depend on where the window is
            mirror = (mirrored_boxes(found.windows, 0.0), mirrored_boxes(found.boxes, 0.0))
            samples.append(found._replace(windows=mirror[0], boxes=mirror[1]))
    model.head.boxes.measure(samples)


def enter_phase(model: FastRCNN, config: TrainConfig, name: str, phase: PhaseConfig, num_classes: int) -> None:
    """Have the model train for the objective of a phase."""
    sampling = Sampling(phase.windows, phase.foreground, phase.background_overlap, phase.ground_truth)
    if name == "nll":
        model.train_for("nll", sampling=sampling)
        return
    options = {**vars(config.map_loss), "timeout": config.run.timeout, "nms_threshold": config.model.nms_threshold}
    nll_weight = options.pop("nll_weight")
    loss: DistributedDetectionLoss  # one over all processes
    if config.metrics:
        loss = DistributedDetectionLoss(num_classes, config.metric, config.protocol, **options)
    else:
        loss = DistributedMAPLoss(num_classes, config.protocol, **options)
    model.train_for("map", map_loss=loss, nll_weight=nll_weight, sampling=sampling)
