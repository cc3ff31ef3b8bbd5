"""The page of `benchmarks.loss`."""

from __future__ import annotations

from typing import Any

from benchmarks.claims import check_claims, floor_seconds
from benchmarks.report import claims_table, heading
from experiments.records import table


def render(results: dict[str, Any]) -> str:
    parts = [
        "# Speed and memory of MAPLoss",
        heading(results),
        "Medians; every case takes its turn in every round.",
        "## Promises",
        claims_table(check_claims(results)),
        "## 8 images x 2000 windows x 20 classes, forward and backward",
        "`MAPLoss default` is the loss as it comes; `exact`, `paper` and `none` are its ways through NMS with MEE.",
        _timing_table(_with_floor(results["detection"]), "MAPLoss exact"),
        "Peers on the same scores, as far as they can take them (none knows NMS):",
        _timing_table(results["peers"], "MAPLoss exact", results["peer notes"]["peers"]),
        "## More images, `exact`",
        _timing_table(results["scaling"], "8 images"),
        "## One class, 100,000 scores, 2,000 positives, no overlaps",
        _timing_table(results["ranking"], "MAPLoss, 50 images", results["peer notes"]["ranking"]),
        "## 1,000,000 scores, 10,000 positives",
        _timing_table(results["million"], "100,000 in 50 images"),
        "## The windows",
        "Made windows next to selective search on real photos; means per image, NMS under random scores.",
        _window_table(results["windows"]),
    ]
    return "\n\n".join(parts) + "\n"


def _with_floor(detection: dict[str, Any]) -> dict[str, Any]:
    total = {"median": floor_seconds(detection)}
    return {**detection, "floor: faster sort + pair sweep": total}


def _timing_table(timings: dict[str, Any], reference: str, notes: list[dict[str, str]] | None = None) -> str:
    about = {note["name"]: note for note in notes or []}
    base = timings[reference]["median"]
    rows = [
        [
            name,
            about.get(name, {}).get("input", ""),
            _milliseconds(row["median"]),
            f"{_milliseconds(row['fastest'])} - {_milliseconds(row['slowest'])}" if "fastest" in row else "",
            f"{row['median'] / base:.2f}",
            about.get(name, {}).get("note", ""),
        ]
        for name, row in timings.items()
    ]
    rows += [[n["name"], n["input"], "-", "-", "-", n["note"]] for n in about.values() if n["name"] not in timings]
    header = ["case", "input", "median ms", "range ms", f"relative to {reference}", "remarks"]
    if not about:
        rows, header = [[r[0], *r[2:5]] for r in rows], [header[0], *header[2:5]]
    return table(header, rows)


def _window_table(windows: dict[str, Any]) -> str:
    header = ["windows", "images", "per image", "neighbours (IoU > 0.3)", "near copies (IoU > 0.7)", "kept by NMS 0.3",
              "on an object (IoU >= 0.5)"]  # fmt: skip
    rows = [
        [name, "-", row, "-", "-", "-", "-"]
        if isinstance(row, str)
        else [
            name,
            str(row["images"]),
            f"{row['windows']:.0f}",
            f"{row['neighbours']:.1f}",
            f"{row['near_copies']:.1f}",
            f"{100 * row['kept']:.1f} %",
            f"{100 * row['foreground']:.1f} %",
        ]
        for name, row in windows.items()
    ]
    return table(header, rows)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"
