"""A callback for the Hugging Face `Trainer`: mAP of the training batches in its logs, MAPLoss from a given step on,
and the best weights kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepgrad.errors import whole_number
from stepgrad.extras import need
from stepgrad.models.keep_best import BestWeights, keep_best, turn_on
from stepgrad.models.switch import check_switch_at, find_switch

need("transformers.trainer_callback", purpose="stepgrad.models.frameworks.hf_trainer")

from transformers.trainer_callback import TrainerCallback

if TYPE_CHECKING:
    from stepgrad.models.held_out import HeldOut

__all__ = ["MAPCallback"]


class MAPCallback(TrainerCallback):
    """Logs the true mAP of the training batches, and switches from the model's own loss to MAPLoss at a step.

    For a model prepared by `stepgrad.models.detr.transformers.train_for_map`. Each entry of the log that has the
    training loss gets the mean mAP of the batches since the last entry as "batch_map" (for a `DetectionLoss`, "batch_" and the
    name of its metric); TensorBoard and others show it as train/batch_map.

    Args:
        switch_at: number of optimiser steps with the model's own loss; MAPLoss comes after them. Only the Trainer's
            count matters, so a run resumed from a checkpoint switches at the same step. None: leave the
            switch as it is.
        val_data: held-out batches for `keep_best`, or a function, see there: training ends with the weights that have the
            highest mAP on them, those at the start and at the switch included. What was kept is `callback.best.summary`,
            and the last measurement is in the log as "held_out_map" (or the metric's name). A resumed training starts its
            comparison again.
        every: number of optimiser steps between measurements.

    `MAPCallback(...).add_to(trainer)` puts it before the callbacks that write logs to files and services, which would
    otherwise not see the mAP; with `Trainer(callbacks=[...])` it shows on the screen and in `state.log_history` only.

    >>> callback = MAPCallback(switch_at=1000)
    """

    def __init__(self, switch_at: int | None = None, val_data: HeldOut | None = None, every: int = 100) -> None:
        check_switch_at(switch_at)
        self.switch_at = switch_at
        self.val_data = val_data
        self.every = whole_number("every", every, least=1)
        self.best: BestWeights | None = None
        self._batches: list[dict[str, float]] = []

    def add_to(self, trainer: Any) -> MAPCallback:
        """Make this the first callback of a Trainer; returns the callback."""
        find_switch(trainer.model)
        trainer.callback_handler.callbacks.insert(0, self)
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        find_switch(kwargs["model"])  # says at once if the model was not prepared
        self._batches = []
        if self.val_data is not None:
            self.best = keep_best(kwargs["model"], self.val_data, every=self.every)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.switch_at is not None:
            turn_on(find_switch(kwargs["model"]), state.global_step >= self.switch_at, self.best)

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._batches.append(find_switch(kwargs["model"]).batch_value)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.on_substep_end(args, state, control, **kwargs)
        if self.best is not None:
            self.best.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.best is not None:
            self.best.restore()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if "loss" not in kwargs["logs"]:
            return
        ours = {}
        for name in {name for batch in self._batches for name in batch}:
            values = [batch[name] for batch in self._batches if name in batch]
            ours[f"batch_{name}"] = sum(values) / len(values)
        if self.best is not None:
            ours |= self.best.held_out_value
        kwargs["logs"].update(ours)
        state.log_history[-1].update(ours)  # the Trainer has made this entry already
        self._batches = []
