"""A fine-tuned head, exported to ONNX, gives the logits it gave before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import stepgrad as sg
from tests.models.fine_tuning.made_up import SMALL, TEST, TRAIN, VAL, new_head

pytest.importorskip("onnx", reason='needs onnx: pip install ".[onnx]"')
onnxruntime = pytest.importorskip("onnxruntime", reason='needs onnxruntime: pip install ".[onnx]"')


@pytest.mark.filterwarnings("ignore")  # the exporter's own
def test_the_head_exported_gives_the_same_logits(tmp_path: Path) -> None:
    head = sg.finetune(new_head(), TRAIN, VAL, **SMALL).head.eval()
    file, features = tmp_path / "head.onnx", TEST[0].features
    rows = {"features": {0: "windows"}}
    names = {"input_names": ["features"], "output_names": ["logits"], "dynamic_axes": rows}
    torch.onnx.export(head, (features,), str(file), dynamo=False, opset_version=17, **names)
    session = onnxruntime.InferenceSession(str(file))
    for image in TEST:
        (found,) = session.run(None, {"features": image.features.numpy()})
        with torch.no_grad():
            expected = head(image.features).numpy()
        scale = np.abs(expected).max()  # sums of a few products, in an order of its own
        np.testing.assert_allclose(found, expected, atol=64 * np.finfo(np.float32).eps * max(scale, 1.0))
