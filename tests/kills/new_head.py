"""`train_new_head` under fire: its folder after each kill, and the model in the end."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from stepgrad.errors import DataError, StepgradError
from stepgrad.files import write_whole
from stepgrad.models.fine_tuning.folder import digest, fingerprint
from stepgrad.weights_file import read_tensors
from tests.kills.command import FileByFile, Problems, half_written, sha256

OPTIONS: dict[str, Any] = {
    "num_classes": 3,
    "start_steps": 30,
    "start_rates": [1e-2, 1e-3],
    "weight_decays": [0.1],
    "steps": 8,
    "images_per_step": 8,
    "rates": [1e-2, 1e-3],
    "stock_rates": [1e-2],
    "seeds": [0, 1],
    "protocol": "voc12",
    "windows": 40,
    "others": 10,
    "rounds": 2,
}


def call(folder: str) -> int:
    """Train in the folder and write what came out there; returns the exit code of a command that did this."""
    import stepgrad as sg
    from tests.models.tiny import tiny_batch, tiny_model

    train, val = (list(zip(*tiny_batch("retinanet", n, seed), strict=True)) for n, seed in ((30, 1), (6, 2)))
    try:
        result = sg.train_new_head(tiny_model("ssd"), train, val, out=folder, **OPTIONS)
        weights = fingerprint(result.model.state_dict().values())
        write_whole(Path(folder) / "result.json", json.dumps({"weights": weights, "text": str(result)}).encode())
    except StepgradError as error:
        print(f"stepgrad: {error}", file=sys.stderr)
        return 2
    return 0


class TrainNewHead(FileByFile):
    name = "train_new_head"

    def words(self, folder: Path) -> list[str]:
        return [self.name, str(folder)]

    def made(self) -> set[Path]:
        return {path.relative_to(self.folder) for path in self.folder.rglob("[!.]*.safetensors")}

    def phase(self) -> str:
        if half_written(self.folder):
            return "writing"
        parts = Counter(path.parts[0] for path in self.made())
        if parts["fine-tuning"]:
            return "finishing" if (self.folder / "fine-tuning/report.html").exists() else "fine-tuning"
        return "cross-entropy" if parts["cross-entropy-1"] else "features" if parts else "starting"

    def fault(self, path: Path) -> str:
        try:
            found, right = (read_tensors(root / path)[0] for root in (self.folder, self.root / "unbroken"))
        except DataError:
            return "files damaged"
        return "" if digest(found) == digest(right) else "weights that differ"

    def check_end(self) -> Problems:
        problems, unbroken = self.check(), self.root / "unbroken"
        expected = {path.relative_to(unbroken) for path in unbroken.rglob("*.safetensors")}
        problems["files lost"] += len(expected - self.seen)
        problems["files lost"] += not (self.folder / "fine-tuning/report.html").exists()
        problems["results that differ"] += sha256(self.folder / "result.json") != sha256(unbroken / "result.json")
        return problems
