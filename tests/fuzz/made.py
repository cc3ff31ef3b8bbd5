"""Inputs that once escaped and are too large, or too plain, for a file of their own."""

from __future__ import annotations

import json
from typing import Any

from tests.fuzz.damage_bytes import Files
from tests.fuzz.damage_tensors import with_digest

_DEEP = b"[" * 100_000
_CHECKPOINT = "run/checkpoints/step-00000002.safetensors"
_STATE = {"seconds": 1.0, "class_names": ["cat"]}
_BOMB = b"[&a [x], " + b", ".join(b"&%c [*%c" % (c + 1, c) + b", *%c" % c * 9 + b"]" for c in b"abcdefghij") + b"]"


def tensors(metadata: dict[str, Any], name: str = "weights/a", shape: Any = (1,)) -> bytes:
    """A file of one number, as stepgrad writes it except for what is asked for."""
    place = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}
    header = json.dumps({"__metadata__": {"digest": "0" * 64, **metadata}, name: place}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 64 + 56)
    return with_digest(len(header).to_bytes(8, "little") + header + bytes(4))


def _checkpoint(state: Any, step: Any = "2", **options: Any) -> Files:
    return {
        _CHECKPOINT: tensors({"step": step, "state": state if isinstance(state, str) else json.dumps(state)}, **options)
    }


def _best(facts: Any) -> Files:
    return {"run/best.safetensors": tensors({"stepgrad": facts if isinstance(facts, str) else json.dumps(facts)})}


def _box(far: float) -> Files:
    corners = f"<xmin>1</xmin><ymin>1</ymin><xmax>{far}</xmax><ymax>9</ymax>"
    thing = f"<object><name>cat</name><bndbox>{corners}</bndbox></object>"
    return {"VOC/Annotations/a.xml": f"<annotation>{thing}</annotation>".encode()}


def _log(*lines: dict[str, Any]) -> Files:
    return {"log.jsonl": b"".join(json.dumps(line).encode() + b"\n" for line in lines)}


_FACTS = {"class_names": ["cat"], "step": 2}

CASES: dict[tuple[str, str], Files] = {
    **{(reader, "box-at-1e300"): _box(1e300) for reader in ("voc", "voc-drop", "voc-doctor")},
    ("log", "no-step"): _log({"kind": "train"}, {"kind": "train", "step": 1}),
    ("log", "step-a-string"): _log({"kind": "train", "step": "1"}, {"kind": "train", "step": 1}),
    ("log", "losses-a-number"): _log({"kind": "train", "step": 1, "losses": 0.5}),
    ("log", "end-at-a-dict"): _log({"kind": "end", "step": {}}),
    ("log", "loss-of-400-digits"): _log({"kind": "train", "step": 1, "loss": 10**400}),
    ("record", "deep"): {"detections.json": _DEEP},
    ("config", "deep"): {"config.yaml": b"loss: " + b"[" * 20_000},
    ("config", "billions-by-aliases"): {"config.yaml": b"loss: " + _BOMB},
    ("config", "number-of-5000-digits"): {"config.yaml": b"nll: {steps: " + b"9" * 5000 + b"}"},
    ("config", "list-null"): {"config.yaml": b"also_report: null"},
    ("config", "number-null"): {"config.yaml": b"nll: {steps: null}"},
    ("run-best", "config-of-billions-by-aliases"): {"run/config.yaml": b"loss: " + _BOMB},
    ("run-best", "config-month-99"): {"run/config.yaml": b"loss: 2001-99-99"},
    ("run-best", "a-checkpoint-in-its-place"): {"run/best.safetensors": tensors({"step": "2", "state": "{}"})},
    ("run-best", "no-classes"): _best({"step": 2}),
    ("run-best", "classes-a-number"): _best({**_FACTS, "class_names": 1}),
    ("run-best", "facts-not-json"): _best("{"),
    ("run-best", "facts-deep"): _best(_DEEP.decode()),
    ("run-best", "facts-a-list"): _best([]),
    ("checkpoints", "state-a-list"): _checkpoint([]),
    ("checkpoints", "state-not-json"): _checkpoint("{"),
    ("checkpoints", "step-a-word"): _checkpoint(_STATE, step="two"),
    ("checkpoints", "tensor-of-neither-part"): _checkpoint(_STATE, name="a"),
    ("checkpoints", "shape-of-words"): _checkpoint(_STATE, shape=["a"]),
    ("checkpoints", "state-with-an-unknown-counter"): _checkpoint({**_STATE, "colour": 1}),
    ("checkpoints", "state-with-a-step-of-its-own"): _checkpoint({**_STATE, "step": 1}),
    ("own-weights", "cut-short"): {"best.safetensors": tensors({"stepgrad": "{}"})[:-1]},
    ("own-weights", "not-safetensors"): {"best.safetensors": b"hello"},
    ("own-weights", "metadata-a-number"): {"best.safetensors": tensors({"stepgrad": 1})},
}
