"""A Lightning callback: mAP of every training batch in the log, MAPLoss from a given step on, and the best weights kept."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepgrad.errors import whole_number
from stepgrad.extras import need
from stepgrad.models.keep_best import BestWeights, keep_best, turn_on
from stepgrad.models.switch import check_switch_at, find_switch

if TYPE_CHECKING:
    from torch import nn

    from stepgrad.models.held_out import HeldOut

__all__ = ["MAPCallback"]


def _callback_classes() -> tuple[type, ...]:
    """Callback of each Lightning there is: the two packages do not know each other's classes."""
    classes: list[type] = []
    for name in ("lightning.pytorch.callbacks", "pytorch_lightning.callbacks"):
        with suppress(ImportError):
            classes.append(import_module(name).Callback)
    if not classes:
        need("lightning.pytorch.callbacks", purpose="stepgrad.models.frameworks.lightning")
        import_module("lightning.pytorch.callbacks")  # there but broken: its own error says how
    return tuple(classes)


class _MAPCallback:
    """Logs the true mAP of each training batch, and switches from the model's own loss to MAPLoss at a step.

    For a LightningModule that holds a detector prepared by `train_for_map` (of `stepgrad.models.torchvision` or
    `.transformers`), anywhere among its modules. Works with the Trainers of `lightning` and of `pytorch_lightning`.

    Args:
        switch_at: number of optimiser steps with the model's own loss; MAPLoss comes after them. Only the Trainer's
            count matters, so a run resumed from a checkpoint switches at the same step. None: leave the
            switch as it is.
        log_name: of the batch's value in the log. None: "train/batch_map", or for a `DetectionLoss` "train/batch_" and the
            name of its metric.
        prog_bar: show it in the progress bar as well.
        val_data: held-out batches for `keep_best`, or a function, see there: the fit ends with the weights that have the
            highest mAP on them, those at the start and at the switch included. What was kept is `callback.best.summary`,
            and the measurements are logged as "held_out_map" (or the metric's name). A resumed fit starts its comparison again.
        every: number of optimiser steps between measurements.

    >>> MAPCallback(switch_at=1000)
    MAPCallback(switch_at=1000)
    """

    def __init__(
        self,
        switch_at: int | None = None,
        log_name: str | None = None,
        prog_bar: bool = True,
        val_data: HeldOut | None = None,
        every: int = 100,
    ) -> None:
        check_switch_at(switch_at)
        self.switch_at = switch_at
        self.log_name = log_name
        self.prog_bar = prog_bar
        self.val_data = val_data
        self.every = whole_number("every", every, least=1)
        self.best: BestWeights | None = None
        self._steps = 0

    def on_fit_start(self, trainer: Any, pl_module: nn.Module) -> None:
        find_switch(pl_module)  # says at once if no model was prepared

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        self._steps = trainer.global_step
        if self.val_data is not None:
            self.best = keep_best(pl_module, self.val_data, every=self.every)

    def on_train_batch_start(self, trainer: Any, pl_module: nn.Module, *_: Any, **__: Any) -> None:
        if self.switch_at is not None:
            turn_on(find_switch(pl_module), trainer.global_step >= self.switch_at, self.best)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        for name, value in find_switch(pl_module).batch_value.items():
            log_name = self.log_name or f"train/batch_{name}"
            pl_module.log(log_name, value, on_step=True, on_epoch=False, prog_bar=self.prog_bar)
        if self.best is not None and trainer.global_step != self._steps:  # not in the middle of an accumulation
            self._steps = trainer.global_step
            self.best.step()
            pl_module.log_dict(self.best.held_out_value, on_step=True, on_epoch=False)

    def on_train_end(self, trainer: Any, pl_module: nn.Module) -> None:
        if self.best is not None:
            self.best.restore()

    def __repr__(self) -> str:
        return f"MAPCallback(switch_at={self.switch_at})"


if TYPE_CHECKING:
    MAPCallback = _MAPCallback
else:
    MAPCallback = type("MAPCallback", (_MAPCallback, *_callback_classes()), {"__doc__": _MAPCallback.__doc__})
    MAPCallback.__module__ = __name__
