"""What remains of a run: its best weights, their evaluation, and the report."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stepgrad.data.base import DetectionDataset
from stepgrad.detector.training.config import TrainConfig, to_dict
from stepgrad.detector.training.features import ImageSource
from stepgrad.detector.training.inputs import Data
from stepgrad.detector.training.progress import Progress, QuietProgress
from stepgrad.detector.training.run_folder import RunFolder, load_into
from stepgrad.detector.training.run_log import NoLog, RunLog, finite
from stepgrad.detector.training.state import RunResult, State
from stepgrad.evaluation import Evaluator
from stepgrad.evaluation.result import EvaluationResult, best_thresholds
from stepgrad.files import write_whole
from stepgrad.metric.options import get_metric
from stepgrad.processes import gather_objects, rank, world
from stepgrad.weights_file import load_weights, save_weights

if TYPE_CHECKING:
    from stepgrad.detector import FastRCNN


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
        **{name: found.value for name, found in result.metrics.items()},
        "protocol": result.protocol.name,
        "class_names": state.class_names,
        "thresholds": best_thresholds(result),
        "config": to_dict(config),
    }
    weights = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    save_weights(folder.best_file, weights, {"stepgrad": json.dumps(finite(facts))})


def validate_best(
    config: TrainConfig, folder: RunFolder, model: FastRCNN, val: Data, source: ImageSource, progress: Progress
) -> Evaluator:
    """Run the best weights over the validation images once more."""
    tensors, _ = load_weights(folder.best_file)
    load_into(model, tensors, str(folder.best_file))
    protocols = [config.protocol, *config.also_report]
    return validate(model, val, protocols, progress, source, what="evaluating the best step", metrics=config.metrics)


def finish_run(
    config: TrainConfig,
    folder: RunFolder,
    evaluator: Evaluator,
    dataset: DetectionDataset,
    state: State,
    log: RunLog,
) -> RunResult:
    """Write evaluation.json and the report, if this is the process that writes."""
    result = evaluator.compute()
    content = {"step": state.best_step, **result.to_dict()}
    values = {name: found.value for name, found in result.metrics.items()}
    maps = {name: found.map for name, found in {result.protocol.name: result, **result.others}.items()}
    if isinstance(log, NoLog):
        return RunResult(folder.path, state.step, state.best_step, maps, None, values)
    write_whole(folder.evaluation_file, (json.dumps(finite(content), indent=1) + "\n").encode())
    log.write(
        {
            "kind": "end",
            "step": state.step,
            "best_step": state.best_step,
            "best_map": state.best_map,
            **({"best_metrics": values} if values else {}),
            "seconds": state.seconds,
        }
    )
    report: Path | None = None
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


if TYPE_CHECKING:
    from stepgrad.detector import FastRCNN

IMAGES_AT_ONCE = 4


@torch.no_grad()
def validate(
    model: FastRCNN,
    data: Data,
    protocols: Sequence[str],
    progress: Progress | None = None,
    source: ImageSource | None = None,
    between: Callable[[], None] = lambda: None,
    what: str = "validating",
    metrics: Sequence[str] = (),
) -> Evaluator:
    """Detect on every image of `data`, each process on its share; the evaluator that comes back has seen all of it.

    Args:
        between: called now and then; may raise to cut the work short.
        metrics: reported in addition to mAP, under the first protocol and the others.
    """
    source = source or ImageSource()
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
                examples = [source.example(data, i) for i in chosen]
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
