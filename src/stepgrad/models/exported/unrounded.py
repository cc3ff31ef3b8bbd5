"""A quantised graph without its rounded activations: what remains is the effect of rounded weights."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

_WHOLE = ("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger")


def without_rounded_activations(path: str | Path) -> bytes | None:
    """The graph with every pair of QuantizeLinear and DequantizeLinear bridged; None if it is not made of such pairs.

    Weights stay as they are: a DequantizeLinear reads their whole numbers from the file.
    """
    onnx: Any = import_module("onnx")
    model = onnx.load(str(path))
    nodes = list(model.graph.node)
    weights = {value.name for value in model.graph.initializer}
    rounding = {n.output[0]: n.input[0] for n in nodes if n.op_type == "QuantizeLinear" and n.input[0] not in weights}
    pairs = [n for n in nodes if n.op_type == "DequantizeLinear" and n.input[0] in rounding]
    if not pairs or any(node.op_type in _WHOLE for node in nodes):
        return None
    bridged = {node.output[0]: rounding[node.input[0]] for node in pairs}

    def source(name: str) -> str:
        while name in bridged:
            name = bridged[name]
        return name

    kept = [node for node in nodes if node.output[0] not in bridged]
    for node in kept:
        for i, name in enumerate(node.input):
            node.input[i] = source(name)
    outputs = {value.name for value in model.graph.output}
    kept += [onnx.helper.make_node("Identity", [source(name)], [name]) for name in sorted(outputs & set(bridged))]
    used = outputs.union(*(node.input for node in kept))
    del model.graph.node[:]
    model.graph.node.extend(node for node in kept if node.op_type != "QuantizeLinear" or node.output[0] in used)
    content: bytes = model.SerializeToString()
    return content
