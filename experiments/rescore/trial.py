"""Rescoring finished detectors: what `sg.Rescorer` chooses, and what each way is worth on images that nothing was chosen by.

    python -m experiments.rescore.trial fit --set voc-yolov8n --cache DIR --data VOC2012 --out FILE.jsonl
    python -m experiments.rescore.trial final --set voc-yolov8n --cache DIR --data VOC2012 --out FILE.jsonl
    python -m experiments.rescore.trial curve --set voc-yolov8n --cache DIR --data VOC2012 --out FILE.jsonl
    python -m experiments.render rescore --runs FILE.jsonl

The detections come from `experiments.rescore.detections` and `experiments.masks.windows`. `fit` tunes the four ways on training
images and compares them there, as the tool does; `final` trains each with three seeds and judges it on the test images; `curve`
trains with fewer and more images. `--inputs file` leaves out all but boxes, scores, labels, masks; `more` adds class scores and
statistics of the detector's box distributions (of masks: of the mask's probabilities). A run on record is not made again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from experiments.records import commit, find_run, load_runs, save_run
from experiments.rescore.sets import SETS, Part, voc_boxes
from stepgrad.deploy import thresholds
from stepgrad.evaluation import Evaluator, explain
from stepgrad.evaluation.paired import compare
from stepgrad.evaluation.result import EvaluationResult
from stepgrad.metric.options import resolve_protocol
from stepgrad.models.rescore import Rescorer
from stepgrad.models.rescore.choose import Course, Trainer, best_of, choose, judge
from stepgrad.models.rescore.describe import rows_of
from stepgrad.models.rescore.fuse import Fusion
from stepgrad.models.rescore.images import ScoredImage, image_of
from stepgrad.models.rescore.several import fitted_fusion
from stepgrad.models.rescore.train import scores_of
from stepgrad.models.rescore.ways import Setting
from stepgrad.overlaps import overlap_of

COUNTS = (100, 300, 1000, 4000)
FITTED = 1000
"""Images that settings are chosen with."""


class Trial:
    """A set, and its runs on record."""

    def __init__(self, name: str, inputs: str, cache: Path, data: Path, out: Path) -> None:
        self.name, self.inputs, self.out = name, inputs, out
        self.set, self.cache, self.data = SETS[name], cache, data
        self.overlap = overlap_of(self.set.task)
        self.facts = {"set": name, "inputs": inputs}
        self._kept: dict[tuple[str, int], list[ScoredImage]] = {}

    def images(self, split: str, count: int) -> list[ScoredImage]:
        if (split, count) not in self._kept:
            part = self.set.load(self.cache, self.data, split, count)
            self._kept[split, count] = [self._image(part, i) for i in range(len(part.targets))]
        return self._kept[split, count]

    def _image(self, part: Part, i: int) -> ScoredImage:
        has_more = self.inputs == "more"
        features = part.features[i] if has_more else None
        rows = rows_of(part.detections[i], self.overlap, True, has_more, features, f"image {i}")
        return image_of(rows, part.detections[i], part.targets[i], self.overlap)

    def course(self, seed: int) -> Course:
        return Course(
            self.set.classes, resolve_protocol("coco", None, None, self.overlap.adapt), self.overlap, 16, seed
        )

    def save(self, phase: str, run: dict[str, Any]) -> None:
        save_run(self.out, phase, {**self.facts, **run, "commit": commit()})
        print(phase, run, flush=True)

    def fit(self) -> None:
        """The choice of the tool, once."""
        if find_run(self.out, "fit", self.facts) is not None:
            return
        images = self.images("train", min(FITTED, self.set.train))
        began = time.process_time()
        ways = choose(self.course(0), [image for image in images if len(image.boxes)])
        seconds = round(time.process_time() - began, 1)
        chosen = best_of(ways).way
        self.save(
            "fit", {"images": len(images), "chosen": chosen, "ways": [w.to_dict() for w in ways], "seconds": seconds}
        )

    def settings(self) -> list[Setting]:
        """Those that `fit` chose for the set, or for the first set with a fit on record."""
        runs = load_runs(self.out, "fit")
        own = [run for run in runs if self.facts.items() <= run.items()]
        if not runs:
            raise SystemExit(f"{self.name}: expected a run of `fit` in {self.out}")
        run = own[-1] if own else runs[0]
        return [Setting.from_dict(way["setting"]) for way in run["ways"] if way["setting"] is not None]

    def judged(self, phase: str, settings: Sequence[Setting], count: int, seed: int) -> None:
        """Train with so many images, and judge on the test images."""
        todo = [s for s in settings if find_run(self.out, phase, self._facts(s, count, seed)) is None]
        if not todo:
            return
        test = self.images("val", self.set.test)
        own = judge(self.course(0), test, [image.rows.own for image in test])
        train = [image for image in self.images("train", self.set.train)[:count] if len(image.boxes)]
        trainer = Trainer(self.course(seed), train)
        for setting in todo:
            began = time.process_time()
            network = trainer.network(setting)
            seconds = round(time.process_time() - began, 1)
            found = judge(self.course(0), test, scores_of(network, test, setting))
            paired = compare(own, found)
            gain = [round(100 * v, 3) for v in (paired.interval.low, paired.difference, paired.interval.high)]
            run = {"own": round(100 * own.map, 3), "test": round(100 * found.map, 3), "gain": gain, "seconds": seconds}
            self.save(phase, {**self._facts(setting, count, seed), **run})

    def _facts(self, setting: Setting, count: int, seed: int) -> dict[str, Any]:
        return {**self.facts, "way": setting.way, "setting": setting.to_dict(), "images": count, "seed": seed}

    def final(self, seeds: Sequence[int]) -> None:
        for seed in seeds:
            self.judged("final", self.settings(), self.set.train, seed)

    def curve(self) -> None:
        settings = [s for s in self.settings() if s.way in ("context", "metric_after")]
        for count in COUNTS:
            if count <= self.set.train:
                self.judged("curve", settings, count, 0)

    def longer(self, seeds: Sequence[int]) -> None:
        """Regressed hits with steps up to 2,400, as the tool takes now; the other runs on record stopped at 800."""
        for seed in seeds:
            self.judged("longer", [s for s in self.settings() if s.way == "context"], self.set.train, seed)

    def exact(self) -> None:
        """What else could mend the metric's own overfitting, one change at a time."""
        base = Setting("metric", 3e-3)
        changes: list[dict[str, Any]] = [{"radius": r} for r in (0.5, 1.0, 3.0)]
        changes += [{"mean": 0.0}, {"pull": 0.0}, {"pull": 0.1}, {"rate": 1e-2}]
        self.judged("exact", [replace(base, **change) for change in changes], min(FITTED, self.set.train), 0)

    def several(self) -> None:
        """Two models' detections, joined and rescored, against the best of them alone."""
        if load_runs(self.out, "several"):
            return
        parts = {
            split: [voc_boxes(self.cache, self.data, model, split, FITTED) for model in ("yolov8n", "yolo11n")]
            for split in ("train", "val")
        }
        train, test = ([_plain(part) for part in parts[split]] for split in ("train", "val"))
        targets = {split: parts[split][0].targets for split in parts}
        rescorer = Rescorer(self.set.classes, "coco")
        fusion, _ = fitted_fusion(train, targets["train"], lambda: Evaluator(self.set.classes, "coco"), 0, False)
        context = next(setting for setting in self.settings() if setting.way == "context")
        joined, said = fusion.apply(train)
        rescorer.fit_way(joined, targets["train"], context, said)
        fused, features = fusion.apply(test)
        equal = replace(Fusion.equal(2), threshold=fusion.threshold).apply(test)[0]
        alone = [self._result(found, targets["val"]) for found in test]
        best = max(alone, key=lambda result: result.map)
        ways = {
            "YOLOv8n alone": alone[0],
            "YOLO11n alone": alone[1],
            "weighted boxes fusion, equal weights": self._result(equal, targets["val"]),
            "weighted boxes fusion, tuned": self._result(fused, targets["val"]),
            "the same, then hits regressed with a look at the neighbours": self._result(
                rescorer.apply(fused, features), targets["val"]
            ),
        }
        for what, result in ways.items():
            paired = compare(best, result)
            gain = [round(100 * v, 3) for v in (paired.interval.low, paired.difference, paired.interval.high)]
            self.save(
                "several",
                {"what": what, "test": round(100 * result.map, 3), "gain": gain, **fusion.to_dict()},
            )

    def use(self) -> None:
        """What the other steps are worth on the same detections: an interval, a ladder of bounds, thresholds by class."""
        if load_runs(self.out, "use"):
            return
        train, test = (voc_boxes(self.cache, self.data, "yolov8n", split, FITTED) for split in ("train", "val"))
        result = self._result(_plain(test), test.targets)
        low, high = result.interval()
        by_class = thresholds(self._result(_plain(train), train.targets, "voc12"), "f1")
        cut = self._result(by_class.apply_thresholds(_plain(test)), test.targets, "voc12")
        usual = self._result(_plain(test), test.targets, "voc12").metric("f1@threshold=0.25")
        assert result.evidence is not None
        self.save(
            "use",
            {
                "own": round(100 * result.map, 3),
                "interval": [round(100 * low, 3), round(100 * high, 3)],
                "f1 at 0.25": round(100 * usual.value, 3),
                "f1 by class": round(100 * cut.metric("f1@threshold=0.0").value, 3),
                "f1 expected": round(100 * by_class.expected.value, 3),
                "explain": str(explain(result.evidence, result.protocol)),
            },
        )

    def _result(self, found: Sequence[Any], targets: Sequence[Any], protocol: str = "coco") -> EvaluationResult:
        evaluator = Evaluator(self.set.classes, protocol)
        evaluator.update(found, targets)
        return evaluator.compute()


def _plain(part: Part) -> list[dict[str, Any]]:
    return [{name: found[name] for name in ("boxes", "scores", "labels")} for found in part.detections]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=["fit", "final", "curve", "exact", "several", "use", "longer"])
    parser.add_argument("--set", choices=list(SETS), required=True)
    parser.add_argument("--inputs", choices=["file", "more"], default="file")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    for name in ("--cache", "--data", "--out"):
        parser.add_argument(name, type=Path, required=True)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    trial = Trial(options.set, options.inputs, options.cache, options.data, options.out)
    for what in options.what:
        if what in ("final", "longer"):
            getattr(trial, what)(options.seeds)
        else:
            getattr(trial, what)()


if __name__ == "__main__":
    main()
