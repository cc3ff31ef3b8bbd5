"""Tables of `experiments.endless.new_head`, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepgrad.number_text import mean_and_spread

ARMS = {
    "start": "cross-entropy, 2000 steps of 8 images",
    "more": "then 400 more of it",
    "coco": 'then 100 steps of 32 images with `MAPLoss(protocol="coco")`',
    "voc12": 'the same with `protocol="voc12"`',
}


def render(lines: Sequence[dict[str, Any]]) -> str:
    """The final table, then what was tried."""
    final = ["| training | labels | COCO AP | gain | area mAP | gain | seconds |", "|---|---|---|---|---|---|---|"]
    final += _final([line for line in lines if line["part"] == "final"])
    tried = ["| labels | training | rate | weight decay | COCO AP, val | area mAP, val |", "|---|---|---|---|---|---|"]
    tried += _tried([line for line in lines if line["part"] == "choose"])
    return "\n".join([*final, "", *tried])


def _final(lines: Sequence[dict[str, Any]]) -> list[str]:
    rows = []
    for labels in dict.fromkeys(line["labels"] for line in lines):
        by_arm = {arm: [line for line in lines if (line["labels"], line["arm"]) == (labels, arm)] for arm in ARMS}
        for arm, runs in by_arm.items():
            cells = [ARMS[arm], labels]
            for name in ("coco", "voc12"):
                values = [run["test"][name] for run in runs]
                gains = [run["test"][name] - more["test"][name] for run, more in zip(runs, by_arm["more"], strict=True)]
                cells += [_with_spread(values), "" if arm in ("start", "more") else _with_spread(gains, "+.1f")]
            cells.append(f"{sum(run['s'] for run in runs) / max(len(runs), 1):.0f}")
            rows.append(f"| {' | '.join(cells)} |")
    return rows


def _with_spread(values: Sequence[float], form: str = ".1f") -> str:
    mean, spread = mean_and_spread(values)
    return f"{mean:{form}} ({spread:.1f})"


def _tried(lines: Sequence[dict[str, Any]]) -> list[str]:
    return [
        f"| {line['labels']} | {line['arm']} | {line['rate']:g} | {line['weight_decay']:g} | {line['val']['coco']:.1f} | "
        f"{line['val']['voc12']:.1f} |"
        for line in lines
    ]
