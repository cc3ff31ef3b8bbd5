"""Windows per image and recall of our selective search, next to windows that others made of the same images.

    STEPGRAD_DATA=folder python -m benchmarks.proposals              # some minutes; writes results/proposals.{json,md}
    STEPGRAD_DATA=folder python -m benchmarks.proposals --images 20  # rougher

Needs `VOC2012-320`, a VOC folder with `selective_search_fast.npz`, and `pip install ".[train,detector]"`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, heading, write
from benchmarks.timing import machine, version
from experiments.records import table
from stepgrad.data import (
    DetectionDataset,
    Proposals,
    SearchSettings,
    ShapesDataset,
    VOCDataset,
    generate_proposals,
    load_proposals,
    recall,
)

Row = dict[str, Any]


def facts() -> dict[str, object]:
    """Of what the numbers depend on, that which matters here."""
    everything = machine()
    chosen = {key: everything[key] for key in ("cpu", "cores", "load before", "python", "stepgrad")}
    return {**chosen, "OpenCV": version("opencv-contrib-python-headless")}


def measure(data: Path, images: int, workers: int) -> list[Row]:
    """Every kind of windows on the same images."""
    root = data / "VOC2012-320"
    photos, drawings = VOCDataset(root, "val"), ShapesDataset("val", length=images)
    shared = load_proposals(root / "selective_search_fast.npz", photos)
    rows = [judge("shared windows", photos, shared)]
    photos = first_images(photos, images)
    rows.append(judge("shared windows", photos, shared))
    for mode in ("fast", "quality"):
        with tempfile.TemporaryDirectory() as cache:
            seconds = search(photos, Path(cache), SearchSettings(mode), workers)
            ours = load_proposals(cache, photos)
            common = {"same as shared": same_share(photos, ours, shared), "seconds": seconds}
            rows.append({**judge(f"ours, {mode}", photos, ours), **common})
    with tempfile.TemporaryDirectory() as cache:
        seconds = search(drawings, Path(cache), SearchSettings(), workers)
        rows.append({**judge("ours, fast", drawings, load_proposals(cache, drawings)), "seconds": seconds})
    rows.append(judge("built-in windows", drawings, load_proposals("built-in", drawings)))
    return rows


def first_images(dataset: VOCDataset, count: int) -> VOCDataset:
    """The same dataset with fewer images."""
    dataset.ids, dataset.annotations = dataset.ids[:count], dataset.annotations[:count]
    return dataset


def search(dataset: DetectionDataset, cache: Path, settings: SearchSettings, workers: int) -> float:
    """CPU seconds an image takes, which other work on the machine hardly changes."""
    start = time.process_time()
    generate_proposals(dataset, cache, settings, workers)
    return (time.process_time() - start) / len(dataset)


def same_share(dataset: DetectionDataset, ours: Proposals, shared: Proposals) -> float:
    """The share of the shared windows that are among ours, to the pixel."""
    found = total = 0
    for image_id in dataset.ids:
        mine, theirs = ({tuple(window) for window in windows[image_id].tolist()} for windows in (ours, shared))
        found, total = found + len(mine & theirs), total + len(theirs)
    return found / total


def judge(title: str, dataset: DetectionDataset, windows: Proposals) -> Row:
    measured = recall(windows, dataset, (0.5, 0.7))
    return {
        "windows": title,
        "images": f"{dataset.name}, {len(dataset)} images",
        "objects": int(measured.objects.sum()),
        "per image": float(measured.windows.mean()),
        "recall 0.5": float(measured.recall[0]),
        "recall 0.7": float(measured.recall[1]),
    }


def render(results: dict[str, Any]) -> str:
    header = [
        *("images", "windows", "per image", "objects", "recall at IoU 0.5", "recall at IoU 0.7"),
        *("shared windows found to the pixel", "CPU seconds an image"),
    ]
    rows = [_cells(row) for row in results["rows"]]
    return (
        f"# Windows and their recall\n\n{heading(results)} Difficult objects do not count.\n\n{table(header, rows)}\n"
    )


def _cells(row: Row) -> list[str]:
    return [
        row["images"],
        row["windows"],
        f"{row['per image']:.0f}",
        str(row["objects"]),
        f"{row['recall 0.5']:.1%}",
        f"{row['recall 0.7']:.1%}",
        f"{row['same as shared']:.1%}" if "same as shared" in row else "-",
        f"{row['seconds']:.2f}" if "seconds" in row else "-",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("STEPGRAD_DATA"), help="folder that holds VOC2012-320")
    parser.add_argument("--images", type=int, default=100, help="the first so many of the val list")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.data is None:
        parser.error("name the folder that holds VOC2012-320 (--data), or set STEPGRAD_DATA")
    results = {
        "command": f"python -m benchmarks.proposals --images {options.images}",
        "machine": facts(),
        "rows": measure(Path(options.data), options.images, options.workers),
    }
    write("proposals", results, render(results), options.out)


if __name__ == "__main__":
    main()
