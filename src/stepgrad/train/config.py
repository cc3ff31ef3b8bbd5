"""Everything a run can be asked for, as frozen dataclasses with the numbers of the original Fast R-CNN as defaults.

The same fields are the keys of a YAML config and the options of `stepgrad train`; the docstring under a field is its
help text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from stepgrad.errors import ConfigError, one_of, suggest
from stepgrad.metric.protocol import PROTOCOLS

LossName = Literal["nll", "map", "nll-then-map"]
PhaseName = Literal["nll", "map"]


@dataclass(frozen=True)
class DataConfig:
    """Images, objects and windows."""

    path: str = "shapes"
    """A VOC folder, a COCO json file or folder, or `shapes`, the built-in set."""
    train: str | None = "train"
    """The split to train on, or a part of it such as `train[:1000]`; None for a single COCO file. Where `path` holds
    several VOC folders: `VOC2007/trainval`; and several together: `VOC2007/trainval+VOC2012/trainval`."""
    val: str | None = "val"
    """The split to validate on."""
    val_path: str | None = None
    """Where the validation split lies, if not in `path`."""
    windows: str | None = None
    """Windows of both splits: a folder of `stepgrad propose` (or one above it, named as the VOC folder: `VOC2007`), an
    .npz or a .mat file. None: the built-in windows of
    shapes; for other data they are searched for once and kept in `proposals/`."""
    val_windows: str | None = None
    """Windows of the validation split, if they lie elsewhere."""
    train_images: int | None = None
    """Use only the first so many training images."""
    val_images: int | None = None
    """Use only the first so many validation images."""
    max_windows: int | None = 2000
    """Use at most so many windows of an image: the first, or a fixed random choice where they come in no order."""
    class_names: tuple[str, ...] | None = None
    """VOC folders: the classes in the order of the labels; None: VOC's twenty."""
    flip: bool = True
    """Train on mirror images as well."""
    images_outside: bool = False
    """COCO files: let file names lead out of the data's folder."""


@dataclass(frozen=True)
class ModelConfig:
    """The detector."""

    backbone: str = "alexnet"
    """alexnet, vgg16, `tiny` (trains from nothing in a minute), or another torchvision classifier by name."""
    weights: str | None = "imagenet"
    """`imagenet` (torchvision's, downloaded), a .safetensors or .pt file (whole network or convolutions only), the folder
    of a run (its best weights) or one of its checkpoints, or None: random."""
    score: Literal["raw", "logprob"] | None = None
    """What is ranked: last activations (raw) or log-probabilities with a background column. None: raw if the run has no
    cross-entropy phase."""
    hidden: int = 4096
    """Units of fc6 and fc7."""
    dropout: float = 0.5
    """After fc6 and fc7."""
    freeze: Literal["original", "trunk", "none"] = "original"
    """Layers that do not train: those of the original, all convolutions (their features are then cached), or none."""
    shortest_side: int | None = 600
    """Images are scaled to this shortest side; None: as they are."""
    longest_side: int | None = 1000
    """But no longer than this."""
    nms_threshold: float = 0.3
    """IoU above which a window suppresses another, in training and in use."""
    candidates: int | None = 100
    """When detecting, windows of a class and image that enter NMS; None: all."""


@dataclass(frozen=True)
class PhaseConfig:
    """A stretch of training: what a minibatch is, and how a step is taken."""

    steps: int = 40_000
    """Minibatches."""
    images: int = 2
    """Images in a minibatch, over all processes; one loss is taken over all of them."""
    chunk_images: int | None = None
    """Run so many of them through the network at a time: the same gradient at the memory of a chunk, for a second forward
    pass. None: all at once."""
    windows: int | None = 64
    """Windows of each image; None: all."""
    foreground: float | None = 0.25
    """Largest share of windows on objects (IoU >= 0.5); None: drawn without looking."""
    background_overlap: float = 0.1
    """Least IoU with an object of the other windows; 0: any."""
    ground_truth: bool = True
    """The objects' own boxes count as windows."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """SGD with momentum, or AdamW."""
    lr: float = 1e-3
    """Learning rate; biases take twice it, and no decay."""
    momentum: float = 0.9
    """Of SGD."""
    caffe_momentum: bool = False
    """Keep the learning rate inside the velocity, as Caffe does: differs after each drop."""
    weight_decay: float = 5e-4
    """Of weights, not of biases."""
    drop_every: int | None = 30_000
    """Multiply the learning rate by `drop_factor` every so many steps of the phase; None: never."""
    drop_factor: float = 0.1
    """By how much."""
    warmup: int = 0
    """Steps over which the learning rate rises to its value."""
    max_gradient_norm: float | None = None
    """Scale longer gradients of all weights together down to this norm."""


@dataclass(frozen=True)
class MAPLossConfig:
    """The options of `stepgrad.MAPLoss`; protocol and NMS threshold come from the run and the model."""

    estimator: Literal["radius", "mee", "sde"] = "radius"
    """How steps become a gradient."""
    radius: float = 3.0
    """Of the radius estimator, in units of score."""
    through_nms: Literal["exact", "paper", "none"] = "exact"
    """What reaches suppressed windows."""
    log: bool = True
    """Follow -log(mAP + eps)."""
    eps: float = 0.01
    """What keeps the logarithm finite."""
    l4: float | None = None
    """Weight of the score regulariser."""
    clip: float | None = None
    """Bound on each element of the gradient."""
    min_step: float = 0.1
    """Least distance to a step."""
    balance: Literal["none", "class", "class+scale"] = "class"
    """Make the pushes up and down of each class sum to zero."""
    absent_classes: Literal["zero", "skip"] = "zero"
    """Classes without objects in the minibatch."""
    nll_weight: float = 0.0
    """Add so much of the cross-entropy of the same windows (needs log-probabilities)."""
    memory_images: int = 0
    """Rank the windows of so many images of earlier minibatches along with each new one, as constants; 0: none."""


@dataclass(frozen=True)
class RunConfig:
    """How the run goes about it."""

    seed: int = 3
    """Of weights, order, windows and dropout; 3 is the original's."""
    eval_every: int | None = None
    """Steps between validations; None: ten over the run."""
    save_every: int | None = None
    """Steps between checkpoints; None: at each validation."""
    keep: int = 2
    """Checkpoints to keep, besides the best and the last of each phase."""
    log_every: int = 10
    """Steps between lines of the log."""
    report: bool = True
    """Write report.html at the end."""
    accelerator: str = "auto"
    """cpu, cuda, mps or auto."""
    devices: int = 1
    """Processes, one a device."""
    precision: Literal["32-true", "16-mixed", "bf16-mixed"] = "32-true"
    """Of the arithmetic."""
    timeout: float = 300.0
    """Seconds that processes wait for each other before they give up."""
    feature_cache: str | None = None
    """Folder for the features of a frozen trunk; None: inside the run folder."""


def _map_phase() -> PhaseConfig:
    return PhaseConfig(
        steps=10_000, images=16, windows=500, foreground=None, background_overlap=0.0, ground_truth=False
    )


@dataclass(frozen=True)
class TrainConfig:
    """A whole training run."""

    loss: LossName = "nll-then-map"
    """nll: cross-entropy, the Fast R-CNN baseline. map: mAP after NMS. nll-then-map: one, then the other."""
    protocol: str = "voc12"
    """The metric trained for, and by which the best checkpoint is chosen: voc07, voc12, coco."""
    also_report: tuple[str, ...] = ()
    """Further protocols to report."""
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    nll: PhaseConfig = field(default_factory=PhaseConfig)
    """The cross-entropy phase."""
    map: PhaseConfig = field(default_factory=_map_phase)
    """The mAP phase."""
    map_loss: MAPLossConfig = field(default_factory=MAPLossConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def phases(self) -> list[tuple[PhaseName, PhaseConfig]]:
        """The phases of the run in order, without empty ones."""
        named: dict[str, list[tuple[PhaseName, PhaseConfig]]] = {
            "nll": [("nll", self.nll)],
            "map": [("map", self.map)],
            "nll-then-map": [("nll", self.nll), ("map", self.map)],
        }
        return [(name, phase) for name, phase in named[self.loss] if phase.steps > 0]

    @property
    def total_steps(self) -> int:
        return sum(phase.steps for _, phase in self.phases())

    @property
    def score(self) -> Literal["raw", "logprob"]:
        """What the model ranks by."""
        needs_softmax = self.loss != "map" or self.map_loss.nll_weight > 0
        return self.model.score or ("logprob" if needs_softmax else "raw")

    def __post_init__(self) -> None:
        _check(self)


def _check(config: TrainConfig) -> None:
    """Raise ConfigError, naming the key, for what cannot work."""
    for protocol in (config.protocol, *config.also_report):
        one_of("protocol", protocol, list(PROTOCOLS))
    if config.loss != "map" and config.model.score == "raw":
        raise ConfigError("model.score: cross-entropy needs `logprob` (it has a background column) but got `raw`.")
    if config.map_loss.nll_weight > 0 and config.model.score == "raw":
        raise ConfigError("map_loss.nll_weight: needs model.score `logprob` but got `raw`.")
    for name, phase in (("nll", config.nll), ("map", config.map)):
        for key in ("images", "lr"):
            if not getattr(phase, key) > 0:
                raise ConfigError(f"{name}.{key}: expected a number > 0 but got {getattr(phase, key)!r}.")
        for key in ("steps", "warmup", "weight_decay"):
            if getattr(phase, key) < 0:
                raise ConfigError(f"{name}.{key}: expected a number >= 0 but got {getattr(phase, key)!r}.")
        if phase.foreground is not None and not 0 <= phase.foreground <= 1:
            raise ConfigError(f"{name}.foreground: expected a share from 0 to 1 but got {phase.foreground!r}.")
        for key in ("windows", "chunk_images", "drop_every", "max_gradient_norm"):
            if getattr(phase, key) is not None and not getattr(phase, key) > 0:
                raise ConfigError(f"{name}.{key}: expected a number > 0 or null but got {getattr(phase, key)!r}.")
    for key in ("keep", "log_every", "devices"):
        if getattr(config.run, key) < 1:
            raise ConfigError(f"run.{key}: expected a number >= 1 but got {getattr(config.run, key)!r}.")
    if config.map_loss.memory_images < 0:
        raise ConfigError(f"map_loss.memory_images: expected a number >= 0 but got {config.map_loss.memory_images}.")
    if not config.phases():
        raise ConfigError(f"loss: {config.loss!r} has no steps; give nll.steps or map.steps.")


def to_dict(config: Any) -> dict[str, Any]:
    """Plain nested dicts and lists, as YAML and JSON hold them."""
    return {
        f.name: to_dict(value) if is_dataclass(value) else list(value) if isinstance(value, tuple) else value
        for f in fields(config)
        for value in [getattr(config, f.name)]
    }


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
    from jsonargparse import ArgumentParser

    if isinstance(value, list):
        value = tuple(value)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=hint, default=None)
    try:
        if value is None and type(None) not in get_args(hint):
            raise TypeError("the parser takes null for a value that was not given")
        return parser.parse_object({"value": value}).value
    except Exception as error:
        choices = [str(choice) for choice in get_args(hint)] if get_origin(hint) is Literal else []
        raise ConfigError(
            f"{where}: expected {_plain(hint)} but got {value!r}.{suggest(str(value), choices)}"
        ) from error


def _plain(hint: Any) -> str:
    """The type as a reader says it: `int`, `float | None`, `one of ('a', 'b')`."""
    if get_origin(hint) is Literal:
        return f"one of {get_args(hint)}"
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
