"""Validation, and what remains of a run: its best weights, their evaluation, and the report."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stepgrad.data.base import DetectionDataset
from stepgrad.detector.training.config import TrainConfig, to_dict
from stepgrad.detector.training.features import Source
from stepgrad.detector.training.inputs import Images
from stepgrad.detector.training.progress import Progress, QuietProgress
from stepgrad.detector.training.run_folder import RunFolder, State
from stepgrad.detector.training.run_log import Log, finite
from stepgrad.evaluation import Evaluator
from stepgrad.evaluation.result import EvaluationResult, best_thresholds
from stepgrad.files import write_whole
from stepgrad.metric.options import get_metric
from stepgrad.processes import gather_objects, rank, world
from stepgrad.weights_file import save_weights

if TYPE_CHECKING:
    from stepgrad.detector import FastRCNN

IMAGES_AT_ONCE = 4


@torch.no_grad()
def validate(
    model: FastRCNN,
    data: Images,
    protocols: Sequence[str],
    progress: Progress | None = None,
    source: Source = Images.example,
    between: Callable[[], None] = lambda: None,
    what: str = "validating",
    metrics: Sequence[str] = (),
) -> Evaluator:
    """Detect on every image of `data`, each process on its share; the evaluator that comes back has seen all of it.

    Args:
        source: gives the images, or features in their place.
        between: called now and then; may raise to cut the work short.
        metrics: reported in addition to mAP, under the first protocol and the others.
    """
    names = data.dataset.class_names
    evaluator = Evaluator(len(names), list(protocols), names, boxes="continuous", metrics=metrics)
    training = model.training
    model.eval()
    found: dict[int, tuple[Any, Any]] = {}
    share = range(len(data))[rank() :: world()]
    try:
        with (progress or QuietProgress()).stage(what, len(share)) as tick:
            for first in range(0, len(share), IMAGES_AT_ONCE):
                chosen = share[first : first + IMAGES_AT_ONCE]
                examples = [source(data, i, False) for i in chosen]
                detections = model([e.image for e in examples], [e.windows for e in examples])
                found.update({i: (d, e.target) for i, d, e in zip(chosen, detections, examples, strict=True)})
                for _ in examples:
                    tick()
                between()
    finally:
        model.train(training)
    for part in gather_objects(found):
        found.update(part)
    in_order = [found[i] for i in range(len(data))]
    evaluator.update([d for d, _ in in_order], [target for _, target in in_order])
    return evaluator


def validation_line(state: State, result: EvaluationResult, phase: str) -> dict[str, Any]:
    """What the log holds of a validation."""
    results = {result.protocol.name: result, **result.others}
    return {
        "kind": "val",
        "step": state.step,
        "phase": phase,
        "map": {name: found.map for name, found in results.items()},
        "ap": {name: {row.name: row.ap for row in found.classes} for name, found in results.items()},
        **({"metrics": _values(result)} if result.metrics else {}),
        "images": result.images,
        "seconds": state.seconds,
    }


def merit_of(result: EvaluationResult, config: TrainConfig) -> float:
    """What the best step is chosen by: mAP, or the metric of the run, turned so that larger is better."""
    if not config.metrics:
        return result.map
    metric = get_metric(config.metric)
    value = result.metric(metric).value if metric.area is None else result.metrics[metric.name].value
    return value if metric.higher_is_better else -value


def save_best(folder: RunFolder, model: FastRCNN, config: TrainConfig, state: State, result: EvaluationResult) -> None:
    """The weights alone, with what is needed to use them: classes, thresholds and the config."""
    facts = {
        "step": state.step,
        "map": result.map,
        **_values(result),
        "protocol": result.protocol.name,
        "class_names": state.class_names,
        "thresholds": best_thresholds(result),
        "config": to_dict(config),
    }
    weights = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    save_weights(folder.best_file, weights, {"stepgrad": json.dumps(finite(facts))})


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    folder: Path
    step: int
    best_step: int
    maps: dict[str, float]
    """mAP of the best checkpoint, by protocol."""
    report: Path | None
    metrics: dict[str, float] = field(default_factory=dict)
    """The run's metric at the best checkpoint, by its name, if it is not AP."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Where the time went since the run was started or resumed, by part of the work."""


def finish_run(
    config: TrainConfig,
    folder: RunFolder,
    evaluator: Evaluator,
    dataset: DetectionDataset,
    state: State,
    log: Log | None,
) -> RunResult:
    """Write evaluation.json and the report, if this is the process that has the log."""
    result = evaluator.compute()
    values = _values(result)
    maps = {name: found.map for name, found in {result.protocol.name: result, **result.others}.items()}
    report: Path | None = None
    if log is not None:
        content = {"step": state.best_step, **result.to_dict()}
        write_whole(folder.evaluation_file, (json.dumps(finite(content), indent=1) + "\n").encode())
        end = {"kind": "end", "step": state.step, "best_step": state.best_step, "best_map": state.best_map}
        log.write({**end, **({"best_metrics": values} if values else {}), "seconds": state.seconds})
        if config.run.report:
            from stepgrad.report import write_report

            report = write_report(
                folder.path,
                title=folder.path.name,
                config=to_dict(config),
                history=folder.history(),
                evidence=evaluator.evidence(),
                protocols=list(maps),
                dataset=dataset,
                metrics=config.metrics,
            )
    return RunResult(folder.path, state.step, state.best_step, maps, report, values)


def _values(result: EvaluationResult) -> dict[str, float]:
    """The metrics of the run other than mAP, by name."""
    return {name: found.value for name, found in result.metrics.items()}
