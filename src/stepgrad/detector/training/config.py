"""Everything a run can be asked for, as frozen dataclasses with the numbers of the original Fast R-CNN as defaults.

The same fields are the keys of a YAML config and the options of `stepgrad train`; the docstring under a field is its
help text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from stepgrad.errors import ConfigError, one_of, suggest


@dataclass(frozen=True)
class DataConfig:
    """Images, objects and windows."""

    path: str = "shapes"
    """A VOC folder, a COCO json file or folder, a YOLO data.yaml, or `shapes`, the built-in set."""
    train: str | None = "train"
    """The split to train on, or a part of it such as `train[:1000]`; None for a single COCO file. Where `path` holds
    several VOC folders, write `VOC2007/trainval`, or `VOC2007/trainval+VOC2012/trainval` for two of them together."""
    val: str | None = "val"
    """The split to validate on."""
    val_path: str | None = None
    """The folder or file of the validation split, if it is not in `path`."""
    windows: str | None = None
    """The windows of both splits: a folder written by `stepgrad propose` (or a folder of such folders, each with the name
    of its VOC folder, such as `VOC2007`), an .npz or a .mat file. None: the built-in windows for shapes; for other data, a
    search that runs once and keeps its windows in `proposals/`."""
    val_windows: str | None = None
    """The windows of the validation split, if they are not in `windows`."""
    train_images: int | None = None
    """Number of training images to use, counted from the first; None: all."""
    val_images: int | None = None
    """Number of validation images to use, counted from the first; None: all."""
    max_windows: int | None = 2000
    """Largest number of windows to use per image: the first ones, or a fixed random choice where they have no order."""
    class_names: tuple[str, ...] | None = None
    """The classes of a VOC folder, in the order of the labels; None: VOC's twenty."""
    flip: bool = True
    """Whether to train on mirror images as well."""
    images_outside: bool = False
    """Whether file names and links in the data may lead out of its folder."""


@dataclass(frozen=True)
class ModelConfig:
    """The detector."""

    backbone: str = "alexnet"
    """The network below the head: `alexnet`, `vgg16`, `tiny` (which trains from random weights in a minute), or the name of
    another torchvision classifier."""
    weights: str | None = "imagenet"
    """The weights to start from: `imagenet` (torchvision's, downloaded), a .safetensors or .pt file (of the whole network or
    of its convolutions), the folder of a run (its best weights), or one of its checkpoints. None: random weights."""
    score: Literal["raw", "logprob"] | None = None
    """The score that windows are ranked by: the last activations (`raw`), or log-probabilities with a column for the
    background (`logprob`). None: `raw` if the run has no cross-entropy phase, else `logprob`."""
    hidden: int = 4096
    """Number of units of each of the layers fc6 and fc7."""
    dropout: float = 0.5
    """Share of the units of fc6 and fc7 that dropout switches off in training."""
    freeze: Literal["original", "trunk", "none"] = "original"
    """The layers that do not train: those that the original Fast R-CNN froze (`original`), all convolutions (`trunk`; their
    features are then kept on disk), or none of them (`none`)."""
    shortest_side: int | None = 600
    """Length in pixels to which the shortest side of each image is scaled; None: images stay as they are."""
    longest_side: int | None = 1000
    """Length in pixels that the longest side of a scaled image may have at most; None: any."""
    nms_threshold: float = 0.3
    """The IoU above which a window suppresses another one, in training and in detection."""
    candidates: int | None = 100
    """Largest number of windows per class and image that enter NMS in detection; None: all."""
    box_regression: bool = False
    """Whether the network also moves each window to a better box, one per class, as in the original Fast R-CNN; the paper
    does not."""


@dataclass(frozen=True)
class PhaseConfig:
    """A phase of training: what a minibatch holds, and how the weights are updated."""

    steps: int = 40_000
    """Number of minibatches of the phase."""
    images: int = 2
    """Number of images per minibatch, over all processes; one loss is computed over all of them."""
    chunk_images: int | None = None
    """Number of images of a minibatch that go through the network at a time. The gradient stays the same; memory is
    needed for these images only, at the cost of a second forward pass. None: all at once."""
    windows: int | None = 64
    """Number of windows per image; None: all."""
    foreground: float | None = 0.25
    """Largest share of the windows of an image that lie on objects (IoU >= 0.5); None: windows are drawn without regard to
    objects."""
    background_overlap: float = 0.1
    """Least IoU with an object that the other windows must have; 0: any."""
    ground_truth: bool = True
    """Whether the boxes of the objects themselves count as windows."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """The optimiser: SGD with momentum (`sgd`), or AdamW (`adamw`)."""
    lr: float = 1e-3
    """The learning rate of weights; biases have twice that, and no weight decay."""
    momentum: float = 0.9
    """Momentum of SGD."""
    caffe_momentum: bool = False
    """Whether SGD multiplies by the learning rate before it adds to the velocity, as Caffe does; the two ways differ only after a
    change of the rate."""
    weight_decay: float = 5e-4
    """Weight decay of the weights; biases have none."""
    drop_every: int | None = 30_000
    """Number of steps after which the learning rate is multiplied by `drop_factor`, each time; None: never."""
    drop_factor: float = 0.1
    """The factor by which the learning rate is multiplied at each drop."""
    warmup: int = 0
    """Number of steps at the start of the phase over which the learning rate rises from near zero to its value."""
    max_gradient_norm: float | None = None
    """Largest norm of the gradient of all weights together; a longer one is scaled down to it. None: any."""


@dataclass(frozen=True)
class MAPLossConfig:
    """The options of `stepgrad.MAPLoss`; protocol and NMS threshold come from the run and the model."""

    estimator: Literal["radius", "mee", "sde"] = "radius"
    """The estimator that turns steps of mAP into a gradient: `radius` (the difference over a fixed distance), `mee`
    (mean envelope) or `sde` (symmetric difference)."""
    radius: float = 3.0
    """Radius of the radius estimator, in units of the score."""
    through_nms: Literal["exact", "paper", "none"] = "exact"
    """The gradient of windows that NMS suppresses: their own (`exact`), the approximation of the paper (`paper`), or zero
    (`none`)."""
    log: bool = True
    """Whether the loss is -log(mAP + eps) instead of 1 - mAP."""
    eps: float = 0.01
    """The number that is added to mAP inside the logarithm, to keep it finite."""
    l4: float | None = None
    """Weight of the fourth power of the scores in the loss, which keeps them small; None: no such term."""
    clip: float | None = None
    """Largest absolute value of each element of the gradient; None: any."""
    min_step: float = 0.1
    """Lower bound on the distance to a step, used where a score has a step on one side only."""
    balance: Literal["none", "class", "class+scale"] = "class"
    """What is removed from the gradient: the part that shifts all scores of a class, so that pushes up and down sum to zero
    (`class`), also the part that only stretches them (`class+scale`), or nothing, as in the paper (`none`)."""
    absent_classes: Literal["zero", "skip"] | None = None
    """How classes without objects in the minibatch count: as an AP of zero (`zero`), or not at all (`skip`); None: as the
    protocol has it."""
    nll_weight: float = 0.0
    """Weight of the cross-entropy of the same windows in the loss; any weight but 0 needs `model.score: logprob`."""


@dataclass(frozen=True)
class RunConfig:
    """Seed, checkpoints, devices."""

    seed: int = 3
    """Seed of the random weights, the order of images, the choice of windows and dropout; the original Fast R-CNN used 3."""
    eval_every: int | None = None
    """Number of steps between validations; None: a tenth of the run."""
    save_every: int | None = None
    """Number of steps between checkpoints; None: one at each validation."""
    keep: int = 2
    """Number of checkpoints to keep, in addition to the best one and the last one of each phase."""
    log_every: int = 10
    """Number of steps between lines of the log."""
    report: bool = True
    """Whether to write report.html at the end."""
    accelerator: str = "auto"
    """The kind of device to train on: `cpu`, `cuda`, `mps`, or `auto` for the best available."""
    devices: int = 1
    """Number of devices to train on, with one process per device."""
    precision: Literal["32-true", "16-mixed", "bf16-mixed"] = "32-true"
    """Precision of the arithmetic: single (`32-true`), or single mixed with half precision."""
    timeout: float = 300.0
    """Number of seconds that processes wait for each other before they give up."""
    feature_cache: str | None = None
    """The folder where features of a frozen trunk are kept; None: a folder inside the run folder."""


class Phase(NamedTuple):
    """A phase of a run, and its place in it."""

    name: str
    config: PhaseConfig
    first: int
    """Number of steps before it."""
    images_before: int

    @property
    def end(self) -> int:
        return self.first + self.config.steps


def _map_phase() -> PhaseConfig:
    return PhaseConfig(
        steps=10_000, images=16, windows=500, foreground=None, background_overlap=0.0, ground_truth=False
    )


@dataclass(frozen=True)
class TrainConfig:
    """A whole training run."""

    loss: Literal["nll", "map", "nll-then-map"] = "nll-then-map"
    """The loss to train with: cross-entropy, as in Fast R-CNN (`nll`), mAP after NMS (`map`), or first cross-entropy, then
    mAP (`nll-then-map`)."""
    protocol: str = "voc12"
    """The protocol of the mAP to train for: voc07, voc12 or coco. The best checkpoint is chosen by it, too."""
    metric: str = "ap"
    """The metric to train for in the mAP phase; the best checkpoint is chosen by it, too. It is `ap`, or a metric that detectors
    are deployed by, such as `recall@precision=0.95`, `f1` or `cost@threshold=-1,miss=10`. A metric with a fixed score threshold
    needs `map_loss.balance: none`."""
    also_report: tuple[str, ...] = ()
    """Further protocols by which to report mAP."""
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    nll: PhaseConfig = field(default_factory=PhaseConfig)
    """The cross-entropy phase."""
    map: PhaseConfig = field(default_factory=_map_phase)
    """The mAP phase."""
    map_loss: MAPLossConfig = field(default_factory=MAPLossConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def phases(self) -> list[Phase]:
        """The phases of the run in order, without empty ones."""
        placed: list[Phase] = []
        steps = images = 0
        for name, phase in (("nll", self.nll), ("map", self.map)):
            if name in self.loss.split("-then-") and phase.steps > 0:
                placed.append(Phase(name, phase, steps, images))
                steps, images = steps + phase.steps, images + phase.steps * phase.images
        return placed

    @property
    def total_steps(self) -> int:
        return self.phases()[-1].end

    @property
    def score(self) -> Literal["raw", "logprob"]:
        """What the model ranks by."""
        needs_softmax = self.loss != "map" or self.map_loss.nll_weight > 0
        return self.model.score or ("logprob" if needs_softmax else "raw")

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics to report in addition to mAP."""
        return () if self.metric == "ap" else (self.metric,)

    def __post_init__(self) -> None:
        """Raise ConfigError, naming the key, for what cannot work."""
        from stepgrad.metric.protocol import PROTOCOLS  # the help page should not wait for numpy

        for protocol in (self.protocol, *self.also_report):
            one_of("protocol", protocol, list(PROTOCOLS))
        if self.metric != "ap":
            self._check_metric()
        if self.loss != "map" and self.model.score == "raw":
            raise ConfigError("model.score: cross-entropy needs `logprob` (it has a background column) but got `raw`.")
        if self.map_loss.nll_weight > 0 and self.model.score == "raw":
            raise ConfigError("map_loss.nll_weight: needs model.score `logprob` but got `raw`.")
        for name, phase in (("nll", self.nll), ("map", self.map)):
            _check_phase(name, phase)
        for key in ("keep", "log_every", "devices"):
            _expect(getattr(self.run, key) >= 1, f"run.{key}", "a number >= 1", getattr(self.run, key))
        if not self.phases():
            raise ConfigError(f"loss: {self.loss!r} has no steps; give nll.steps or map.steps.")

    def _check_metric(self) -> None:
        from stepgrad.metric.options import (  # not for AP: other configs should not wait for numba
            get_metric,
            get_protocol,
        )

        metric = get_metric(self.metric)
        for protocol in (self.protocol, *self.also_report):
            metric.check_protocol(get_protocol(protocol))
        if self.map_loss.balance != "none" and not metric.shift_invariant:
            raise ConfigError(
                f"map_loss.balance: expected `none` for {metric.name}, which has a fixed score threshold, but got "
                f"`{self.map_loss.balance}`."
            )


def _check_phase(name: str, phase: PhaseConfig) -> None:
    for key, value in vars(phase).items():
        if key in ("images", "lr"):
            _expect(value > 0, f"{name}.{key}", "a number > 0", value)
        if key in ("steps", "warmup", "weight_decay"):
            _expect(value >= 0, f"{name}.{key}", "a number >= 0", value)
        if key in ("windows", "chunk_images", "drop_every", "max_gradient_norm"):
            _expect(value is None or value > 0, f"{name}.{key}", "a number > 0 or null", value)
        if key == "foreground":
            _expect(value is None or 0 <= value <= 1, f"{name}.{key}", "a share from 0 to 1", value)


def _expect(holds: bool, key: str, expected: str, value: object) -> None:
    if not holds:
        raise ConfigError(f"{key}: expected {expected} but got {value!r}.")


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """Plain nested dicts and lists, as YAML and JSON hold them."""
    return dataclasses.asdict(
        config, dict_factory=lambda pairs: {key: list(v) if isinstance(v, tuple) else v for key, v in pairs}
    )


def from_dict(content: Mapping[str, Any], base: TrainConfig | None = None) -> TrainConfig:
    """A config from nested dicts; keys left out are those of `base`. An unknown key is an error with a suggestion.

    >>> from_dict({"nll": {"step": 3}})
    Traceback (most recent call last):
    stepgrad.errors.ConfigError: nll.step: no such key. Did you mean 'steps'?
    """
    merged: TrainConfig = _merge(base or TrainConfig(), content, "")
    return merged


def _merge(base: Any, content: Mapping[str, Any], where: str) -> Any:
    known = [f.name for f in fields(base)]
    hints = get_type_hints(type(base))
    changes: dict[str, Any] = {}
    for key, value in content.items():
        if key not in known:
            raise ConfigError(f"{where}{key}: no such key.{suggest(key, known)}")
        current = getattr(base, key)
        if is_dataclass(current):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{where}{key}: expected a section with keys but got {value!r}.")
            changes[key] = _merge(current, value, f"{where}{key}.")
        else:
            changes[key] = _typed(value, hints[key], f"{where}{key}")
    return dataclasses.replace(base, **changes)


def _typed(value: Any, hint: Any, where: str) -> Any:
    """The value as the annotated type, or an error that names the key."""
    for kind in get_args(hint) if NoneType in get_args(hint) else (hint,):
        with suppress(ValueError, OverflowError):  # the latter for an int of 400 digits
            return _as_kind(value, kind)
    choices = [str(choice) for choice in get_args(hint)] if get_origin(hint) is Literal else []
    raise ConfigError(f"{where}: expected {_plain(hint)} but got {value!r}.{suggest(str(value), choices)}")


def _as_kind(value: Any, kind: Any) -> Any:
    """The value, if it is of this kind or stands for one that is; else a ValueError."""
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    if get_origin(kind) is tuple and isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if kind in (int, float) and isinstance(value, str) and value[-1:].isdigit():  # yaml takes 1e-2 for text
        return kind(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if (
        kind in (int, float, bool, str, NoneType)
        and isinstance(value, kind)
        and isinstance(value, bool) == (kind is bool)
    ):
        return value
    raise ValueError


def _plain(hint: Any) -> str:
    """The type as a reader says it: `int`, `float | None`, `one of ('a', 'b')`."""
    if get_origin(hint) is Literal:
        return f"one of {get_args(hint)}"
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
