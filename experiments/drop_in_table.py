"""The page of the drop-in experiment, from its JSON."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from experiments.results import load_runs, mean_and_spread
from stepgrad.data.files import write_whole


def render(file: Path) -> str:
    """Write the page beside the file and return it."""
    from experiments import drop_in

    parts = [
        "# torchvision's detectors: stock loss, or stock loss and then mAP",
        (drop_in.__doc__ or "").split("\n", 1)[1].strip("\n"),
        "mAP in per cent on unseen images, mean (standard deviation) over seeds; `gain` is over `stock-more`.",
        _final_table(load_runs(file, "final")),
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
    lines = [["family", "training", "rate", "voc12", "gain", "coco", "gain", "seeds"]]
    for (family, arm), runs in groups.items():
        control = groups.get((family, "stock-more"), [])
        cells = [family, arm, f"{runs[0]['rate']:g}"]
        for protocol in ("voc12", "coco"):
            values = [r["map"][protocol] for r in runs]
            base = [r["map"][protocol] for r in control]
            cells += [mean_and_spread(values), _gain(values, base) if arm not in ("stock", "stock-more") else ""]
        lines.append([*cells, str(len(runs))])
    return _table(lines)


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


def _gain(values: list[float], base: list[float]) -> str:
    return f"{statistics.mean(values) - statistics.mean(base):+.1f}" if base else ""
