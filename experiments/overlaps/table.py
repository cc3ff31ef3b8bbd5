"""The page and the plot of `experiments.overlaps.trial`: `python -m experiments.render overlaps`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from experiments.figures import svg_figure
from experiments.overlaps.trial import ARMS, TASKS
from experiments.records import Run, grouped, load_runs, mean_and_spread, table

INTRODUCTION = """# New class heads for masks, keypoints, oriented boxes and boxes of `shapes`

`python -m experiments.overlaps.windows --cache DIR`, then
`python -m experiments.overlaps.trial choose --cache DIR --out FILE.jsonl`, `final`, `law`.

The demo's detector is frozen, and so are branches that draw a mask, four keypoints and an oriented box for each of its windows.
A new head of 64 units learns six classes from 800 images, and is judged on 800 others, once, by COCO AP with the overlap of
each task. Every way to train was tuned on a fifth of the training images with eight settings; five seeds. In round
brackets the spread over seeds, in square ones 95 % intervals over images, paired (the resampling of `sg.compare`, mean over
seeds). OKS has sigmas of 0.1. AMD EPYC, one thread."""
GROUPS = """A group is a class whose objects can be seen whole (at least 90 %), or of which a part is hidden. Disagreement is how
often box IoU and the true overlap put two windows of the group in opposite order ((1 - Kendall's tau) / 2 of the windows with a
box IoU of at least 0.5). Gains are over labels aligned with box IoU."""
SETTINGS = ("rate", "steps", "weight_decay", "radius", "pull")


def ends(gain: Sequence[float]) -> str:
    """A gain with its interval.

    >>> ends([-0.11, 0.52, 1.0])
    '+0.5 [-0.1, +1.0]'
    """
    low, value, high = gain
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"


def law_of(file: Path) -> Run | None:
    found = load_runs(file, "law")
    return found[-1] if found else None


def page(file: Path) -> str:
    """The page of the runs on record."""
    gains = {run["task"]: run for run in load_runs(file, "gain")}
    parts = [INTRODUCTION, _totals(file, gains)]
    law = law_of(file)
    if law is not None:
        parts += ["![gain against disagreement](overlaps.svg)", GROUPS, _verdict(law), _law(law), _groups(gains)]
    return "\n\n".join([*parts, _settings(file)]) + "\n"


def _totals(file: Path, gains: dict[str, Run]) -> str:
    rows = []
    for (task, arm), runs in grouped(load_runs(file, "final"), "task", "arm").items():
        gain = gains[task]["gain"].get(arm) if task in gains else None
        values = [mean_and_spread([run["found"][m] for run in runs]) for m in ("AP", "box AP")]
        rows.append((task, [TASKS[task][0].overlap, ARMS[arm].says, values[0], ends(gain) if gain else "", values[1]]))
    ordered = [row for task in TASKS for at, row in rows if at == task]
    return table(["true overlap", "training", "AP of it", "gain over box-aligned labels", "box AP"], ordered)


def _verdict(law: Run) -> str:
    """For which overlaps the gain of exact AP grows with disagreement."""
    found = {name: own["box-exact"] for name, own in law["slope"].items()}
    says: dict[str, list[str]] = {"holds": [], "cannot be told from chance": [], "fails": []}
    for task in [task for task in TASKS if task in found]:
        low, _, high = found[task]["slope"]
        says["holds" if low > 0 else "fails" if high < 0 else "cannot be told from chance"].append(
            TASKS[task][0].overlap
        )
    words = ", ".join(f"{word} for {' and '.join(tasks)}" for word, tasks in says.items() if tasks)
    every, shapes = found["all"], found["without boxes"]
    return (
        f"**The law that exact AP gains more where box IoU says less about the true overlap {words}.** Per 0.1 of disagreement "
        f"it\ngains {ends(every['slope'])} AP more over all groups, {ends(shapes['slope'])} without those of boxes. But "
        f"disagreement orders the groups badly:\nthe rank correlation is {every['spearman']:+.2f} and "
        f"{shapes['spearman']:+.2f}. Intervals are over images; another set of groups may have another slope."
    )


def _law(law: Run) -> str:
    rows = [
        [name, ARMS[arm].says, ends(own["slope"]), f"{own['spearman']:+.2f}", str(own["groups"])]
        for name, found in law["slope"].items()
        for arm, own in found.items()
    ]
    return table(["groups of", "training", "AP more per 0.1 of disagreement", "rank correlation", "groups"], rows)


def _groups(gains: dict[str, Run]) -> str:
    rows = []
    for task in TASKS:
        for group in gains[task]["groups"] if task in gains else []:
            own = [
                ends(group["gain"][arm]) if arm in group["gain"] else "" for arm in ("own", "box-exact", "own-exact")
            ]
            what = [TASKS[task][0].overlap, f"{group['class']}, {group['share']}", str(group["objects"])]
            rows.append([*what, f"{group['disagreement']:.3f}", f"{group['ap']['box']:.1f}", *own])
    names = [f"gain: {ARMS[arm].says}" for arm in ("own", "box-exact", "own-exact")]
    return table(["true overlap", "group", "objects", "disagreement", "AP before", *names], rows)


def _settings(file: Path) -> str:
    rows = []
    for (task, arm), runs in grouped(load_runs(file, "final"), "task", "arm").items():
        seconds = fmean(run["cpu_s"] for run in runs)
        rows.append([task, arm, *(f"{runs[0][name]:g}" for name in SETTINGS), f"{seconds:.1f}"])
    return table(["task", "training", *SETTINGS, "CPU seconds"], rows)


def draw(file: Path, out: Path) -> None:
    """A point per group of each task: the gain of exact AP of the true overlap, and its interval."""
    gains = {run["task"]: run for run in load_runs(file, "gain")}
    with svg_figure(out, (6.8, 4.2)) as figure:
        panel = figure.subplots()
        for task, colour in zip(TASKS, ("tab:blue", "tab:orange", "tab:green", "tab:grey"), strict=True):
            for share, face in (("whole", "white"), ("hidden", colour)):
                groups = [g for g in gains[task]["groups"] if g["share"] == share]
                x = [g["disagreement"] for g in groups]
                low, y, high = zip(*(g["gain"]["box-exact"] for g in groups), strict=True)
                reach = [[b - a for a, b in zip(low, y, strict=True)], [b - a for a, b in zip(y, high, strict=True)]]
                style = {"markersize": 5, "markerfacecolor": face, "elinewidth": 0.6, "color": colour}
                says = f"{TASKS[task][0].overlap}, objects {'seen whole' if share == 'whole' else 'partly hidden'}"
                panel.errorbar(x, y, reach, fmt="o", label=says, **style)
        panel.axhline(0.0, color="grey", linewidth=0.8)
        panel.set_xlabel("disagreement of box IoU and the true overlap about the windows of a class")
        panel.set_ylabel("gain in AP over labels aligned with box IoU")
        panel.legend(
            frameon=False, fontsize=7, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0)
        )  # above the points
        figure.tight_layout()
