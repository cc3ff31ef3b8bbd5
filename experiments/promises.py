"""Do thresholds keep their promise? What `sg.thresholds` tells of new images, beside what the images it did not see say.

    python -m experiments.promises --set made                       # 20,000 made images, 20 classes, as in experiments.coverage
    python -m experiments.promises --set voc07 --data DIR           # 101,139 detections of YOLOv2 on 4952 images of VOC 2007 test
    python -m experiments.promises --set made --images 5000 --draws 500
    python -m experiments.promises --example --data DIR             # the tables of docs/thresholds.md

A case: so many images are drawn from the set, with repetition; thresholds for a wish are chosen by them, with intervals at 95 %;
the truth is the value of the whole set at these thresholds. The share of intervals that hold it should be 95 %. Numbers of
classes are grouped by how many of the images drawn have objects of the class, on average; below 20, `sg.thresholds` warns.
"""

from __future__ import annotations

import argparse
import math
import tarfile
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.timing import cpu_name
from experiments.coverage import Population, evaluated, made_set
from experiments.records import load_runs, once, table
from stepgrad.data import load_dataset
from stepgrad.data.judged_files import evidence_from
from stepgrad.data.read_detections import read_detections
from stepgrad.deploy.calibration import maps_of
from stepgrad.deploy.chosen import choose
from stepgrad.deploy.expected import Expected
from stepgrad.deploy.ranked import RankedList, all_together, ranked_list
from stepgrad.deploy.reliability import reliability_of
from stepgrad.deploy.thresholds import FOLDS
from stepgrad.deploy.wish import PER_IMAGES, Wish, wish_of
from stepgrad.evaluation.intervals import FEW_IMAGES, judged_lists
from stepgrad.evaluation.result import EvaluationResult, evaluate_under
from stepgrad.metric.metrics import AVERAGE_PRECISION
from stepgrad.metric.protocol import VOC12

RESULTS = Path(__file__).parent / "results" / "promises.jsonl"
WISHES = ("f1", "recall@precision=0.9", "precision@recall=0.6", "cost@false_alarm=1,miss=5")
LEVEL = 0.95
SETS = {"made": "made images", "voc07": "YOLOv2 on VOC 2007 test"}
GROUPS = {
    "all": "one threshold for all",
    "mean": "mean over classes",
    "200": "classes in 200 images or more",
    "50": "classes in 50 to 199",
    "20": "classes in 20 to 49",
    "few": "classes in fewer than 20, of which it warns",
}


def open_set(name: str, data: Path | None) -> EvaluationResult:
    if name == "made":
        return evaluated(made_set(), "voc12")
    assert data is not None, "--set voc07 needs --data"
    with tempfile.TemporaryDirectory() as root:
        with tarfile.open(data / "voc2007_annotations_main.tar.xz") as archive:
            archive.extractall(root, filter="data")
        dataset = load_dataset(root, "test", need_images=False)
        found = read_detections(data / "evaluator-fixtures" / "voc2007-yolov2" / "epoch150", dataset)
        return evaluate_under(evidence_from(dataset, found), VOC12)


class World:
    """A set of images, whose values are the truth."""

    def __init__(self, result: EvaluationResult) -> None:
        self.population = Population(result)
        own = np.arange(self.population.images, dtype=np.int32)
        self.lists = [ranked_list(judged, own, 0) for judged in self.population.lists]
        self.together = all_together(self.lists)

    def sample(self, rng: np.random.Generator, images: int) -> list[RankedList]:
        units = np.arange(images, dtype=np.int32)
        drawn = rng.integers(self.population.images, size=images)
        return [ranked_list(judged, units, 0) for judged in self.population.sample(drawn)]

    def truth(self, ranked: RankedList, cut: float | None, wish: Wish) -> dict[str, float]:
        """The values of one of the set's lists at a threshold; nan where nothing passes and precision is asked for."""
        passed = 0 if cut is None else int(np.searchsorted(-ranked.scores, -cut, side="right"))
        counts = [np.count_nonzero(ranked.hits[:passed]), passed, len(ranked.object_units)]
        found = {}
        for name in wish.numbers:
            above, below = wish.sides(name, np.array(counts, dtype=np.float64)[:, None])
            total = self.population.images / PER_IMAGES if name == "cost" else float(below[0])
            found[name] = float(above[0]) / total if total else math.nan
        return found

    def groups(self, images: int) -> list[str]:
        """The group of each class, by the images with objects of it among so many: the expected number, which is the same in
        every draw."""
        shares = [len(np.unique(one.object_units)) / self.population.images for one in self.lists]
        return [_group(images * share) for share in shares]


def _group(count: float) -> str:
    return "few" if count < FEW_IMAGES else "20" if count < 50 else "50" if count < 200 else "200"


def holds(expected: Expected, name: str, truth: float) -> list[float]:
    """Whether the interval holds the truth, whether the truth is below it, its width, and how much too good the value is."""
    number = expected[name]
    low, high = number.interval
    return [low <= truth <= high, truth < low, high - low, number.value - truth]


def measure(world: World, wish_name: str, images: int, draws: int, seed: int) -> dict[str, Any]:
    """By group and number: cases, share held, share of truths below the interval, mean width and mean bias."""
    wish = wish_of(wish_name)
    rng = np.random.default_rng([seed, images])
    rows: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    begin = time.process_time()
    groups = world.groups(images)
    for _ in range(draws):
        lists = world.sample(rng, images)
        chosen = choose(lists, wish, rng.permutation(images) % FOLDS, LEVEL)
        shared = world.truth(world.together, chosen.shared, wish)
        truths = [world.truth(ranked, cut, wish) for ranked, cut in zip(world.lists, chosen.cuts, strict=True)]
        there = [len(one.object_units) > 0 for one in lists]
        for name in wish.numbers:
            told = [
                truth[name]
                for truth, expected, has in zip(truths, chosen.by_class, there, strict=True)
                if name == "cost" or (has and not math.isnan(expected[name].value))
            ]
            mean = sum(told) / (1 if name == "cost" else max(len(told), 1))
            cases = [("all", chosen.of_shared, shared[name]), ("mean", chosen.mean, mean)]
            cases += [
                (group, expected, truth[name])
                for group, expected, truth, has in zip(groups, chosen.by_class, truths, there, strict=True)
                if has
            ]
            for group, expected, truth in cases:
                if not (math.isnan(expected[name].value) or math.isnan(truth)):
                    rows[group, name].append(holds(expected, name, truth))
    found: dict[str, Any] = defaultdict(dict)
    for (group, name), listed in rows.items():
        held, below, width, bias = np.mean(np.array(listed, dtype=np.float64), axis=0).tolist()
        found[group][name] = {"cases": len(listed), "held": held, "below": below, "width": width, "bias": bias}
    return {"found": dict(found), "seconds": round(time.process_time() - begin, 1), "cpu": cpu_name()}


def example(result: EvaluationResult, first: int = 1000) -> str:
    """What the first images of a set promise for precision 0.9 and calibrated scores, and what the others say."""
    judged, weights = judged_lists(result.classes, *_how(result)), np.ones((1, result.images), dtype=np.uint8)
    lists = [ranked_list(one, np.arange(result.images, dtype=np.int32), 0) for one in judged]
    own, other = (np.arange(result.images) < first) == np.array([[True], [False]])
    chosen_by, others = ([_renumbered(one, kept) for one in lists] for kept in (own, other))
    wish, fold = wish_of("precision=0.9"), np.random.default_rng(0).permutation(first)
    chosen = choose(chosen_by, wish, fold % FOLDS, LEVEL)
    rows = []
    for row, there, cut, expected in zip(result.classes, others, chosen.cuts, chosen.by_class, strict=True):
        right, passed, objects = there.counts(there.passing(cut), len(weights[0])).sum(axis=1)
        rows.append([row.name, f"{cut:.4f}" if cut is not None else "-", *expected.cells()[:2]])
        rows[-1] += [f"{100 * right / max(passed, 1):.1f}", f"{100 * right / objects:.1f}"]
    maps = maps_of(chosen_by)
    before, after = (
        others,
        [replace(one, scores=found(one.scores)) for one, (_, found) in zip(others, maps, strict=True)],
    )
    told = [reliability_of(all_together(some), weights, LEVEL).cells() for some in (before, after)]
    heads = ["class", "threshold", "precision promised", "recall promised", "precision of others", "recall of others"]
    return "\n\n".join([table(heads, rows), table(["others, before", "after"], [*map(list, zip(*told, strict=True))])])


def _how(result: EvaluationResult) -> tuple[Any, ...]:
    return result._kept_evidence, result.protocol, AVERAGE_PRECISION


def _renumbered(ranked: RankedList, kept: NDArray[np.bool_]) -> RankedList:
    """The list of some images alone, numbered from 0."""
    number, own = np.cumsum(kept, dtype=np.int32) - 1, ranked.of_units(kept)
    return replace(own, units=number[own.units], object_units=number[own.object_units])


def page(file: Path) -> str:
    """What the runs on record say."""
    runs = load_runs(file, "measure")
    parts = [
        "# Do thresholds keep their promise?",
        "`python -m experiments.promises --set made` and `--set voc07 --data DIR`: thresholds are chosen on images drawn from a "
        "set, and their 95 % intervals are held against the value of the whole set at these thresholds. Per cent of intervals "
        "that hold it, by what the thresholds were chosen for; in brackets the cases. The number that a wish is about is bold. "
        "`sg.thresholds` calls this code.",
    ]
    for name, title in SETS.items():
        for images in dict.fromkeys(run["images"] for run in runs if run["set"] == name):
            same = [run for run in runs if (run["set"], run["images"]) == (name, images)]
            draws = sum(run["draws"] for run in same if run["wish"] == same[0]["wish"])
            parts += [f"## {title}, {images} images, {draws} draws", _table(same)]
    inside = [
        number["held"]
        for run in runs
        for group, numbers in run["found"].items()
        if group != "few"
        for number in numbers.values()
    ]
    near = sum(0.93 <= held <= 0.97 for held in inside)
    parts.append(
        f"Of the {len(inside)} shares above (without those it warns of), {near} are within 93 to 97 %; the lowest is "
        f"{100 * min(inside):.1f} %, the highest {100 * max(inside):.1f} %."
    )
    seconds, commits = sum(run["seconds"] for run in runs), ", ".join(dict.fromkeys(run["commit"] for run in runs))
    parts.append(
        f"{seconds / 60:.0f} minutes on one core of {', '.join({run['cpu'] for run in runs})}; commit {commits}."
    )
    return "\n\n".join(parts) + "\n"


def _table(runs: Sequence[dict[str, Any]]) -> str:
    rows = []
    for group, title in GROUPS.items():
        for run in runs:
            numbers = run["found"].get(group, {})
            cells = [
                _cell(numbers.get(n), wish_of(run["wish"]).aim == n) for n in ("precision", "recall", "f1", "cost")
            ]
            bias = numbers.get(wish_of(run["wish"]).aim, {"bias": math.nan, "width": math.nan})
            scale = 1.0 if wish_of(run["wish"]).aim == "cost" else 100.0
            width = f"{scale * bias['bias']:+.2f} / {scale * bias['width']:.1f}"
            if numbers:
                rows.append([title, f"`{run['wish']}`", *cells, width])
    return table(["of", "wish", "precision", "recall", "F1", "cost", "bias / width of the wish's number"], rows)


def _cell(number: dict[str, Any] | None, is_aim: bool) -> str:
    if number is None:
        return "-"
    text = f"{100 * number['held']:.1f}"
    return f"{f'**{text}**' if is_aim else text} ({number['cases']})"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=list(SETS), default="made")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--wish", nargs="+", default=WISHES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--example", action="store_true", help="print the example of docs/thresholds.md")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.example:
        print(example(open_set("voc07", options.data)))
        return
    world = World(open_set(options.set, options.data))
    for wish in options.wish:
        facts = {
            "set": options.set,
            "wish": wish,
            "images": options.images,
            "draws": options.draws,
            "seed": options.seed,
        }
        once(
            options.out,
            "measure",
            facts,
            lambda wish=wish: measure(world, wish, options.images, options.draws, options.seed),
        )


if __name__ == "__main__":
    main()
