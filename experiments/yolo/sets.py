"""The data that YOLOv8n's features are taken of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.yolo.windows import Cache
from stepgrad.data import VOCDataset


@dataclass(frozen=True)
class Set:
    """A dataset with its splits."""

    folder: str
    splits: tuple[str, ...]
    windows: int

    def caches(self, data: Path, cache: Path) -> dict[str, Cache]:
        return {
            split: Cache(cache / self.folder, VOCDataset(data / self.folder, split), self.windows)
            for split in self.splits
        }


SETS = {"voc": Set("VOC2012-320", ("train", "val"), 300), "bccd": Set("BCCD", ("train", "val", "test"), 300)}
