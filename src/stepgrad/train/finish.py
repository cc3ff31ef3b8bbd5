"""What remains of a run: its best weights, their evaluation, and the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from stepgrad.data.base import DetectionDataset
from stepgrad.evaluation import Evaluator
from stepgrad.evaluation.result import EvaluationResult
from stepgrad.files import write_whole
from stepgrad.train.config import TrainConfig, to_dict
from stepgrad.train.features import ImageSource
from stepgrad.train.inputs import Data
from stepgrad.train.log_file import finite
from stepgrad.train.progress import Progress
from stepgrad.train.run_folder import RunFolder, load_into
from stepgrad.train.run_log import NoLog, RunLog
from stepgrad.train.state import RunResult, State
from stepgrad.train.validate import best_thresholds, validate
from stepgrad.train.weights_file import load_weights, save_weights

if TYPE_CHECKING:
    from stepgrad.detector import FastRCNN


def save_best(folder: RunFolder, model: FastRCNN, config: TrainConfig, state: State, result: EvaluationResult) -> None:
    """The weights alone, with what is needed to use them: classes, thresholds and the config."""
    facts = {
        "step": state.step,
        "map": result.map,
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
    return validate(model, val, protocols, progress, source, what="evaluating the best step")


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
    maps = {name: found.map for name, found in {result.protocol.name: result, **result.others}.items()}
    if isinstance(log, NoLog):
        return RunResult(folder.path, state.step, state.best_step, maps, None)
    write_whole(folder.evaluation_file, (json.dumps(finite(content), indent=1) + "\n").encode())
    log.write(
        {
            "kind": "end",
            "step": state.step,
            "best_step": state.best_step,
            "best_map": state.best_map,
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
        )
    return RunResult(folder.path, state.step, state.best_step, maps, report)
