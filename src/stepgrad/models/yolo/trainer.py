"""What a trainer of ultralytics does differently to train for mAP: a mixin in front of its class."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from stepgrad.errors import ConfigError
from stepgrad.extras import need
from stepgrad.files import remove_leftovers
from stepgrad.losses.detection import MAPLoss
from stepgrad.losses.distributed import DistributedMAPLoss
from stepgrad.metric.protocol import Protocol
from stepgrad.models.auto_weight import AutoWeight
from stepgrad.models.switch import loss_settings
from stepgrad.models.yolo.heads import MANY, ONE
from stepgrad.models.yolo.loss import NAME, HeadSwitch, WithMAP, make_switches, without_item
from stepgrad.models.yolo.resume import (
    WholePath,
    in_columns,
    remember,
    remembered,
    resume_line,
    stripped_whole,
    watch_resumes,
)
from stepgrad.models.yolo.settings import CLOSE_MOSAIC, YoloSettings, handed_on, inherited
from stepgrad.models.yolo.shapes import task_of

MODULE = "stepgrad.models.yolo"  # where the classes are found by name
TRAINERS = {
    "detect": "MAPTrainer",
    "segment": "MAPSegmentationTrainer",
    "pose": "MAPPoseTrainer",
    "obb": "MAPOBBTrainer",
}
_STOCK = {
    "detect": "DetectionTrainer",
    "segment": "SegmentationTrainer",
    "pose": "PoseTrainer",
    "obb": "OBBTrainer",
}


_Trainer: Any = object  # what the mixin is put in front of: a trainer of ultralytics, once it is imported


class MAPTraining(_Trainer):
    """Mixin of the trainers; see `stepgrad.models.yolo`."""

    settings: ClassVar[YoloSettings] = YoloSettings(loss=loss_settings({}, "coco", None, [MAPLoss], YoloSettings))
    given: bool = False  # whether these are options that somebody gave, and not the usual ones
    map_switches: Mapping[str, HeadSwitch] = {}
    map_loss_switch: HeadSwitch
    """That of the head whose mAP is in the log; like the switch of other models, its `metrics` are of the last batch."""
    wdir: Any
    last: Any
    best: Any
    loss_names: Any
    loss_items: Any

    @classmethod
    def options(
        cls,
        *,
        task: str | None = None,
        weight: float | str | AutoWeight = "auto",
        start: int | str = CLOSE_MOSAIC,
        protocol: str | Protocol = "coco",
        candidates: int = 1000,
        per_object: int = 10,
        measure: bool = False,
        **loss_options: Any,
    ) -> type[MAPTraining]:
        """The same trainer with other options.

        Args:
            task: what mAP compares: "boxes", the default but for OBB; "masks" of a YOLO for segmentation or "keypoints" of one
                for poses, as it predicts them: the class score learns how well they fit; "oriented", for OBB.
            weight: of mAP. "auto": balances itself, so that mAP's gradient at the class logits is as long as that of the
                stock losses; `AutoWeight(share=...)` sets another share. A number stays fixed; 0 trains exactly as the
                stock trainer does, and measures mAP.
            start: number of epochs with the stock losses alone. "close_mosaic": until mosaic is closed, so that mAP is measured
                on images as in validation.
            protocol: what mAP means: "coco", "voc07", "voc12" or a `Protocol`.
            candidates: number of pairs of window and class per image that take part, those with the highest scores. A head
                without NMS uses its `max_det`.
            per_object: number of windows per object that also take part, those that overlap it most.
            measure: measure the batches' mAP before `start`, too; it costs as much as validation's NMS.
            loss_options: of `MAPLoss`; its `nms_threshold` is that of validation (`iou`) unless given.
        """
        loss = loss_settings(loss_options, protocol, None, [MAPLoss], MAPTraining.options)
        DistributedMAPLoss(1, **loss)  # says at once what is wrong with them
        settings = YoloSettings(
            weight=weight,
            start=start,
            candidates=candidates,
            per_object=per_object,
            measure=measure,
            task=task,
            loss=loss,
        )
        # The name stays: ultralytics before 8.4.140 starts its processes with a trainer that it imports by name.
        about = {"settings": settings, "given": True, "__module__": cls.__module__, "__doc__": cls.__doc__}
        return type(cls.__name__, (cls,), about)

    def __new__(cls, cfg: Any = None, overrides: Any = None, *more: Any, **named: Any) -> Any:
        task = _task(cfg, overrides)
        if task not in TRAINERS:
            raise ConfigError(f"Expected task to be one of {list(TRAINERS)} but got {task!r}; it has no boxes.")
        task_of(cls.settings.task, task)
        return object.__new__(_for_task(cls, task))

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        handed = inherited()
        self.map_settings = handed or type(self).settings
        self.given = handed is not None or type(self).given
        self.wdir, self.last, self.best = (WholePath(path) for path in (self.wdir, self.last, self.best))

    def train(self) -> Any:
        """As the stock trainer; processes that it starts get the options."""
        try:
            with handed_on(self.map_settings) if self.given else nullcontext():
                return super().train()
        except BaseException:
            if self.last.exists():
                _say(f"To continue this run for mAP: {resume_line(self.last)}")
            raise

    def resume_training(self, checkpoint: Any) -> None:
        """Go on from a checkpoint, with the options of the run unless others are given."""
        super().resume_training(checkpoint)
        if checkpoint is None or not self.resume:
            return
        remove_leftovers(Path(self.wdir))  # of a run that was killed while it saved
        if not self.given:
            self.map_settings = remembered(checkpoint) or self.map_settings

    def final_eval(self) -> None:
        """As the stock trainer; weights without the optimiser are put in place whole."""
        with stripped_whole():
            super().final_eval()

    def save_metrics(self, metrics: Mapping[str, Any]) -> None:
        """A row of results.csv, each number below its name."""
        super().save_metrics(in_columns(self.csv, metrics))

    def run_callbacks(self, event: str) -> None:
        """The callbacks of an event, and then what mAP needs at it."""
        super().run_callbacks(event)
        if event == "on_pretrain_routine_end":  # loaders, averaged model and a resumed state are there
            self._add_map()
        elif event == "on_train_epoch_start":
            self._set_switches()
        elif event == "teardown":
            self._take_map_out()

    def validate(self) -> Any:
        """Validation, of the averaged model with the stock losses, which do not know of mAP."""
        ours, self.loss_items = self.loss_items, without_item(self.loss_items, self.loss_names)
        try:
            return super().validate()
        finally:
            self.loss_items = ours

    def label_loss_items(self, loss_items: Any = None, prefix: str = "train") -> Any:
        """Names, or names and values, of the loss items; mAP of batches is one of training only."""
        labels = super().label_loss_items(loss_items, prefix)
        if prefix != "val":
            return labels
        ours = f"{prefix}/{NAME}"
        if isinstance(labels, Mapping):
            return {name: value for name, value in labels.items() if name != ours}
        return [name for name in labels if name != ours]

    def _add_map(self) -> None:
        model = bare_model(self.model)
        stock = getattr(model, "criterion", None) or model.init_criterion()
        self.map_switches = make_switches(self.map_settings, stock, self.args)
        # Validation reports the head without NMS where nms is False; elsewhere the other, if there are two.
        shown = ONE if getattr(self.args, "nms", None) is False else MANY
        shown = shown if shown in self.map_switches else ""
        self.map_loss_switch = self.map_switches[shown]
        model.criterion = WithMAP(stock, self.map_switches, shown)
        if self.loss_names and NAME not in self.loss_names:  # where they are not taken from the first batch
            self.loss_names = (*self.loss_names, NAME)
        remember(self.optimizer, self.map_settings)
        _say(f"MAPTrainer: {self.map_settings.in_words(self.args, self.epochs)}")

    def _set_switches(self) -> None:
        """By the epoch alone, so a resumed run has mAP where it would have had it."""
        begun = self.epoch >= self.map_settings.first_epoch(self.args, self.epochs)
        for switch in self.map_switches.values():
            switch.enabled = begun
            switch.measure = begun or self.map_settings.measure

    def _take_map_out(self) -> None:
        """Leave a model that can be pickled and used without stepgrad."""
        model = bare_model(self.model) if isinstance(self.model, nn.Module) else None
        criterion = getattr(model, "criterion", None)
        if isinstance(criterion, WithMAP):
            model.criterion = criterion.stock  # type: ignore[union-attr]


def _say(text: str) -> None:
    """A line in the log of ultralytics, from one of several processes."""
    from ultralytics.utils import LOGGER, RANK

    if RANK in (-1, 0):
        LOGGER.info(text)


def bare_model(model: Any) -> Any:
    """The model that DistributedDataParallel or compile wraps."""
    while isinstance(getattr(model, "module", None), nn.Module) or hasattr(model, "_orig_mod"):
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module
    return model


def _task(cfg: Any, overrides: Any) -> str:
    for source in (overrides, cfg):
        task = source.get("task") if isinstance(source, Mapping) else getattr(source, "task", None)
        if task is not None:
            return str(task)
    return "detect"


_made: dict[tuple[type, str], type] = {}


def make_trainer(task: str) -> type:
    """The trainer of a task with the usual options; always the same one."""
    need("ultralytics", purpose=MODULE)
    watch_resumes()
    return _for_task(_for_task(MAPTraining, "detect"), task)


def _for_task(cls: type, task: str) -> type:
    """The class for the task of the model: MAPTrainer is given to models of any."""
    stock: type = getattr(import_module(f"ultralytics.models.yolo.{task}"), _STOCK[task])
    if issubclass(cls, stock):
        return cls
    if (cls, task) not in _made:
        about = {"__module__": MODULE, "__doc__": MAPTraining.options.__doc__}
        _made[cls, task] = type(TRAINERS[task], (cls, stock), about)
    return _made[cls, task]
