"""Networks of a few nodes as ONNX files, and pictures with boxes of one colour each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

onnx: Any = pytest.importorskip("onnx", reason='needs onnx: pip install ".[onnx]"')
pytest.importorskip("onnxruntime", reason='needs onnxruntime: pip install ".[onnx]"')

SIZE = 64
PLACES = sum((SIZE // stride) ** 2 for stride in (8, 16, 32))
_OPSET = 17


def write(path: Path, nodes: Sequence[Any], inputs: Mapping[str, Any], outputs: Sequence[str], **metadata: str) -> Path:
    """A graph with float inputs of these shapes."""
    helper, kinds = onnx.helper, onnx.TensorProto
    given = [helper.make_tensor_value_info(name, kinds.FLOAT, shape) for name, shape in inputs.items()]
    made = [helper.make_tensor_value_info(name, kinds.FLOAT, None) for name in outputs]
    graph = helper.make_graph(list(nodes), "tiny", given, made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
    helper.set_model_props(model, metadata)
    onnx.save(model, str(path))
    return path


def constant(name: str, values: Any) -> Any:
    """A node with these numbers."""
    tensor = onnx.numpy_helper.from_array(np.asarray(values, dtype=np.float32))
    return onnx.helper.make_node("Constant", [], [name], value=tensor)


def saying(
    path: Path, outputs: Mapping[str, Any], shape: Sequence[Any] = (1, 3, SIZE, SIZE), names: Sequence[str] = ()
) -> Path:
    """A network that says the same of every picture."""
    metadata = {"names": repr(dict(enumerate(names)))} if names else {}
    nodes = [constant(name, values) for name, values in outputs.items()]
    return write(path, nodes, {"images": list(shape)}, list(outputs), **metadata)


def v8_rows(boxes: Sequence[Sequence[float]], scores: Sequence[Sequence[float]], places: int = PLACES) -> Any:
    """(1, 4 + C, places) with these boxes (centre and size) in the first places and nothing in the others."""
    rows = np.zeros((places, 4 + len(scores[0])), dtype=np.float32)
    rows[:, 2:4] = 1.0
    rows[: len(boxes), :4] = boxes
    rows[: len(boxes), 4:] = scores
    return rows.T[None]


def picture(width: int = SIZE, height: int = SIZE, seed: int = 0) -> Image.Image:
    """Noise of some colour."""
    random = np.random.default_rng(seed)
    return Image.fromarray(random.integers(0, 256, (height, width, 3)).astype(np.uint8))


def colour_detector(
    path: Path, classes: Sequence[str], seed: int = 0, bigger: float = 1.0, louder: float = 1.0
) -> Path:
    """A v8 network whose scores depend on the mean colours around each place: a convolution, and two that average it.

    Args:
        path: where to write it.
        classes: their names.
        seed: of the weights.
        bigger: a factor of the boxes.
        louder: a factor of the weights.
    """
    node = onnx.helper.make_node
    random = np.random.default_rng(seed)
    weight = louder * random.normal(0, 2, (len(classes), 3, 1, 1)) * np.ones((1, 1, 8, 8)) / 64
    nodes = [
        constant("bias", np.full(len(classes), -0.5)),
        node("Conv", ["images", "weight", "bias"], ["map8"], kernel_shape=[8, 8], strides=[8, 8], name="conv"),
    ]
    for stride in (16, 32):
        pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
        nodes.append(node("AveragePool", [f"map{stride // 2}"], [f"map{stride}"], **pool))
    boxes = []
    for stride in (8, 16, 32):
        n = SIZE // stride
        shape = onnx.numpy_helper.from_array(np.array([1, len(classes), n * n], dtype=np.int64))
        nodes += [node("Constant", [], [f"shape{stride}"], value=shape)]
        nodes += [node("Reshape", [f"map{stride}", f"shape{stride}"], [f"flat{stride}"])]
        y, x = np.mgrid[:n, :n].reshape(2, -1)
        side = np.full(n * n, 2.0 * stride * bigger)
        boxes.append(np.stack([stride * (x + 0.5), stride * (y + 0.5), side, side]))
    nodes += [
        node("Concat", ["flat8", "flat16", "flat32"], ["logits"], axis=2),
        node("Sigmoid", ["logits"], ["scores"]),
        constant("boxes", np.concatenate(boxes, axis=1)[None]),
        node("Concat", ["boxes", "scores"], ["output0"], axis=1),
    ]
    file = write(path, nodes, {"images": [1, 3, SIZE, SIZE]}, ["output0"], names=repr(dict(enumerate(classes))))
    model = onnx.load(str(file))
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight.astype(np.float32), "weight"))
    onnx.save(model, str(file))
    return file


def quantised(
    path: Path, to: Path, leave_out: Sequence[str] = (), size: int = SIZE, pictures: Sequence[Any] = ()
) -> Path:
    """The same network in int8, by onnxruntime's quantiser, calibrated on pictures (noise, unless they are given)."""
    from onnxruntime import quantization as q

    inputs = iter([{"images": image} for image in pictures or _noise(size)])

    class Reader(q.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> Any:
            return next(inputs, None)

    q.quantize_static(str(path), str(to), Reader(), quant_format=q.QuantFormat.QDQ, nodes_to_exclude=list(leave_out))
    return to


def _noise(size: int) -> list[Any]:
    random = np.random.default_rng(0)
    return [random.random((1, 3, size, size)).astype(np.float32) for _ in range(3)]
