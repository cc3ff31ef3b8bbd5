"""The page of `experiments.masks.trial`: `python -m experiments.render masks`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.masks.arms import MASKS, Study
from experiments.records import load_runs, mean_and_spread, table

INTRODUCTION = """# Scores that follow masks: a frozen YOLO11n-seg on VOC's instances

`python -m experiments.masks.windows --data VOC2012 --weights yolo11n-seg.onnx --cache DIR`, then
`python -m experiments.masks.trial choose --cache DIR --out FILE.jsonl`, `bounds`, `final`, `intervals`.

Trained on the 1,464 images of VOC 2012 train with instance masks, judged on the 1,449 of val, once. Every arm was tuned on a
fifth of the training images with equal effort. In round brackets the spread over three seeds, in square ones 95 % intervals over
images, paired. A *quality* is added to the detector's own logits; a *new head* replaces them."""
SETTINGS = ("rate", "steps", "weight_decay", "hit", "alpha", "radius", "pull")


class Page:
    """The runs of a study with the same facts, such as a treatment of void pixels."""

    def __init__(self, file: Path, study: Study, **facts: Any) -> None:
        self.file, self.study, self.facts = file, study, facts

    def runs(self, phase: str, **facts: Any) -> list[dict[str, Any]]:
        return [run for run in load_runs(self.file, phase) if {**self.facts, **facts}.items() <= run.items()]

    @property
    def bounds(self) -> dict[str, str]:
        """What scores without training are called."""
        return {
            "own": "the detector's own scores",
            self.study.word: f"bound: true {self.study.overlap} as score",
            "box": "bound: true box IoU as score",
        }

    def values(self, metric: str, **facts: Any) -> str:
        """Mean (spread over seeds) on val."""
        return mean_and_spread([run["found"][metric] for run in self.runs("final", **facts)])

    def gain(self, metric: str, **facts: Any) -> str:
        """The gain and its interval over images."""
        found = self.runs("interval", **facts)
        return "{1:+.1f} [{0:+.1f}, {2:+.1f}]".format(*found[-1]["gain"][metric]) if found else ""

    def arms(self) -> str:
        """Every arm with all training images; gains are over the detector's own scores."""
        metrics, first = self.study.metrics, self.study.chosen_by
        heading = [
            "scores",
            *(text for m in metrics for text in (m, "gain")),
            f"{first} over {self.study.word} scoring",
        ]
        rows = [
            [self.bounds[run["arm"]], *(text for m in metrics for text in (f"{run['found'][m]:.1f}", "")), ""]
            for run in self.runs("bounds", part="val")
        ]
        for arm in dict.fromkeys(run["arm"] for run in self.runs("final", images=None)):
            own = {"arm": arm, "images": None}
            cells = [(self.values(m, **own), self.gain(m, over="own", **own)) for m in metrics]
            rows.append([self.study.arms[arm].says, *sum(cells, ()), self.gain(first, over="scoring", **own)])
        return table(heading, rows)

    def curve(self) -> str:
        """AP by the number of training images."""
        first = self.study.chosen_by
        counts = [*sorted({run["images"] for run in self.runs("final")} - {None}), None]
        rows = [
            [self.study.arms[arm].says, *(self.values(first, arm=arm, images=n) for n in counts)]
            for arm in ("scoring", "exact")
        ]
        rows += [
            [f"{arm}, gain over {over}", *(self.gain(first, arm=arm, images=n, over=over) for n in counts)]
            for arm, over in (("scoring", "own"), ("exact", "own"), ("exact", "scoring"))
        ]
        return table([f"{first} by training images", *(str(n or "all") for n in counts)], rows)

    def settings(self) -> str:
        """What was chosen, and seconds of CPU per training."""
        rows = [
            [run["arm"], str(run["images"] or "all"), *(f"{run[name]:g}" for name in (*SETTINGS, "cpu_s"))]
            for run in self.runs("final", seed=0)
        ]
        return table(["arm", "images", *SETTINGS, "CPU seconds"], rows)


def page(file: Path) -> str:
    """The page of the runs on record."""
    parts = [INTRODUCTION]
    for void in dict.fromkeys(run["void"] for run in load_runs(file, "final")):
        found = Page(file, MASKS, void=void)
        parts += [f"**Void pixels: {void}**", found.arms(), found.curve(), found.settings()]
    return "\n\n".join(parts) + "\n"
