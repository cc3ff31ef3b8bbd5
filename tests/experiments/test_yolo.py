"""YOLOv8n rebuilt from its weights gives what the ONNX file gives; its windows, its box branch, and batch norm put back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.yolo.box_branch import BoxBranch, Places, assigned, loss_of, orders, padded
from experiments.yolo.network import BINS, YOLOv8n, load
from experiments.yolo.weights import calibrate, load_folded
from experiments.yolo.windows import Cache, as_it_is, with_branch
from stepgrad.data import ShapesDataset, make_target
from stepgrad.progress import RichProgress
from tests.data.builders import shared_data
from tests.models.yolo.small import needs_ultralytics


def test_the_network_is_that_of_the_onnx_file() -> None:
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
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


def test_windows_lie_in_their_image_and_are_made_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    networks, cache = [YOLOv8n().eval() for _ in range(2)], Cache(tmp_path, ShapesDataset("val", 3), 5)
    finders = [as_it_is(networks[0], 5), with_branch(networks[1], BoxBranch(networks[1]).eval(), 5)]
    for find in finders:
        features, boxes = find(torch.randint(256, (3, 120, 160)))
        assert features.shape == (5, 80 + 16 + 4 + 4 + 4 + 2 + 3)
        assert bool(features.isfinite().all() and (boxes >= 0).all() and (boxes <= torch.tensor([160, 120] * 2)).all())
    found = []
    with RichProgress() as progress:
        for find in finders:
            cache.fill(find, progress)
            found.append(torch.stack([image.features for image in cache.images()]))
    assert torch.equal(*found)


def test_places_learn_the_boxes_of_objects_they_lie_in() -> None:
    torch.manual_seed(0)
    branch = BoxBranch(YOLOv8n())
    places = branch([torch.rand(1, w, 64 // s, 96 // s) for w, s in ((64, 8), (128, 16), (256, 32))])
    objects = torch.tensor([[10.0, 10.0, 40.0, 40.0], [50.0, 5.0, 90.0, 60.0]])
    rows, which, _ = assigned(places, objects)
    inside = places.centre[rows]
    assert bool((inside > objects[which, :2]).all() and (inside < objects[which, 2:]).all())
    assert bool(torch.isfinite(loss_of(places, make_target([], [], "a"))))
    assert padded(torch.zeros(3, 50, 70, dtype=torch.uint8)).shape == (1, 3, 64, 96)
    assert [sorted(step) for step in orders(8, 2)] == [list(range(8))] * 2


def test_a_place_that_knows_its_box_has_nothing_to_learn() -> None:
    distances = torch.full((1, 4, BINS), -1e4)
    distances[0, torch.arange(4), torch.tensor([1, 2, 3, 1])] = 1e4
    box = torch.tensor([[12.0, 4.0, 44.0, 28.0]])  # centre minus and plus 8 times the distances
    places = Places(box, distances, torch.tensor([1e4]), torch.tensor([[20.0, 20.0]]), torch.tensor([8.0]))
    assert loss_of(places, make_target(box, [0], "a")).item() == pytest.approx(0.0, abs=1e-5)
    assert loss_of(places, make_target(box, [0], "a", iscrowd=[True])).item() == 0.0


class TestWeights:
    pytestmark = needs_ultralytics

    def test_a_network_with_batch_norm_says_what_the_folded_one_does_and_trains_from_there(self) -> None:
        from ultralytics.nn.tasks import DetectionModel

        torch.manual_seed(0)
        folded = YOLOv8n().double().eval()
        model = DetectionModel("yolov8n.yaml", verbose=False).double()
        images = torch.rand(4, 3, 64, 64, dtype=torch.float64)
        with pytest.raises(KeyError, match=r"1 weights have no place in the model, the first model\.99"):
            load_folded(model, {**folded.state_dict(), "model.99.weight": torch.zeros(1)})
        load_folded(model, folded.state_dict())
        expected = folded(images).logits.sigmoid().transpose(1, 2)
        assert (model.eval()(images)[0][:, 4:] - expected).abs().max() < 1e-9  # through some hundred layers
        calibrate(model, [images[:2], images[2:]])
        assert (model.eval()(images)[0][:, 4:] - expected).abs().max() < 1e-9
        # The statistics are those of these very images, so in training mode the first layer says the same.
        first = model.model[:1].eval()(images)
        assert torch.allclose(model.model[:1].train()(images), first, atol=1e-9)
