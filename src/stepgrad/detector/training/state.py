"""The counters of a run, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepgrad.detector.training.checkpoint import Checkpoint
from stepgrad.errors import DataError
from stepgrad.evaluation.result import EvaluationResult


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


def _fits(value: Any, default: Any) -> bool:
    """Whether a value is of the kind of its default; whole numbers are numbers."""
    return isinstance(value, (int, float) if isinstance(default, float) else type(default)) and default is not None


@dataclass
class State:
    """With weights and momentum, all that a checkpoint needs."""

    step: int = 0
    """Steps taken."""
    seconds: float = 0.0
    """Spent in them."""
    validated: int = 0
    """The last step that was validated."""
    best_step: int = 0
    best_map: float = -1.0
    best_merit: float = -1.0
    """What the best step was chosen by: its mAP, or the metric of the run; larger is better."""
    log_length: int = 0
    """Bytes of log.jsonl that belong to the steps taken."""
    class_names: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> State:
        """The counters in a checkpoint, or a DataError if it holds something else."""
        counters = {name: default for name, default in vars(cls()).items() if name != "step"}
        wrong = [name for name, value in checkpoint.state.items() if not _fits(value, counters.get(name))]
        if wrong:
            raise DataError(
                f"the checkpoint of step {checkpoint.step} has no valid {', '.join(wrong)}: another program or version "
                "wrote it; start the run again in a new folder"
            )
        first_kept = {"best_merit": checkpoint.state.get("best_map", -1.0)}  # by which older runs chose
        return cls(step=checkpoint.step, **{**first_kept, **checkpoint.state})

    def is_better(self, merit: float) -> bool:
        """Whether a validated step is the best so far."""
        return self.best_step == 0 or merit > self.best_merit

    def validation_line(self, result: EvaluationResult, phase: str) -> tuple[dict[str, Any], EvaluationResult]:
        """What the log holds of a validation."""
        results = {result.protocol.name: result, **result.others}
        line = {
            "kind": "val",
            "step": self.step,
            "phase": phase,
            "map": {name: found.map for name, found in results.items()},
            "ap": {name: {row.name: row.ap for row in found.classes} for name, found in results.items()},
            **({"metrics": {name: m.value for name, m in result.metrics.items()}} if result.metrics else {}),
            "images": result.images,
            "seconds": self.seconds,
        }
        return line, result
