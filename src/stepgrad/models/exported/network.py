"""Networks that turn an input into named outputs: an ONNX file, or weights of ultralytics."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stepgrad.errors import DataError
from stepgrad.extras import need

Outputs = Mapping[str, NDArray[Any]]
_NUMBERS = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
}


class Network(ABC):
    """What runs: its name, and what is known of its input and classes."""

    name: str
    class_names: tuple[str, ...] | None = None
    size: tuple[int, int] | None = None
    """Height and width of the input where they are fixed."""
    usual_size: tuple[int, int] | None = None
    """Height and width that it was trained or exported with, where others are possible."""
    bytes_in: bool = False
    """Whether the input is bytes: pixels as they are."""
    sizes_given: bool = False
    """Whether it is told the size of the picture, and answers in its pixels."""
    rounded: bool = False
    """Whether it computes in whole numbers (is quantised)."""

    @abstractmethod
    def __call__(self, pixels: NDArray[np.float32], picture: tuple[int, int]) -> Outputs:
        """The outputs for one input (3, H, W) of a picture of some width and height."""

    def activations_in_float(self) -> Network | None:
        """The same network with rounded weights but float activations; None where that cannot be made."""
        return None


class ONNXNetwork(Network):
    """An ONNX file, run by onnxruntime on the CPU."""

    def __init__(self, path: str | Path, content: bytes | None = None) -> None:
        need("onnxruntime", "onnx", purpose="running exported models")
        runtime: Any = import_module("onnxruntime")
        self.path = Path(path).expanduser()
        self.name = self.path.name
        if content is None and not self.path.is_file():
            raise DataError(f"{self.path}: no such file; expected an exported model .onnx")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        try:
            self.session = runtime.InferenceSession(
                str(self.path) if content is None else content, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime has classes of its own for each defect
            raise DataError(f"{self.path}: onnxruntime cannot load it ({error}); export it again") from error
        self.kinds = _operators(self.path) if content is None else set()
        self.rounded = bool(self.kinds & {"QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv"})
        self._read_inputs()
        self._read_metadata()

    def _read_inputs(self) -> None:
        inputs = {each.name: each for each in self.session.get_inputs()}
        self.asks_mask = "pixel_mask" in inputs
        self.sizes_given = "orig_target_sizes" in inputs
        others = [each for name, each in inputs.items() if name not in ("pixel_mask", "orig_target_sizes")]
        shape = others[0].shape if others else []
        if (
            len(others) != 1
            or len(shape) not in (3, 4)
            or (shape[-3] not in (3, None) and not isinstance(shape[-3], str))
        ):
            told = ", ".join(f"{name} {each.shape}" for name, each in inputs.items()) or "no input"
            raise DataError(
                f"{self.path}: expected one input of pixels (1, 3, height, width) or (3, height, width), besides pixel_mask or "
                f"orig_target_sizes, but got {told}; export the network with pictures as its input"
            )
        self.input, self.batched = others[0].name, len(shape) == 4
        if others[0].type not in _NUMBERS:
            raise DataError(f"{self.path}: expected an input of {', '.join(_NUMBERS)} but got {others[0].type}")
        self.dtype = _NUMBERS[others[0].type]
        self.bytes_in = self.dtype is np.uint8
        if all(isinstance(side, int) for side in shape[-2:]):
            self.size = (shape[-2], shape[-1])

    def _read_metadata(self) -> None:
        known = self.session.get_modelmeta().custom_metadata_map
        names, size = _literal(known.get("names")), _literal(known.get("imgsz"))
        if isinstance(names, dict):
            self.class_names = tuple(str(names[key]) for key in sorted(names))
        elif isinstance(names, (list, tuple)):
            self.class_names = tuple(map(str, names))
        if isinstance(size, (list, tuple)) and len(size) == 2:
            self.usual_size = (int(size[0]), int(size[1]))

    def __call__(self, pixels: NDArray[np.float32], picture: tuple[int, int]) -> Outputs:
        values = pixels.round().clip(0, 255) if self.bytes_in else pixels
        feed: dict[str, Any] = {
            self.input: values.astype(self.dtype)[None] if self.batched else values.astype(self.dtype)
        }
        if self.asks_mask:
            feed["pixel_mask"] = np.ones((1, *pixels.shape[1:]), dtype=np.int64)
        if self.sizes_given:
            feed["orig_target_sizes"] = np.array([picture], dtype=np.int64)
        try:
            found = self.session.run(None, feed)
        except Exception as error:
            raise DataError(
                f"{self.path}: did not run on an input of {pixels.shape[1]} x {pixels.shape[2]} pixels ({error}); "
                "give the size it was exported with: --recipe size=HEIGHTxWIDTH"
            ) from error
        return {each.name: value for each, value in zip(self.session.get_outputs(), found, strict=True)}

    def activations_in_float(self) -> Network | None:
        from stepgrad.models.exported.unrounded import without_rounded_activations

        content = without_rounded_activations(self.path) if self.rounded else None
        return None if content is None else ONNXNetwork(self.path, content)


class UltralyticsNetwork(Network):
    """Weights .pt of ultralytics, which loads and runs them."""

    def __init__(self, path: str | Path) -> None:
        need("ultralytics", purpose="running weights .pt of YOLO")
        place = Path(path).expanduser()
        if not place.is_file():
            raise DataError(f"{place}: no such file; expected weights .pt of ultralytics")
        model: Any = import_module("ultralytics").YOLO(str(place))
        self.name = place.name
        self.model = model.model.float().fuse(verbose=False).eval()
        self.class_names = tuple(str(model.names[key]) for key in sorted(model.names))
        side = model.overrides.get("imgsz", 640)
        self.usual_size = (side, side) if isinstance(side, int) else (side[0], side[1])

    def __call__(self, pixels: NDArray[np.float32], picture: tuple[int, int]) -> Outputs:
        with torch.inference_mode():
            found = self.model(torch.from_numpy(pixels)[None])
        first = found[0] if isinstance(found, (tuple, list)) else found
        rest = found[1:] if isinstance(found, (tuple, list)) and self.model.task == "segment" else ()
        masks = [part for part in rest if isinstance(part, torch.Tensor) and part.ndim == 4]
        return {f"output{i}": part.numpy() for i, part in enumerate([first, *masks])}


def open_network(path: str | Path) -> Network:
    """The network of a file, by its suffix."""
    suffix = Path(path).suffix.lower()
    if suffix == ".onnx":
        return ONNXNetwork(path)
    if suffix == ".pt":
        return UltralyticsNetwork(path)
    raise DataError(
        f"{path}: expected an exported model .onnx, or weights .pt of ultralytics, but got {suffix or 'no suffix'}"
    )


def _operators(path: Path) -> set[str]:
    """The kinds of nodes of a graph, those of its functions and inner graphs left out."""
    onnx: Any = import_module("onnx")
    return {node.op_type for node in onnx.load(str(path), load_external_data=False).graph.node}


def _literal(text: str | None) -> Any:
    """A value that was written by `repr`; None for anything else."""
    try:
        return None if text is None else ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
