"""How far is a minibatch's mAP from the dataset's? Bias and spread for batches of 2 to 2000 images, on real scores.

    python -m experiments.batch_bias measure --run runs/voc            # scores the run's validation images first
    python -m experiments.batch_bias measure --cache DIR               # VOC val by the head of `experiments.run start`

mAP ranks the windows of all images in one list, so the mean over batches is not the mAP of the whole: few images have few
objects of a class, and few false alarms to outrank them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.figures import svg_figure
from experiments.records import load_runs, save_run, table
from experiments.scored_images import ClassRecords, ScoredImages, judge, mean_ap, score_run, score_voc_val

RESULTS = Path(__file__).parent / "results"
SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000)
KINDS = {"zero": "absent classes count 0", "skip": "absent classes left out"}


def measure(images: ScoredImages, draws: int, seed: int = 0) -> dict[str, Any]:
    """mAP of random batches (no image twice in one) of every size up to the number of images."""
    records = judge(images)
    whole = mean_ap(records, np.ones(len(images), dtype=np.bool_))
    rng = np.random.default_rng(seed)
    sizes = [size for size in SIZES if size <= len(images)]
    rows = [_row(records, whole, size, len(images), draws, rng) for size in sizes]
    return {"images": len(images), "dataset": dict(zip(KINDS, whole, strict=True)), "seed": seed, "rows": rows}


def _row(
    records: list[ClassRecords],
    whole: tuple[float, float],
    size: int,
    images: int,
    draws: int,
    rng: np.random.Generator,
) -> dict[str, Any]:
    values = np.array([_draw(records, size, images, rng) for _ in range(draws if size < images else 1)])
    row: dict[str, Any] = {"size": size, "draws": len(values)}
    for kind, column, truth in zip(KINDS, values.T, whole, strict=True):
        spread = float(column.std(ddof=1)) if len(column) > 1 else 0.0
        row[kind] = {
            "mean": float(column.mean()),
            "bias": float(column.mean() - truth),
            "bias error": spread / len(column) ** 0.5,  # standard error
            "deviation": spread,
        }
    return row


def _draw(records: list[ClassRecords], size: int, images: int, rng: np.random.Generator) -> tuple[float, float]:
    chosen = np.zeros(images, dtype=np.bool_)
    chosen[rng.choice(images, size, replace=False)] = True
    return mean_ap(records, chosen)


def page(file: Path) -> str:
    """The page of the last measurement on record."""
    results = load_runs(file, "measure")[-1]
    header = ["images in a batch", "draws"]
    for text in KINDS.values():
        header += [f"mean mAP, {text}", "bias", "standard deviation"]
    rows = [[str(row["size"]), str(row["draws"]), *_cells(row)] for row in results["rows"]]
    dataset = ", ".join(f"{100 * results['dataset'][kind]:.2f} ({text})" for kind, text in KINDS.items())
    return (
        "# Bias and spread of minibatch mAP\n\n"
        f"Area AP after NMS at 0.3 of {results['images']} scored images ({results['source']}); in points of mAP, with the "
        f"standard error of the bias. Of all images at once: {dataset}. A batch holds no image twice, so the spread of "
        "batches nearly as large as the set is smaller than that of fresh images would be.\n\n"
        f"`{results['command']}`\n\n{table(header, rows)}\n"
    )


def _cells(row: dict[str, Any]) -> list[str]:
    cells = []
    for kind in KINDS:
        found = {name: 100 * value for name, value in row[kind].items()}
        cells += [
            f"{found['mean']:.2f}",
            f"{found['bias']:+.2f} ± {found['bias error']:.2f}",
            f"{found['deviation']:.2f}",
        ]
    return cells


def draw(file: Path, out: Path) -> None:
    """Mean and spread against batch size, with the dataset's mAP as a line."""
    results = load_runs(file, "measure")[-1]
    sizes = [row["size"] for row in results["rows"]]
    with svg_figure(out, (7.2, 3.0), layout="constrained") as figure:
        panels = figure.subplots(1, 2, sharex=True)
        for panel, (kind, text) in zip(panels, KINDS.items(), strict=True):
            mean = 100 * np.array([row[kind]["mean"] for row in results["rows"]])
            spread = 100 * np.array([row[kind]["deviation"] for row in results["rows"]])
            whole = 100 * results["dataset"][kind]
            panel.fill_between(sizes, mean - spread, mean + spread, color="#2f6fb5", alpha=0.18, linewidth=0)
            panel.plot(sizes, mean, "o-", color="#2f6fb5", markersize=3.5, label="batches: mean ± deviation")
            panel.axhline(whole, color="#222222", linewidth=1, linestyle="--", label="all images")
            panel.set(xscale="log", xlabel="images in a batch", ylabel="mAP", title=text, ylim=(0, None))
            panel.spines[["top", "right"]].set_visible(False)
        panels[1].legend(frameon=False, fontsize=8)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=["measure"])
    scored = parser.add_mutually_exclusive_group(required=True)
    scored.add_argument("--run", type=Path, help="run folder whose validation images are scored")
    scored.add_argument("--cache", type=Path, help="features of `experiments.run`: score VOC val by its head")
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("STEPGRAD_DATA"), help="with --cache: has VOC2012-320"
    )
    parser.add_argument("--checkpoint", default="best", help="with --run: best, last or a step")
    parser.add_argument("--split", help="with --run: score this split instead, such as val")
    parser.add_argument("--images", type=int, help="with --run: score only the first so many")
    parser.add_argument("--draws", type=int, default=400, help="batches of each size")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.run:
        source, how = "a run's validation images", "--run RUN"
        images = score_run(options.run, options.checkpoint, options.images, options.split)
    elif options.data is None:
        parser.error("--cache needs --data (or STEPGRAD_DATA)")
    else:
        source, how = "VOC 2012 val", "--cache DIR"
        images = score_voc_val(options.cache, options.data)
    command = f"python -m experiments.batch_bias measure {how} --draws {options.draws}"
    found = {"command": command, "source": source, **measure(images, options.draws)}
    save_run(options.results / "batch_bias.jsonl", "measure", found)


if __name__ == "__main__":
    main()
