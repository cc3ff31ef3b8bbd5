"""Thresholds by class in ultralytics' own predictor: one line, and what passes is what passes by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepgrad as sg
from stepgrad.deploy import predictor_hook
from stepgrad.errors import InputError
from tests.models.yolo.small import SIZE, needs_ultralytics

pytestmark = needs_ultralytics
MODELS = {"boxes": "yolov8n.yaml", "masks": "yolo11n-seg.yaml", "oriented": "yolo11n-obb.yaml"}


def found_by(yolo: Any, **options: Any) -> list[Any]:
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 255, (SIZE, SIZE, 3), dtype=np.uint8) for _ in range(2)]
    return list(yolo.predict(pictures, imgsz=SIZE, device="cpu", verbose=False, max_det=50, **options))


def parts(result: Any) -> Any:
    return result.boxes if result.boxes is not None else result.obb


@pytest.mark.parametrize("kind", list(MODELS))
def test_the_hook_keeps_what_reaches_the_threshold_of_its_class(kind: str, tmp_path: Path) -> None:
    from ultralytics import YOLO

    yolo = YOLO(MODELS[kind])
    before = found_by(yolo, conf=1e-6)
    scores = np.concatenate([parts(one).conf.numpy() for one in before])
    labels = np.concatenate([parts(one).cls.numpy() for one in before]).astype(int)
    assert len(scores)
    names = [yolo.names[label] for label in sorted(yolo.names)]
    cuts: dict[str, float | None] = dict.fromkeys(names, float(np.median(scores)))
    cuts[yolo.names[int(labels[0])]] = None
    yolo.add_callback("on_predict_postprocess_end", predictor_hook(cuts))
    after = found_by(yolo, conf=1e-6)
    for one, other in zip(before, after, strict=True):
        level = [np.inf if cuts[yolo.names[int(c)]] is None else cuts[yolo.names[int(c)]] for c in parts(one).cls]
        keep = parts(one).conf.numpy() >= np.array(level, dtype=np.float32)
        assert np.array_equal(parts(other).conf.numpy(), parts(one).conf.numpy()[keep])
        assert np.array_equal(parts(other).data.numpy(), parts(one).data.numpy()[keep])
        if kind == "masks" and other.masks is not None:
            assert len(other.masks) == keep.sum()
        same = sg.apply_thresholds(one, cuts)
        assert np.array_equal(parts(same).data.numpy(), parts(other).data.numpy())
    with pytest.raises(InputError, match="conf to be at most the lowest threshold"):
        found_by(yolo, conf=0.99)
