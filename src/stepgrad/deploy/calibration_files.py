"""Calibrations on disk: JSON, which comes back, and ONNX, which ships with a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stepgrad.deploy.calibration import Calibration, ClassMap
from stepgrad.deploy.calibration_module import lookup_of
from stepgrad.deploy.monotone import RisingMap
from stepgrad.errors import ConfigError, DataError
from stepgrad.extras import need
from stepgrad.files import write_whole

SUFFIXES = (".json", ".onnx")
_OPSET = 17


def check_name(path: Path) -> None:
    """Raise ConfigError for a name that says neither JSON nor ONNX, before the work is done."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path}: expected a file name that ends in .json or .onnx.")
    if path.suffix.lower() == ".onnx":
        need("onnx", purpose="a calibration as ONNX")


def save_calibration(path: Path, calibration: Calibration, provenance: Mapping[str, Any] | None = None) -> None:
    """Write a calibration whole, in the form that the name says."""
    check_name(path)
    place = path.expanduser()
    if place.suffix.lower() == ".onnx":
        write_whole(place, _as_onnx(calibration).SerializeToString())
    else:
        content = {**_as_dict(calibration), **({} if provenance is None else {"provenance": dict(provenance)})}
        write_whole(place, (json.dumps(content) + "\n").encode())


def read_calibration(path: str | Path) -> Calibration:
    """The calibration that `save` or `stepgrad calibrate --out` wrote as .json; its maps are equal to the last bit."""
    place = Path(path).expanduser()
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected a calibration that `stepgrad calibrate --out` wrote") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as a calibration: {error}") from error
    try:
        ids = content["category_ids"]
        found = Calibration(
            protocol=str(content["protocol"]),
            overlap=str(content["overlap"]),
            squash=bool(content["squash"]),
            classes=tuple(_class_map(row) for row in content["classes"]),
            images=int(content["images"]),
            before=None,
            after=None,
            category_ids=None if ids is None else tuple(ids),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{path}: is not what `stepgrad calibrate --out FILE.json` writes ({type(error).__name__}: {error})"
        ) from error
    return found


def _as_dict(calibration: Calibration) -> dict[str, Any]:
    told = {"before": calibration.before, "after": calibration.after}
    return {
        "protocol": calibration.protocol,
        "overlap": calibration.overlap,
        "images": calibration.images,
        "squash": calibration.squash,
        "category_ids": None if calibration.category_ids is None else list(calibration.category_ids),
        "classes": [
            {
                "name": row.name,
                "kind": row.kind,
                "objects": row.objects,
                "scores": row.map.x.tolist(),
                "probabilities": row.map.y.tolist(),
            }
            for row in calibration.classes
        ],
        "reliability": {name: found.to_dict() for name, found in told.items() if found is not None},
    }


def _class_map(row: Mapping[str, Any]) -> ClassMap:
    x, y = (np.array(row[name], dtype=np.float64) for name in ("scores", "probabilities"))
    if not (x.shape == y.shape and x.ndim == 1 and len(x) >= 2):
        raise ValueError(f"{row['name']}: expected as many probabilities as scores, two or more")
    ends = x[0] == 0.0 and x[-1] == 1.0 and y[0] >= 0.0 and y[-1] <= 1.0
    if not (ends and (np.diff(x) > 0).all() and (np.diff(y) > 0).all()):
        raise ValueError(f"{row['name']}: expected scores from 0 to 1 and probabilities between, both rising")
    return ClassMap(str(row["name"]), str(row["kind"]), int(row["objects"]), RisingMap(x, y))


def _as_onnx(calibration: Calibration) -> Any:
    """The steps of `CalibrationModule.forward`, from scores (N,) float and labels (N,) int64 to probabilities (N,) double."""
    need("onnx", purpose="a calibration as ONNX")
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    tables = dict(zip(("x", "y", "slopes"), lookup_of(calibration), strict=True))
    numbers = {"one": np.array(1.0), "half": np.array(0.5), "axis": np.array([1]), "first": np.array([[0]])}
    numbers |= {"step": np.array([[1]])}
    node = helper.make_node
    nodes = [node("Cast", ["scores"], ["given"], to=TensorProto.DOUBLE)]
    if calibration.squash:
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
    model.metadata_props.add(key="classes", value=json.dumps([row.name for row in calibration.classes]))
    onnx.checker.check_model(model)
    return model
