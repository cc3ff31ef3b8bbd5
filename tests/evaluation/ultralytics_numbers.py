"""AP by ultralytics' own functions on small random sets, and the file of such numbers that the tests compare with.

ultralytics is no dependency of ours. Where it is installed,

    python -m tests.evaluation.ultralytics_numbers

writes `ultralytics-VERSION.json` beside this file: sets of whole numbers, and what that version makes of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.evaluation.datasets import Entries
from tests.scenes import clustered_boxes, windows_near

HERE = Path(__file__).parent
CLASSES = 4
IN_FILE = 12


@dataclass(frozen=True)
class Set:
    """Detections, highest first in each image, and objects."""

    preds: Entries
    targets: Entries

    def to_json(self) -> dict[str, Any]:
        plain = [
            [{name: value.tolist() for name, value in entry.items()} for entry in side]
            for side in (self.preds, self.targets)
        ]
        return {"preds": plain[0], "targets": plain[1]}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Set:
        preds, targets = ([_tensors(entry) for entry in content[side]] for side in ("preds", "targets"))
        return cls(preds, targets)


def _tensors(entry: dict[str, Any]) -> dict[str, Tensor]:
    kinds = {"boxes": torch.float32, "scores": torch.float32, "labels": torch.int64}
    return {
        name: torch.tensor(value, dtype=kinds[name]).reshape(-1, *((4,) * (name == "boxes")))
        for name, value in entry.items()
    }


def random_set(seed: int) -> Set:
    """No two scores are equal: the tool's own sort is not stable. Half of the sets have whole pixels, so overlaps often
    are equal, or equal a threshold."""
    rng = np.random.default_rng([seed, 2000])
    images = int(rng.integers(1, 7))
    fraction = float(rng.choice([0.0, 0.6]))
    scores = rng.permutation(4000)
    preds, targets = [], []
    for image in range(images):
        centres = rng.integers(8, 40, size=(3, 2))
        objects = clustered_boxes(rng, centres, int(rng.integers(0, 12)), jitter=2)
        windows = windows_near(rng, objects, centres, int(rng.integers(0, 30)))
        windows = windows + fraction * rng.random(windows.shape)
        own = np.sort(scores[100 * image : 100 * image + len(windows)])[::-1] + 10.0
        preds.append({"boxes": windows, "scores": own / 5000, "labels": rng.integers(CLASSES, size=len(windows))})
        targets.append({"boxes": objects, "labels": rng.integers(CLASSES, size=len(objects))})
    return Set([_tensors(p) for p in preds], [_tensors(t) for t in targets])


def theirs(data: Set) -> dict[int, list[float]]:
    """AP of each class that has objects, at each of the ten thresholds, by the installed ultralytics."""
    from ultralytics.engine.validator import BaseValidator
    from ultralytics.utils.metrics import ap_per_class, box_iou

    validator = SimpleNamespace(iouv=torch.linspace(0.5, 0.95, 10))
    found = []
    for pred, target in zip(data.preds, data.targets, strict=True):
        hits = torch.zeros(len(pred["scores"]), 10, dtype=torch.bool)
        if len(pred["scores"]) and len(target["labels"]):
            overlaps = box_iou(target["boxes"], pred["boxes"])
            hits = BaseValidator.match_predictions(validator, pred["labels"], target["labels"], overlaps)  # type: ignore[arg-type]
        found.append(hits.numpy())
    scores, labels = (torch.cat([p[name] for p in data.preds]).numpy() for name in ("scores", "labels"))
    truth = torch.cat([t["labels"] for t in data.targets]).numpy()
    if len(truth) == 0:
        return {}
    numbers = ap_per_class(np.concatenate(found), scores, labels, truth)
    return {int(c): row.tolist() for c, row in zip(numbers[6], numbers[5], strict=True)}


def write() -> Path:
    """The file of the installed version."""
    vars(np).setdefault("trapz", np.trapezoid)  # early versions know no other name
    import ultralytics

    sets = [random_set(seed) for seed in range(IN_FILE)]
    content = {
        "made_by": "python -m tests.evaluation.ultralytics_numbers",
        "version": ultralytics.__version__,
        "sets": [{**data.to_json(), "ap": theirs(data)} for data in sets],
    }
    path = HERE / f"ultralytics-{ultralytics.__version__}.json"
    path.write_text(json.dumps(content, separators=(",", ":")) + "\n")
    return path


if __name__ == "__main__":
    print(write())
