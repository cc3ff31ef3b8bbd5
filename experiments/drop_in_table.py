"""The page of the drop-in experiment, from its runs."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from experiments.results import load_runs, mean_and_spread
from stepgrad.files import write_whole


def render(file: Path) -> str:
    """Write the page beside the file and return it."""
    from experiments import drop_in

    parts = [
        "# torchvision's detectors: stock loss, or stock loss and then mAP",
        (drop_in.__doc__ or "").split("\n", 1)[1].strip("\n"),
        "mAP in per cent on unseen images, mean (standard deviation) over seeds; `gain` is over `stock-more` of the same seed.",
        _final_table(load_runs(file, "final")),
        "## What was tried",
        "mAP on val, first seed. Of the points of an arm (see `ARMS`), that with the best `voc12` went on to the table above; "
        "rate 0.0003 at weight 1 was tried earlier and is none of them.",
        _choose_table(load_runs(file, "choose")),
        "## How strongly each loss pulls",
        "Length of the gradient in all weights of the stock models, mean over seeds and four minibatches; mAP at weight 1.",
        _lengths_table(load_runs(file, "lengths")),
        "## What the pre-selection of dense heads leaves out",
        "Stock models after training, eight val images, `voc12`; everything relative to ranking all anchors for all classes.",
        _left_out_table(load_runs(file, "left-out")),
    ]
    text = "\n\n".join(parts) + "\n"
    write_whole(file.with_suffix(".md"), text.encode())
    return text


def _final_table(rows: list[dict[str, Any]]) -> str:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["family"], row["arm"]), []).append(row)
    lines = [["family", "training", "rate", "weight", "voc12", "gain", "coco", "gain", "seeds"]]
    for (family, arm), runs in groups.items():
        cells = [family, arm, *_point(runs[0])]
        for protocol in ("voc12", "coco"):
            control = {r["seed"]: r["map"][protocol] for r in groups.get((family, "stock-more"), [])}
            gains = [r["map"][protocol] - control[r["seed"]] for r in runs if r["seed"] in control]
            with_gain = gains and arm not in ("stock", "stock-more")
            cells.append(mean_and_spread([r["map"][protocol] for r in runs]))
            cells.append(mean_and_spread(gains, signed=True) if with_gain else "")
        lines.append([*cells, str(len(runs))])
    return _table(lines)


def _choose_table(rows: list[dict[str, Any]]) -> str:
    lines = [["family", "training", "rate", "weight", "voc12", "coco"]]
    for row in sorted(rows, key=lambda r: (r["family"], r["arm"] == "mix", r["arm"] == "stock-more", r["rate"])):
        scores = [f"{row['map'][protocol]:.1f}" for protocol in ("voc12", "coco")]
        lines.append([row["family"], row["arm"], *_point(row), *scores])
    return _table(lines)


def _lengths_table(runs: list[dict[str, Any]]) -> str:
    groups: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        for loss, length in run["lengths"].items():
            groups.setdefault((run["family"], loss), []).append(length)
    lines = [[family, loss, f"{statistics.mean(found):.2f}"] for (family, loss), found in groups.items()]
    return _table([["family", "loss", "length"], *lines])


def _point(row: dict[str, Any]) -> list[str]:
    """Rate, and the weight of mAP if it took part."""
    return [f"{row['rate']:g}", f"{row['weight']:g}" if "weight" in row else ""]


def _left_out_table(runs: list[dict[str, Any]]) -> str:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        for row in run["rows"]:
            groups.setdefault((run["family"], row["selection"]), []).append(row)
    lines = [
        ["family", "candidates", "share of pairs", "mAP", "of all", "gradient left out", "gradient error", "cosine"]
    ]
    for (family, selection), rows in groups.items():
        mean = {key: statistics.mean(r[key] for r in rows) for key in rows[0] if key != "selection"}
        lines.append(
            [
                family,
                selection,
                f"{100 * mean['candidates']:.0f} %",
                f"{100 * mean['map']:.2f}",
                f"{100 * mean['map of all']:.2f}",
                f"{100 * mean['gradient left out']:.2f} %",
                f"{100 * mean['gradient error']:.2f} %",
                f"{mean['cosine']:.4f}",
            ]
        )
    return _table(lines)


def _table(lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [lines[0], ["---"] * len(lines[0]), *lines[1:]])
