"""The page of `experiments.rescore.trial`: `python -m experiments.render rescore`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from experiments.records import Run, load_runs, mean_and_spread, table
from experiments.rescore.sets import SETS
from stepgrad.models.rescore.ways import SAYS, Setting

INTRODUCTION = """# Rescoring finished detectors: what a file of detections and some labels give

`python -m experiments.rescore.detections --data VOC2012 --cache DIR --model yolov8n --weights FILE.onnx`, the same for `yolo11n`
and for VisDrone with `--set visdrone`, and `python -m experiments.masks.windows` for masks; then for each set
`python -m experiments.rescore.trial fit final curve --set SET --cache DIR --data DIR --out FILE.jsonl` (`exact`, `several`).

The detectors were trained on COCO and have seen none of the images. *Fit* is what `stepgrad rescore` does with the first 1,000
training images: four ways tuned on a third of them, compared on the other two thirds by networks that were trained without the
images they are judged on. Then each way is trained on all training images with three seeds, and judged once on test images. COCO
AP in points; intervals are of 95 %, paired over images (of *fit* wider, for four ways). *Inputs* "file" are boxes, scores, labels
and masks; "more" adds class scores and statistics of the box's distributions, of masks those of their probabilities. Times are
seconds of one core (AMD EPYC)."""


def page(file: Path) -> str:
    """The page of the runs on record."""
    parts = [INTRODUCTION, *(part for name in SETS for inputs in ("file", "more") for part in _set(file, name, inputs))]
    parts += [*_longer(file), *_curve(file), *_exact(file), *_several(file), *_use(file)]
    phases = ("fit", "final", "curve", "exact", "several", "use", "longer")
    commits = dict.fromkeys(run["commit"] for phase in phases for run in load_runs(file, phase))
    parts.append(f"Commits of the runs: {', '.join(commits)}.")
    return "\n\n".join(parts) + "\n"


def _runs(file: Path, phase: str, **facts: object) -> list[Run]:
    return [run for run in load_runs(file, phase) if facts.items() <= run.items()]


def _set(file: Path, name: str, inputs: str) -> list[str]:
    fits, runs = (_runs(file, phase, set=name, inputs=inputs) for phase in ("fit", "final"))
    if not runs and not fits:
        return []
    if not fits:
        return _with_settings_of_another(name, inputs, runs)
    fit = fits[-1]
    found = {way["way"]: way for way in fit["ways"]}
    own = f"{mean(run['own'] for run in runs):.1f}" if runs else ""
    rows = [[SAYS["own"], f"{100 * found['own']['value']:.1f}", "", own, "", "", ""]]
    for way in list(found)[1:]:
        mine = [run for run in runs if run["way"] == way]
        low, high = (100 * end for end in found[way]["interval"])
        rows.append(
            [
                SAYS[way] + (" (chosen)" if way == fit["chosen"] else ""),
                f"{100 * found[way]['value']:.1f}",
                f"{100 * found[way]['difference']:+.1f} [{low:+.1f}, {high:+.1f}]",
                mean_and_spread([run["test"] for run in mine]) if mine else "",
                _gain(mine),
                f"{mean(run['seconds'] for run in mine):.0f}" if mine else "",
                Setting.from_dict(found[way]["setting"]).text,
            ]
        )
    images = f"{runs[0]['images']:,} training, {SETS[name].test:,} test images" if runs else ""
    heading = ["scores", "held-out", "gain", "test", "gain", "seconds", "setting"]
    took = f"fit with {fit['images']:,} images: {fit['seconds']:.0f} seconds"
    return [f"## {SETS[name].says}, inputs: {inputs}\n\n{images}; {took}.", table(heading, rows)]


def _with_settings_of_another(name: str, inputs: str, runs: Sequence[Run]) -> list[str]:
    """A set whose settings were chosen on the first one."""
    ways = list(dict.fromkeys(run["way"] for run in runs))
    rows = [[SAYS["own"], f"{mean(run['own'] for run in runs):.1f}", ""]]
    for way in ways:
        mine = [run for run in runs if run["way"] == way]
        rows.append([SAYS[way], mean_and_spread([run["test"] for run in mine]), _gain(mine)])
    images = f"{runs[0]['images']:,} training, {SETS[name].test:,} test images; settings as chosen for the first set."
    return [f"## {SETS[name].says}, inputs: {inputs}\n\n{images}", table(["scores", "test", "gain"], rows)]


def _gain(runs: Sequence[Run]) -> str:
    """The mean over seeds, and the mean ends of their intervals."""
    if not runs:
        return ""
    low, middle, high = (mean(run["gain"][k] for run in runs) for k in range(3))
    return f"{middle:+.2f} [{low:+.1f}, {high:+.1f}]"


def _curve(file: Path) -> list[str]:
    runs = load_runs(file, "curve")
    if not runs:
        return []
    ways = list(dict.fromkeys(run["way"] for run in runs))
    rows = [
        [f"{SETS[name].says}, {count:,}"]
        + [_gain([r for r in runs if (r["set"], r["images"], r["way"]) == (name, count, way)]) for way in ways]
        for name, count in dict.fromkeys((run["set"], run["images"]) for run in runs)
    ]
    says = "How many labelled images does it take? Gains on the test images, one seed, settings as chosen above."
    return [f"## Learning curve\n\n{says}", table(["training images", *(SAYS[way] for way in ways)], rows)]


def _longer(file: Path) -> list[str]:
    runs = load_runs(file, "longer")
    if not runs:
        return []
    rows = []
    for name in dict.fromkeys(run["set"] for run in runs):
        mine = [run for run in runs if run["set"] == name]
        values = mean_and_spread([run["test"] for run in mine])
        rows.append([SETS[name].says, f"{mine[0]['own']:.1f}", values, _gain(mine), str(len(mine))])
    says = (
        "The runs above stopped at 800 steps. On held-out training images of the first set 2,400 steps were ahead (61.5 against "
        "61.2, own scores 59.6), so this is what the tool takes now for 4,000 images. Regressed hits, judged on the test images:"
    )
    heading = ["set", "own scores", "test", "gain", "seeds"]
    return [f"## Ten passes over 4,000 images\n\n{says}", table(heading, rows)]


def _exact(file: Path) -> list[str]:
    runs = load_runs(file, "exact")
    if not runs:
        return []
    rows = []
    for run in runs:
        s = run["setting"]
        what = [f"{s['radius']:g}", f"{s['pull']:g}", f"{s['mean']:g}", f"{s['rate']:g}"]
        rows.append([SETS[run["set"]].says, *what, f"{run['test']:.1f}", _gain([run])])
    says = "The metric itself from the detector's own scores, 100 steps of 64 images, 1,000 training images, one seed, test."
    heading = ["set", "radius", "pull", "mean of weights", "rate", "test", "gain"]
    return [f"## Brakes on the metric itself\n\n{says}", table(heading, rows)]


def _several(file: Path) -> list[str]:
    runs = load_runs(file, "several")
    if not runs:
        return []
    rows = [[run["what"], f"{run['test']:.1f}", _gain([run])] for run in runs]
    says = "1,000 training and 1,000 test images of VOC. Gains are over the best model alone."
    weights = ", ".join(f"{weight:.2f}" for weight in runs[-1]["weights"])
    return [
        f"## Two models: YOLOv8n and YOLO11n\n\n{says} Tuned weights: {weights}, IoU {runs[-1]['threshold']:g}.",
        table(["scores", "test", "gain"], rows),
    ]


def _use(file: Path) -> list[str]:
    runs = load_runs(file, "use")
    if not runs:
        return []
    run = runs[-1]
    low, high = run["interval"]
    said = (
        f"YOLOv8n's own scores on the test images: COCO AP {run['own']:.1f} ({low:.1f} to {high:.1f}). F1 at IoU 0.5, mean over "
        f"classes: {run['f1 at 0.25']:.1f} at 0.25 for all classes, {run['f1 by class']:.1f} with thresholds by class that "
        f"`sg.thresholds` chose on 1,000 training images. What `stepgrad explain` says:"
    )
    return [f"## The other steps on the same detections\n\n{said}\n\n```text\n{run['explain']}\n```"]
