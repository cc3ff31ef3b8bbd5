"""What a trainer of ultralytics does differently to train for mAP: a mixin in front of its class."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from stepgrad.errors import ConfigError
from stepgrad.files import remove_leftovers
from stepgrad.losses.detection import DetectionLoss, MAPLoss
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.options import get_metric
from stepgrad.metric.protocol import Protocol
from stepgrad.models.auto_weight import AutoWeight
from stepgrad.models.switch import loss_settings
from stepgrad.models.yolo.heads import MANY, ONE
from stepgrad.models.yolo.ignored import Ignored, read_ignored
from stepgrad.models.yolo.judged import judge_by
from stepgrad.models.yolo.loss import HeadSwitch, WithMAP, item_name, make_switches, without_item
from stepgrad.models.yolo.resume import (
    WholePath,
    in_columns,
    remember,
    remembered,
    resume_line,
    stripped_whole,
    watch_resumes,
)
from stepgrad.models.yolo.settings import (
    CLOSE_MOSAIC,
    NAME,
    OTHER_NAME,
    TRAINERS,
    YoloSettings,
    handed_on,
    inherited,
    make_loss,
    on_log_scores,
)
from stepgrad.models.yolo.shapes import task_of

MODULE = "stepgrad.models.yolo"  # where the classes are found by name
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
    map_ignored: Ignored | None = None
    """Regions that the data marks; None if there are none, or they are not to be ignored."""
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
        metric: str | ListMetric | None = None,
        task: str | None = None,
        weight: float | str | AutoWeight = "auto",
        start: int | str = CLOSE_MOSAIC,
        protocol: str | Protocol = "coco",
        candidates: int = 1000,
        per_object: int = 10,
        measure: bool = False,
        ignore: bool = True,
        **loss_options: Any,
    ) -> type[MAPTraining]:
        """The same trainer with other options.

        Args:
            metric: what to train for in place of mAP, by its name as for `--metric` or one of `sg.metrics`:
                "recall@precision=0.95". Validation measures it, too, and fitness, best.pt and early stopping go by it.
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
            ignore: leave out regions that the data marks (`ignore:` and `unlabelled:` of data.yaml, ignored_regions.json):
                windows there count neither in mAP nor as background in the stock classification loss; fitness ignores them, too.
            loss_options: of `MAPLoss`, such as `class_weights`, or with a metric of `DetectionLoss`; its `nms_threshold` is
                that of validation (`iou`) unless given.
        """
        loss = _loss_options(metric, protocol, loss_options)
        settings = YoloSettings(
            weight=weight,
            start=start,
            candidates=candidates,
            per_object=per_object,
            measure=measure,
            task=task,
            ignore=ignore,
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
        """Go on from a checkpoint."""
        super().resume_training(checkpoint)
        if checkpoint is not None and self.resume:
            remove_leftovers(Path(self.wdir))  # of a run that was killed while it saved

    def final_eval(self) -> None:
        """As the stock trainer; weights without the optimiser are put in place whole."""
        with stripped_whole():
            super().final_eval()

    def save_metrics(self, metrics: Mapping[str, Any]) -> None:
        """A row of results.csv, each number below its name."""
        super().save_metrics(in_columns(self.csv, metrics))

    def setup_model(self) -> Any:
        """As the stock trainer; a run that goes on has its options from here on, unless others are given."""
        checkpoint = super().setup_model()
        if self.resume and isinstance(checkpoint, Mapping) and not self.given:
            self.map_settings = remembered(checkpoint) or self.map_settings
        self.map_ignored = self._read_ignored() if self.map_settings.ignore else None
        return checkpoint

    def build_dataset(self, *positional: Any, **named: Any) -> Any:
        """As the stock trainer; regions to ignore are among its labels from here on."""
        dataset = super().build_dataset(*positional, **named)
        if self.map_ignored is not None:
            count = self.map_ignored.put_into(dataset)
            _say(f"MAPTrainer: {count} ignored regions in {len(dataset.labels)} images")
        return dataset

    def get_validator(self) -> Any:
        """As the stock trainer's; it also measures the metric, or mAP without ignored regions, where that is the fitness."""
        validator = super().get_validator()
        if self.map_settings.metric is not None or self.map_ignored is not None:
            K = int(self.data["nc"])
            objective = make_loss(K, self.map_settings.loss).objective
            judge_by(validator, objective, self.map_ignored or Ignored(K, [], {}, {}))
        return validator

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
        ours = (f"{prefix}/{NAME}", f"{prefix}/{OTHER_NAME}")
        if isinstance(labels, Mapping):
            return {name: value for name, value in labels.items() if name not in ours}
        return [name for name in labels if name not in ours]

    def _read_ignored(self) -> Ignored | None:
        ignored = read_ignored(self.data)
        if not ignored.any:
            return None
        task = task_of(self.map_settings.task, self.args.task)
        if self.args.task not in ("detect", "pose") or task != "boxes" or self.args.single_cls:
            raise ConfigError(
                f"Expected boxes of a detector or of poses, and classes, for ignored regions but got task={self.args.task!r}, "
                f"{task}, single_cls={self.args.single_cls}; MAPTrainer.options(ignore=False) trains them as background."
            )
        return ignored

    def _add_map(self) -> None:
        model = bare_model(self.model)
        stock = getattr(model, "criterion", None) or model.init_criterion()
        self.map_switches = make_switches(self.map_settings, stock, self.args)
        # Validation reports the head without NMS where nms is False; elsewhere the other, if there are two.
        shown = ONE if getattr(self.args, "nms", None) is False else MANY
        shown = shown if shown in self.map_switches else ""
        self.map_loss_switch = self.map_switches[shown]
        model.criterion = WithMAP(stock, self.map_switches, shown, self.map_ignored)
        name = item_name(self.map_loss_switch.loss_fn)
        if self.loss_names and name not in self.loss_names:  # where they are not taken from the first batch
            self.loss_names = (*self.loss_names, name)
        remember(self.optimizer, self.map_settings)
        _say(f"MAPTrainer: {self.map_settings.in_words(self.args, self.epochs)}")
        if self.map_ignored is not None or self.map_settings.metric is not None:
            what = self.map_settings.metric or "mAP"
            _say(
                f"MAPTrainer: best.pt and early stopping go by stepgrad's {what} of the validation images, without ignored "
                "regions; the table of ultralytics counts detections in such regions as wrong"
            )

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


def _loss_options(metric: Any, protocol: str | Protocol, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the loss, in plain values that checkpoints and other processes can have."""
    given = dict(options)
    if given.get("class_weights") is not None:
        given["class_weights"] = [float(weight) for weight in given["class_weights"]]
    if metric is not None:
        named = get_metric(metric)
        if not named.is_compiled:
            raise ConfigError(
                f"Expected a metric of sg.metrics, which has a name, but got the function {named.name!r}."
            )
        given = {"metric": named.name, "balance": None, "absent_classes": None, **given}
    loss = loss_settings(given, protocol, None, [MAPLoss if metric is None else DetectionLoss], MAPTraining.options)
    make_loss(len(given.get("class_weights") or [1.0]), on_log_scores(loss))  # says at once what is wrong with them
    return loss


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
