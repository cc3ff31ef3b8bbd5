"""How far is a minibatch's mAP from the dataset's? Bias and spread for batches of 2 to 2000 images, on real scores.

    python -m experiments.batch_bias measure --run runs/voc            # scores the run's validation images first
    python -m experiments.batch_bias measure --cache DIR               # VOC val by the head of `experiments.run start`
    python -m experiments.batch_bias measure --scores voc_val.npz      # scores kept from before
    python -m experiments.batch_bias render                            # table and plot again, from the record

mAP ranks the windows of all images in one list, so the mean over batches is not the mAP of the whole: few images have few
objects of a class, and few false alarms to outrank them.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np

from experiments.results import load_runs, save_runs
from experiments.scored_images import ClassRecords, ScoredImages, judge, mean_ap, score_run, score_voc_val
from stepgrad.files import write_whole

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


def render(results: dict[str, Any]) -> str:
    header = ["images in a batch", "draws"]
    for text in KINDS.values():
        header += [f"mean mAP, {text}", "bias", "standard deviation"]
    rows = [[str(row["size"]), str(row["draws"]), *_cells(row)] for row in results["rows"]]
    dataset = ", ".join(f"{100 * results['dataset'][kind]:.2f} ({text})" for kind, text in KINDS.items())
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in [header, ["---"] * len(header), *rows])
    return (
        "# Bias and spread of minibatch mAP\n\n"
        f"Area AP after NMS at 0.3 of {results['images']} scored images ({results['source']}); in points of mAP, with the "
        f"standard error of the bias. Of all images at once: {dataset}. A batch holds no image twice, so the spread of "
        "batches nearly as large as the set is smaller than that of fresh images would be.\n\n"
        f"`{results['command']}`\n\n{table}\n"
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


def plot(results: dict[str, Any], file: Path) -> None:
    """Mean and spread against batch size, with the dataset's mAP as a line."""
    from matplotlib.figure import Figure

    from stepgrad.evaluation.plots import save_figure

    figure = Figure(figsize=(7.2, 3.0), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True)
    sizes = [row["size"] for row in results["rows"]]
    for panel, (kind, text) in zip(panels, KINDS.items(), strict=True):
        mean = 100 * np.array([row[kind]["mean"] for row in results["rows"]])
        spread = 100 * np.array([row[kind]["deviation"] for row in results["rows"]])
        panel.fill_between(sizes, mean - spread, mean + spread, color="#2f6fb5", alpha=0.18, linewidth=0)
        panel.plot(sizes, mean, "o-", color="#2f6fb5", markersize=3.5, label="batches: mean ± deviation")
        panel.axhline(100 * results["dataset"][kind], color="#222222", linewidth=1, linestyle="--", label="all images")
        panel.set(xscale="log", xlabel="images in a batch", ylabel="mAP", title=text, ylim=(0, None))
        panel.spines[["top", "right"]].set_visible(False)
    panels[1].legend(frameon=False, fontsize=8)
    save_figure(figure, file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=["measure", "render"])
    parser.add_argument("--run", type=Path, help="run folder whose validation images are scored")
    parser.add_argument(
        "--cache", type=Path, help="features of `experiments.run`: score VOC val by its cross-entropy head"
    )
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("STEPGRAD_DATA"), help="with --cache: has VOC2012-320"
    )
    parser.add_argument("--checkpoint", default="best", help="best, last or a step")
    parser.add_argument("--scores", type=Path, help="scores of an earlier call; with --run, where to keep them")
    parser.add_argument("--split", help="score this split instead, such as val")
    parser.add_argument("--images", type=int, help="score only the first so many")
    parser.add_argument("--draws", type=int, default=400, help="batches of each size")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    file = options.results / "batch_bias.jsonl"
    if options.phase == "measure":
        if options.run is None and options.scores is None and options.cache is None:
            parser.error("--run, --cache or --scores is needed")
        if options.cache is not None and options.data is None:
            parser.error("--cache needs --data (or STEPGRAD_DATA)")
        source = (
            "a run's validation images" if options.run else "VOC 2012 val" if options.cache else options.scores.name
        )
        how = "--run RUN" if options.run else "--cache DIR" if options.cache else "--scores FILE"
        command = f"python -m experiments.batch_bias measure {how} --draws {options.draws}"
        measured = {"command": command, "source": source, **measure(_scored(options), options.draws)}
        save_runs(file, "measure", measured)
    results = load_runs(file, "measure")[-1]
    page = render(results)
    write_whole(options.results / "batch_bias.md", page.encode())
    plot(results, options.results / "batch_bias.svg")
    print(page)


def _scored(options: argparse.Namespace) -> ScoredImages:
    if options.cache is not None:
        return score_voc_val(options.cache, options.data)
    if options.run is None:
        return ScoredImages.load(options.scores)
    images = score_run(options.run, options.checkpoint, options.images, options.split)
    if options.scores is not None:
        images.save(options.scores)
    return images


if __name__ == "__main__":
    main()
