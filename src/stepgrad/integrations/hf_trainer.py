"""A callback for the Hugging Face `Trainer`: mAP of the training batches in its logs, and MAPLoss from a given step on."""

from __future__ import annotations

from typing import Any

from stepgrad.extras import need
from stepgrad.integrations._switch import check_switch_at, find_switch

need("transformers.trainer_callback", purpose="stepgrad.integrations.hf_trainer")

from transformers.trainer_callback import TrainerCallback

__all__ = ["MAPCallback"]


class MAPCallback(TrainerCallback):
    """Logs the true mAP of the training batches, and switches from the model's own loss to MAPLoss at a step.

    For a model prepared by `stepgrad.integrations.transformers.train_for_map`. Each entry of the log that has the
    training loss gets the mean mAP of the batches since the last as "batch_map"; TensorBoard and others show it as
    train/batch_map.

    Args:
        switch_at: number of optimiser steps with the model's own loss; MAPLoss comes after them. It depends on the
            Trainer's count alone, so a run resumed from a checkpoint switches when it would have. None: leave the
            switch as it is.

    `MAPCallback(...).add_to(trainer)` puts it before the callbacks that write logs to files and services, which would
    otherwise not see the mAP; with `Trainer(callbacks=[...])` it shows on the screen and in `state.log_history` only.

    >>> callback = MAPCallback(switch_at=1000)
    """

    def __init__(self, switch_at: int | None = None) -> None:
        check_switch_at(switch_at)
        self.switch_at = switch_at
        self._batch_maps: list[float] = []

    def add_to(self, trainer: Any) -> MAPCallback:
        """Make this the first callback of a Trainer; returns the callback."""
        find_switch(trainer.model)
        trainer.callback_handler.callbacks.insert(0, self)
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        find_switch(kwargs["model"])  # says at once if the model was not prepared
        self._batch_maps = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.switch_at is not None:
            find_switch(kwargs["model"]).enabled = state.global_step >= self.switch_at

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        metrics = find_switch(kwargs["model"]).metrics
        if "map" in metrics:
            self._batch_maps.append(metrics["map"])

    on_substep_end = on_step_end

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        logs = kwargs["logs"]
        if "loss" not in logs or not self._batch_maps:
            return
        logs["batch_map"] = sum(self._batch_maps) / len(self._batch_maps)
        state.log_history[-1]["batch_map"] = logs["batch_map"]  # the Trainer has made this entry already
        self._batch_maps = []
