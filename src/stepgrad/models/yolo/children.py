"""Options of a YOLO trainer in the environment, for the processes that it starts.

Before 8.4.140, ultralytics tells a process of a training on several GPUs the trainer's name and its own settings, which it checks
word by word: no object of stepgrad gets through. Processes inherit the environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from stepgrad.metric.protocol import Protocol
from stepgrad.models.auto_weight import AutoWeight
from stepgrad.models.yolo.loss import YoloSettings

_NAME = "STEPGRAD_YOLO_OPTIONS"


@contextmanager
def handed_on(settings: YoloSettings) -> Iterator[None]:
    """The options in the environment, where processes started meanwhile find them."""
    before = os.environ.get(_NAME)
    os.environ[_NAME] = as_text(settings)
    try:
        yield
    finally:
        os.environ.pop(_NAME)
        if before is not None:
            os.environ[_NAME] = before


def inherited() -> YoloSettings | None:
    """The options of the trainer that started this process, if one did."""
    handed = os.environ.get(_NAME)
    if handed is None or os.environ.get("LOCAL_RANK", "-1") == "-1":  # what tells a process that it is one of several
        return None
    return from_text(handed)


def as_text(settings: YoloSettings) -> str:
    """The settings as JSON; `from_text` is the way back.

    >>> settings = YoloSettings(weight=AutoWeight(share=0.5), start=3, loss={"protocol": "coco", "radius": 2.0})
    >>> from_text(as_text(settings)).weight.share
    0.5
    """
    fields = {name: getattr(settings, name) for name in ("weight", "start", "candidates", "per_object", "measure")}
    return json.dumps({**fields, "loss": dict(settings.loss)}, default=_record)


def from_text(text: str) -> YoloSettings:
    """Settings from JSON."""
    fields = json.loads(text)
    if isinstance(fields["weight"], dict):
        fields["weight"] = AutoWeight(**fields["weight"])
    protocol = fields["loss"].get("protocol")
    if isinstance(protocol, dict):
        thresholds = tuple(protocol["match_thresholds"])
        fields["loss"]["protocol"] = Protocol(**{**protocol, "match_thresholds": thresholds})
    return YoloSettings(**fields)


def _record(value: Any) -> Any:
    if isinstance(value, AutoWeight):
        return {"share": value.share, "memory": value.memory}
    if isinstance(value, Protocol):
        return asdict(value)
    return list(value)  # thresholds as some other sequence
