"""The validation of a training, judged by the metric that it trains for: fitness, best.pt and early stopping go by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepgrad.evaluation import Evaluator
from stepgrad.losses.objective import Objective
from stepgrad.models.held_out import value_of
from stepgrad.models.left_out import judged
from stepgrad.models.yolo.counted import Counted, columns_of
from stepgrad.models.yolo.ignored import EVERY_ROW, Ignored, without_regions
from stepgrad.models.yolo.settings import PREFIX
from stepgrad.processes import gather_objects

_ROWS = ("cls", "bboxes", "batch_idx")


def judge_by(validator: Any, objective: Objective, ignored: Ignored) -> None:
    """Let a validator also measure an objective, with regions left out, and call that the fitness.

    Its stock numbers stay what they are: regions are no objects there, and detections in them count as wrong.
    """
    stock = type(validator)
    counted: list[Counted] = []

    def init_metrics(model: Any) -> None:
        stock.init_metrics(validator, model)
        counted[:] = [Counted()]

    def preprocess(batch: Mapping[str, Any]) -> Any:
        rows = {key: batch[key] for key in _ROWS}
        ready = stock.preprocess(validator, without_regions(batch, ignored.classes))
        return {**ready, EVERY_ROW: {key: value.to(ready["img"].device) for key, value in rows.items()}}

    def update_metrics(preds: Any, batch: Mapping[str, Any]) -> None:
        stock.update_metrics(validator, preds, batch)
        for i, pred in enumerate(preds[0] if isinstance(preds, tuple) else preds):
            found = columns_of(pred, one_class=validator.args.single_cls)
            counted[-1].add(i, found, {**batch, **batch[EVERY_ROW]})

    def gather_stats() -> None:  # called by every process that validates
        if hasattr(stock, "gather_stats"):
            stock.gather_stats(validator)
        mine = counted[-1]
        counted[:] = gather_objects(mine)

    def get_stats() -> Any:
        value = _measured(counted, objective, ignored)
        name = objective.metric.name if objective.logged_name != "map" else "map"
        shown = {f"{PREFIX}{name.replace(',', ';')}": value}  # a comma would end the column of results.csv
        return {**stock.get_stats(validator), **shown, "fitness": fitness_of(value, objective)}

    for wrapped in (init_metrics, preprocess, update_metrics, gather_stats, get_stats):
        setattr(validator, wrapped.__name__, wrapped)


def fitness_of(value: float, objective: Objective) -> float:
    """A number that ultralytics can raise: it takes 0 for the worst, so a cost becomes 1 / (1 + cost)."""
    return value if objective.metric.higher_is_better else 1.0 / (1.0 + value)


def _measured(parts: list[Counted], objective: Objective, ignored: Ignored) -> float:
    evaluator = Evaluator(objective.num_classes, objective.protocol, metrics=[objective.metric])
    for part in parts:
        for found, image in zip(part.found, part.there, strict=True):
            target = ignored.as_target(image["boxes"], image["labels"])
            left, there = judged(found, target, objective.protocol)
            evaluator.update([left], [there])
    return value_of(evaluator.compute(), objective)
