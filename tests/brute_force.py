"""Losses with every option, and AP by size, compared with brute force on random scenes.

    python -m tests.brute_force --options 3000 --sizes 1000

Prints how many scenes and pairs of window and class were compared, and every scene that differs.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import stepgrad as sg
from stepgrad.metric.protocol import COCO, PROTOCOLS, Protocol
from stepgrad.reference.steps import step_function
from tests.evaluation.datasets import after_nms
from tests.oracles.loss_options import BruteLoss, LossSettings, brute_loss, scene_of_sizes
from tests.oracles.options import Options
from tests.scenes import Batch, random_batch, with_empty_windows

WAYS = [
    (mode, e)
    for mode in ("exact", "none", "paper")
    for e in ("mee", "sde", "radius")
    if (mode, e) != ("paper", "radius")
]
FEW_THRESHOLDS = (0.5, 0.75)


@dataclass(frozen=True)
class Compared:
    """What one scene had to compare."""

    kind: str
    slopes: int  # of pairs of window and class
    not_zero: int
    undefined: int  # slopes that the definition leaves open
    steps: int = 0


def random_scene(rng: np.random.Generator, crowds: bool) -> Batch:
    """A crowded scene, often with ties, absent classes, difficult objects, crowds and windows without area."""
    batch = random_batch(
        rng,
        windows=int(rng.integers(0, 15)),
        images=int(rng.integers(1, 4)),
        K=int(rng.integers(1, 4)),
        objects=int(rng.integers(1, 9)),
        ties=bool(rng.random() < 0.5),
        difficult=0.25 if rng.random() < 0.4 else 0.0,
        crowd=0.2 if crowds and rng.random() < 0.4 else 0.0,
        clusters=int(rng.integers(1, 3)),
        per_class_boxes=bool(rng.random() < 0.2),
    )
    return with_empty_windows(rng, batch, 0.2) if rng.random() < 0.2 else batch


def _protocol(rng: np.random.Generator) -> Protocol:
    protocol = PROTOCOLS[str(rng.choice([name for name, p in PROTOCOLS.items() if not p.for_final_detections]))]
    few = protocol.match_thresholds[:: len(protocol.match_thresholds) // 2 or 1][:2]
    limit = int(rng.integers(1, 5)) if rng.random() < 0.2 else protocol.max_detections
    return replace(protocol, match_thresholds=few, max_detections=limit, max_detections_of="class")


def _maybe(rng: np.random.Generator, *values: Any) -> Any:
    return values[int(rng.integers(len(values)))] if rng.random() < 0.5 else None


def random_settings(rng: np.random.Generator, K: int) -> LossSettings:
    weights = tuple(float(w) for w in rng.integers(0, 4, size=K))
    return LossSettings(
        log=bool(rng.random() < 0.7),
        eps=float(rng.choice([0.01, 0.5])),
        l4=_maybe(rng, 1e-6, 1e-2),
        clip=_maybe(rng, 1e-3, 0.05, 1.0),
        score_floor=_maybe(rng, -2.0, 0.0, 0.3, 9.0),
        class_weights=weights if rng.random() < 0.5 and any(weights) else None,
    )


def random_options(rng: np.random.Generator, protocol: Protocol) -> Options:
    mode, estimator = WAYS[int(rng.integers(len(WAYS)))]
    return Options(
        protocol=protocol,
        nms_threshold=[None, 0.0, 0.3, 0.5][int(rng.integers(4))],
        through_nms=mode,
        estimator=estimator,
        radius=float(rng.choice([0.3, 1.0, 3.0])),
        min_step=float(rng.choice([0.1, 0.5])),
        absent_classes=_maybe(rng, "zero", "skip"),
        balance=str(rng.choice(["none", "class", "class+scale"])),
    )


def compare_options(seed: int) -> Compared:
    """One loss with options at random; an AssertionError where it differs from brute force."""
    rng = np.random.default_rng([seed, 300])
    protocol = _protocol(rng)
    batch = random_scene(rng, crowds=protocol.duplicates == "best_free")
    options, settings = random_options(rng, protocol), random_settings(rng, batch.K)
    plain = {name: getattr(settings, name) for name in ("log", "eps", "l4", "clip", "score_floor", "class_weights")}
    loss_fn = sg.MAPLoss(batch.K, **options.for_gradient(), **plain)
    compared = _same_loss(loss_fn, batch, brute_loss(batch, options, settings), "map", "ap")
    return replace(compared, kind=options.through_nms)


def compare_sizes(seed: int) -> Compared:
    """AP by size as a loss, as steps and in the evaluator; an AssertionError where one differs from brute force."""
    rng = np.random.default_rng([seed, 301])
    protocol = replace(COCO, match_thresholds=FEW_THRESHOLDS, max_detections=int(rng.choice([2, 100])))
    batch = random_scene(rng, crowds=True)
    if rng.random() < 0.5:  # annotated areas that are not the boxes'
        targets = [{**t, "area": rng.integers(0, 120, size=len(t["labels"])).astype(float)} for t in batch.targets]
        batch = replace(batch, targets=targets)
    low, high = sorted(rng.choice([0, 16, 24, 36, 48, 64, 100], size=2, replace=False).tolist())
    options = random_options(rng, protocol)._replace(through_nms=str(rng.choice(["exact", "none"])), balance="none")
    settings = LossSettings(area=(float(low), float(high)), log=bool(rng.random() < 0.5))
    metric = sg.metrics.AP(area=settings.area)
    expected = brute_loss(batch, options, settings)
    loss_fn = sg.DetectionLoss(batch.K, metric, **options.for_gradient(), log=settings.log, eps=settings.eps)
    compared = _same_loss(loss_fn, batch, expected, "value", "by_class")
    _same_in_evaluator(batch, options, metric, expected)
    return replace(compared, kind="sizes", steps=_same_steps(batch, options, settings))


def _same_loss(loss_fn: sg.DetectionLoss, batch: Batch, expected: BruteLoss, value: str, by_class: str) -> Compared:
    scores, boxes, targets = batch.tensors(requires_grad=True)
    loss = loss_fn(scores, boxes, targets)
    loss.backward()
    np.testing.assert_allclose(loss.item(), expected.value, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(loss_fn.metrics[value], expected.metric, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(loss_fn.metrics[by_class], expected.by_class, rtol=1e-12, atol=1e-15)
    found = np.concatenate([s.grad.numpy().ravel() for s in scores])
    wanted = np.concatenate([g.ravel() for g in expected.gradient])
    defined = ~np.isnan(wanted)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[defined], wanted[defined], rtol=1e-9, atol=1e-12)
    return Compared("", int(defined.sum()), int(np.count_nonzero(wanted[defined])), int((~defined).sum()))


def _same_in_evaluator(batch: Batch, options: Options, metric: sg.metrics.AP, expected: BruteLoss) -> None:
    protocol = options.protocol
    assert isinstance(protocol, Protocol)
    if options.absent_classes is not None:
        protocol = replace(protocol, absent_classes=options.absent_classes)  # type: ignore[arg-type]
    evaluator = sg.Evaluator(batch.K, protocol, metrics=[metric])
    scores, boxes, targets = batch.tensors()
    evaluator.update(after_nms(scores, boxes, options.nms_threshold), targets)
    result = evaluator.compute().metrics[metric.name]
    np.testing.assert_allclose(result.value, expected.metric, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(result.by_class, expected.by_class, rtol=1e-12, atol=1e-15)


def _same_steps(batch: Batch, options: Options, settings: LossSettings) -> int:
    """Nearest steps at the first threshold of every window; returns how many windows there were."""
    threshold = options.thresholds()[0]
    metric = sg.metrics.AP(area=settings.area)
    one = options._replace(match_threshold=threshold)
    steps = sg.map_steps(*batch.tensors(), **one.call("through_nms"), metric=metric)
    for c in range(batch.K):
        boxes = [b if b.ndim == 2 else b[:, c] for b in batch.boxes]
        scene = scene_of_sizes(batch, boxes, c, one, threshold, settings.area)
        for i, b, _ in (w for w in batch.windows() if w[2] == c):
            wanted = step_function(scene, batch.column(c), i, b, options.through_nms == "none").nearest_steps()
            names = ("up_at", "up_value", "down_at", "down_value")
            found = [float(getattr(steps, name)[i][b, c]) for name in names]
            slow = [wanted.up_at, wanted.up_value.rounded, wanted.down_at, wanted.down_value.rounded]
            assert found == slow, (found, slow, i, b, c)
    return len(batch.windows())


def run(name: str, compare: Callable[[int], Compared], scenes: int, first: int) -> int:
    """Compare so many scenes and print the counts; returns how many differ."""
    scenes_of: Counter[str] = Counter()
    total: Counter[str] = Counter()
    differences = 0
    for seed in range(first, first + scenes):
        try:
            compared = compare(seed)
        except AssertionError as error:
            differences += 1
            print(f"{name}: scene {seed} differs: {error}", flush=True)
            continue
        scenes_of[compared.kind] += 1
        total.update({name: count for name, count in vars(compared).items() if name != "kind"})
    by_kind = ", ".join(f"{kind} {count}" for kind, count in sorted(scenes_of.items()))
    counts = f"{total['slopes']} slopes ({total['not_zero']} not 0), {total['undefined']} undefined"
    print(
        f"{name}: {scenes} scenes ({by_kind}); {counts}; steps of {total['steps']} windows: {differences} differ",
        flush=True,
    )
    return differences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--options", type=int, default=3000, help="scenes for losses with options at random")
    parser.add_argument("--sizes", type=int, default=1000, help="scenes for AP by size")
    parser.add_argument("--first", type=int, default=0, help="number of the first scene")
    given = parser.parse_args()
    torch.set_num_threads(1)
    wrong = run("options", compare_options, given.options, given.first)
    raise SystemExit(int(wrong + run("sizes", compare_sizes, given.sizes, given.first) > 0))


if __name__ == "__main__":
    main()
