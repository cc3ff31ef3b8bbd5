"""Calibrations to disk: JSON, which comes back, and ONNX, which ships with a model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepgrad.deploy.calibration_module import lookup_of
from stepgrad.deploy.monotone import RisingMap
from stepgrad.errors import ConfigError
from stepgrad.extras import need
from stepgrad.files import write_whole

SUFFIXES = (".json", ".onnx")
_OPSET = 17


@dataclass(frozen=True, eq=False)
class ClassMap:
    """How the scores of one class become probabilities."""

    name: str
    kind: str
    """"isotonic"; "two parameters"; or "of all classes", where there are too few detections for a map of its own."""
    objects: int
    map: RisingMap


def check_name(path: Path) -> None:
    """Raise ConfigError for a name that says neither JSON nor ONNX, before the work is done."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path}: expected a file name that ends in .json or .onnx.")
    if path.suffix.lower() == ".onnx":
        need("onnx", purpose="a calibration as ONNX")


def write_calibration(path: Path, content: Mapping[str, Any], classes: Sequence[ClassMap], squash: bool) -> None:
    """Write a calibration whole, in the form that the name says: `content` as JSON, or the maps as ONNX."""
    check_name(path)
    place = path.expanduser()
    if place.suffix.lower() == ".onnx":
        write_whole(place, _as_onnx(classes, squash).SerializeToString())
    else:
        write_whole(place, (json.dumps(content) + "\n").encode())


def _as_onnx(classes: Sequence[ClassMap], squash: bool) -> Any:
    """The steps of `CalibrationModule.forward`, from scores (N,) float and labels (N,) int64 to probabilities (N,) double."""
    need("onnx", purpose="a calibration as ONNX")
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    tables = dict(zip(("x", "y", "slopes"), lookup_of([row.map for row in classes]), strict=True))
    numbers = {"one": np.array(1.0), "half": np.array(0.5), "axis": np.array([1]), "first": np.array([[0]])}
    numbers |= {"step": np.array([[1]])}
    node = helper.make_node
    nodes = [node("Cast", ["scores"], ["given"], to=TensorProto.DOUBLE)]
    if squash:
        nodes += [
            node("Abs", ["given"], ["size"]),
            node("Add", ["size", "one"], ["below"]),
            node("Mul", ["given", "half"], ["halved"]),
            node("Div", ["halved", "below"], ["share"]),
            node("Add", ["share", "half"], ["known"]),
        ]
    else:
        nodes.append(node("Identity", ["given"], ["known"]))
    nodes += [
        node("Unsqueeze", ["known", "axis"], ["column"]),
        *(node("Gather", [name, "labels"], [f"{name}_of"], axis=0) for name in tables),
        node("GreaterOrEqual", ["column", "x_of"], ["reached"]),
        node("Cast", ["reached"], ["ones"], to=TensorProto.INT64),
        node("ReduceSum", ["ones", "axis"], ["count"], keepdims=1),
        node("Sub", ["count", "step"], ["before"]),
        node("Max", ["before", "first"], ["piece"]),
        node("Add", ["piece", "step"], ["next"]),
        *(node("GatherElements", [f"{name}_of", "piece"], [f"{name}_at"], axis=1) for name in tables),
        node("GatherElements", ["y_of", "next"], ["y_next"], axis=1),
        node("Sub", ["column", "x_at"], ["beyond"]),
        node("Mul", ["beyond", "slopes_at"], ["rise"]),
        node("Add", ["y_at", "rise"], ["line"]),
        node("Min", ["line", "y_next"], ["cut"]),
        node("Squeeze", ["cut", "axis"], ["probabilities"]),
    ]
    graph = helper.make_graph(
        nodes,
        "calibration",
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N"]),
            helper.make_tensor_value_info("labels", TensorProto.INT64, ["N"]),
        ],
        [helper.make_tensor_value_info("probabilities", TensorProto.DOUBLE, ["N"])],
        [numpy_helper.from_array(values, name) for name, values in (tables | numbers).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
    model.metadata_props.add(key="classes", value=json.dumps([row.name for row in classes]))
    onnx.checker.check_model(model)
    return model
