"""YOLOv8n rebuilt from its weights gives what the ONNX file gives, and its windows go back to the image they come from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.yolo.network import YOLOv8n
from experiments.yolo.windows import Cache, as_it_is, describe, letterbox
from stepgrad.data import ShapesDataset
from stepgrad.progress import RichProgress
from tests.data.builders import shared_data


@pytest.mark.parametrize("size", [(320, 240), (240, 320), (100, 100), (500, 3)])
def test_boxes_go_back_to_where_they_were(size: tuple[int, int]) -> None:
    square, box = letterbox(torch.rand(3, *size))
    assert square.shape == (3, 640, 640)
    height, width = size
    inner = torch.tensor([[box.left, box.top, box.left + width * box.scale, box.top + height * box.scale]])
    assert box.back(inner)[0].tolist() == pytest.approx([0, 0, width, height], abs=1e-3)


def test_a_head_sees_no_logits_and_numbers_that_are_finite() -> None:
    torch.manual_seed(0)
    network = YOLOv8n().eval()
    found = network(torch.rand(1, 3, 640, 640))
    which = torch.tensor([0, 6400, 8399])
    assert describe(found, which).shape == (3, 80 + 16 + 4 + 4 + 4 + 2 + 3)
    assert found.level[which].tolist() == [0, 1, 2]
    features, boxes = as_it_is(network, 20)(torch.randint(256, (3, 120, 160)))
    assert bool(torch.isfinite(features).all())
    assert boxes.shape == (20, 4)
    assert bool((boxes >= 0).all() and (boxes <= torch.tensor([160.0, 120.0] * 2)).all())


def test_windows_that_are_kept_are_not_made_again(tmp_path: Path) -> None:
    data = ShapesDataset("val", 3)
    cache = Cache(tmp_path, data, 5)
    with RichProgress() as progress:
        cache.fill(as_it_is(YOLOv8n().eval(), 5), progress)
        before = cache.images()
        cache.fill(as_it_is(YOLOv8n().eval(), 5), progress)  # with other weights
    assert all(torch.equal(a.features, b.features) for a, b in zip(before, cache.images(), strict=True))
    assert len(before) == 3


def test_the_network_is_that_of_the_onnx_file() -> None:
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    from experiments.yolo.network import load

    file = shared_data("weights") / "yolov8n_coco_fp32.onnx"
    model = onnx.load(str(file))
    names = ["/model.22/Split_output_1", "/model.22/Mul_output_0"]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    image = np.random.default_rng(0).random((1, 3, 640, 640), dtype=np.float32)
    logits, centres = session.run(names, {session.get_inputs()[0].name: image})
    found = load(file)(torch.from_numpy(image))
    assert np.abs(found.logits[0].numpy() - logits[0].T).max() < 1e-3  # float32 sums in another order
    size = found.boxes[0, :, 2:] - found.boxes[0, :, :2]
    assert np.abs(size.numpy() - centres[0].T[:, 2:]).max() < 0.05  # of a pixel
