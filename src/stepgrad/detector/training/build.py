"""From a config to the things it describes."""

from __future__ import annotations

import torch
from safetensors import safe_open
from torch import Tensor

from stepgrad.detector import FastRCNN, Sampling, WeightsReport
from stepgrad.detector.inputs import objects_on_cpu
from stepgrad.detector.sampling import Sample, sample_windows
from stepgrad.detector.training.checkpoint import load_checkpoint
from stepgrad.detector.training.config import PhaseConfig, PhaseName, TrainConfig
from stepgrad.detector.training.inputs import mirrored_boxes
from stepgrad.detector.training.joined import TrainingData
from stepgrad.detector.training.run_folder import RunFolder, load_into
from stepgrad.losses.distributed import DistributedDetectionLoss, DistributedMAPLoss
from stepgrad.names import from_home
from stepgrad.weights_file import load_weights


def build_model(config: TrainConfig, num_classes: int, weights: str | None) -> FastRCNN:
    """The detector, with weights drawn from the run's seed where none are given; the caller's randomness is untouched.

    Args:
        weights: as `model.weights` of the config, which may also name a run or one of its checkpoints.
    """
    m = config.model
    own = own_weights(weights)
    with torch.random.fork_rng():
        torch.manual_seed(config.run.seed)
        model = FastRCNN(
            num_classes,
            m.backbone,
            weights=weights if own is None else None,
            score=config.score,
            hidden=m.hidden,
            dropout=m.dropout,
            freeze=m.freeze,
            shortest_side=m.shortest_side,
            longest_side=m.longest_side,
            nms_threshold=m.nms_threshold,
            candidates=m.candidates,
            box_regression=m.box_regression,
            loss=config.phases()[0][0],
        )
    if own is not None:
        load_into(model, own, str(weights))
        model.weights_report = WeightsReport(str(weights), model.weights_report.random, ())
    return model


def measure_boxes(model: FastRCNN, data: TrainingData, flip: bool) -> None:
    """Give a new box regression the scale of the moves from windows to objects, mirrored ones too, over all training data.

    Weights that come from another run keep the scale they were trained with.
    """
    if model.head.boxes is None or model.head.boxes.measured:
        return
    samples: list[Sample] = []
    for place in range(len(data)):
        part, index = data.find(place)
        windows, target = part.facts(index)
        ((boxes, labels),) = objects_on_cpu([target], model.num_classes)
        drawn = sample_windows(windows, boxes, labels, model.num_classes, Sampling(windows=None))
        on = drawn.labels < model.num_classes
        found = Sample(drawn.windows[on], drawn.labels[on], drawn.positives, drawn.boxes[on])
        samples.append(found)
        if flip:  # about x = 0: moves do not depend on where the window is
            mirror = (mirrored_boxes(found.windows, 0.0), mirrored_boxes(found.boxes, 0.0))
            samples.append(found._replace(windows=mirror[0], boxes=mirror[1]))
    model.head.boxes.measure(samples)


def own_weights(source: str | None) -> dict[str, Tensor] | None:
    """The weights of a run (the best), or in one of its files; None if `source` is none of these."""
    if source is None:
        return None
    path = from_home(source)
    if path.is_dir():
        return load_weights(RunFolder(path).best_file)[0]
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


def build_map_loss(config: TrainConfig, num_classes: int) -> DistributedDetectionLoss:
    """The loss of the mAP phase: the run's metric and protocol, the model's NMS, one over all processes."""
    options = {name: value for name, value in vars(config.map_loss).items() if name != "nll_weight"}
    options |= {"timeout": config.run.timeout, "nms_threshold": config.model.nms_threshold}
    if config.metrics:
        return DistributedDetectionLoss(num_classes, config.metric, config.protocol, **options)
    return DistributedMAPLoss(num_classes, config.protocol, **options)


def enter_phase(model: FastRCNN, config: TrainConfig, name: PhaseName, phase: PhaseConfig, num_classes: int) -> None:
    """Have the model train for the objective of a phase."""
    sampling = Sampling(phase.windows, phase.foreground, phase.background_overlap, phase.ground_truth)
    if name == "map":
        loss = build_map_loss(config, num_classes)
        model.train_for("map", map_loss=loss, nll_weight=config.map_loss.nll_weight, sampling=sampling)
    else:
        model.train_for("nll", sampling=sampling)
