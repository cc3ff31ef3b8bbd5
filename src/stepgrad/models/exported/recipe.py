"""What happens before and after a network: preprocessing, NMS and limits, as one record that options can change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from stepgrad.errors import ConfigError, suggest

RESIZES = ("letterbox", "rect", "stretch", "short", "none")
KERNELS = ("linear", "nearest", "cubic", "pillow-linear", "pillow-cubic", "pillow-lanczos", "pillow-box")
PREPARATION = ("resize", "size", "kernel", "pad", "colour", "scale", "normalise")
"""Fields that decide which numbers enter the network ..."""
LIMITS = ("min_score", "multi_label", "nms", "agnostic", "max_detections")
"""... and those that decide which of its windows become detections, in the order in which they act."""


@dataclass(frozen=True)
class Recipe:
    """How pictures become input, and output detections. The defaults are those with which ultralytics validates."""

    resize: str = "letterbox"
    """letterbox: fit into a square and pad; rect: pad to the next multiple of 32 only; stretch: change the shape; short: the
    shorter side gets `size`, the longer at most 5/3 of it; none: as it is."""
    size: tuple[int, int] = (640, 640)
    """Height and width of the input."""
    kernel: str = "linear"
    """linear, nearest and cubic read the nearest pixels only, as OpenCV does; those of pillow average when they shrink."""
    pad: int = 114
    colour: str = "rgb"
    scale: float = 255.0
    """Pixels are divided by it."""
    normalise: str = "none"
    """imagenet: subtract ImageNet's mean and divide by its deviation, after scaling."""
    min_score: float = 0.001
    multi_label: bool = True
    """Whether a window may be detected as several classes, or only as its best."""
    nms: float | None = 0.7
    """The IoU above which a window with a lower score is suppressed; None: no NMS."""
    agnostic: bool = False
    """Whether windows of different classes suppress each other."""
    max_detections: int = 300
    first_label: int = 1
    """The label of the first class where the model itself gives labels: torchvision keeps 0 for the background."""

    def same_input(self, other: Recipe) -> bool:
        """Whether both make the same input from every picture."""
        return all(getattr(self, name) == getattr(other, name) for name in PREPARATION)

    def __str__(self) -> str:
        return ", ".join(f"{name} {shown(name, getattr(self, name))}" for name in (*PREPARATION, *LIMITS))


def shown(name: str, value: Any) -> str:
    """A value as it would be typed."""
    if name == "size":
        return f"{value[0]}x{value[1]}"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value).lower()


def with_options(recipe: Recipe, words: Sequence[str], option: str = "recipe") -> Recipe:
    """The recipe changed by words such as `kernel=nearest`.

    >>> with_options(Recipe(), ["nms=none", "size=320"]).size
    (320, 320)
    """
    known = [field.name for field in fields(Recipe)]
    changes: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name not in known:
            raise ConfigError(
                f"{option}: expected NAME=VALUE with one of {', '.join(known)} but got {word!r}.{suggest(name, known)}"
            )
        try:
            changes[name] = _READERS[name](text)
        except ValueError as error:
            raise ConfigError(f"{option}: {name}: {error or 'expected a number'} but got {text!r}.") from None
    return replace(recipe, **changes)


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return text

    return read


def _number(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise ValueError(f"expected a number from {low:g} to {high:g}")
        return value

    return read


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise ValueError(f"expected a whole number from {low} to {high}")
        return int(text)

    return read


def _size(text: str) -> tuple[int, int]:
    height, _, width = text.partition("x")
    side = _whole(1, 1 << 14)
    return side(height), side(width or height)


def _yes(text: str) -> bool:
    return _one_of("true", "false")(text) == "true"


_READERS: dict[str, Callable[[str], Any]] = {
    "resize": _one_of(*RESIZES),
    "size": _size,
    "kernel": _one_of(*KERNELS),
    "pad": _whole(0, 255),
    "colour": _one_of("rgb", "bgr"),
    "scale": _number(1e-6, 1e6),
    "normalise": _one_of("none", "imagenet"),
    "min_score": _number(0.0, 1.0),
    "multi_label": _yes,
    "nms": lambda text: None if text == "none" else _number(0.0, 1.0)(text),
    "agnostic": _yes,
    "max_detections": _whole(1, 1 << 20),
    "first_label": _whole(0, 1),
}
