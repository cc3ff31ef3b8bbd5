"""Are the numbers of two versions the same, to the last bit, and is the new one as fast?

    python -m benchmarks.same_numbers --before COMMIT                 # 1,000 scenes and the times of both, in turns
    python -m benchmarks.same_numbers --before COMMIT --scenes 50     # rougher

The old version is taken from git into a temporary folder. Each version runs in a process of its own, on the same scenes,
and prints a digest per scene of every loss, gradient and step found there. For the times the two processes take turns,
so that a slow spell of the machine hits both alike.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.children import ROOT, source_of, with_source

SCORES = ("plain", "tied", "log-probabilities")
Scene = tuple[list[Tensor], list[Tensor], list[dict[str, Tensor]]]


def made_scene(seed: int) -> Scene:
    """A few images with clusters of windows around objects; every third scene has tied scores, some boxes per class."""
    random = np.random.default_rng([seed, 16])
    K, kind = int(random.integers(1, 5)), SCORES[seed % len(SCORES)]
    scores, boxes, targets = [], [], []
    for _ in range(int(random.integers(1, 5))):
        objects = _boxes(random.uniform(0, 80, (int(random.integers(0, 6)), 2)), random)
        centres = np.concatenate([objects[:, :2].repeat(8, axis=0), random.uniform(0, 80, (10, 2))])
        windows = _boxes(centres + random.normal(0, 4, centres.shape), random)
        raw = random.normal(0, 2, (len(windows), K))
        if kind == "tied":
            raw = np.round(raw)
        if kind == "log-probabilities":
            raw = -np.logaddexp(0, -raw)
        scores.append(torch.from_numpy(raw).to(torch.float32 if seed % 2 else torch.float64))
        boxes.append(torch.from_numpy(windows if seed % 5 else np.repeat(windows[:, None], K, axis=1)))
        labels = torch.from_numpy(random.integers(0, K, len(objects)))
        difficult = torch.from_numpy(random.random(len(objects)) < 0.2)
        targets.append({"boxes": torch.from_numpy(objects), "labels": labels, "difficult": difficult})
    return scores, boxes, targets


def _boxes(corners: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return np.round(np.concatenate([corners, corners + random.uniform(8, 30, corners.shape)], axis=1), 1)


LOSSES: dict[str, dict[str, Any]] = {
    "default": {},
    "mee": {"estimator": "mee"},
    "sde, no NMS": {"estimator": "sde", "nms_threshold": None},
    "kept windows only": {"estimator": "mee", "through_nms": "none", "balance": "class+scale"},
    "paper": {"estimator": "mee", "through_nms": "paper", "balance": "none", "l4": 1e-6, "clip": 0.1},
    "voc07": {"protocol": "voc07", "absent_classes": "skip", "log": False},
    "coco": {"protocol": "coco", "absent_classes": "zero"},
    "coco, mee": {"protocol": "coco", "estimator": "mee", "absent_classes": "skip"},
}


def numbers_of(seed: int) -> dict[str, list[Tensor]]:
    """Everything the version that is imported says about one scene."""
    import stepgrad as sg

    scores, boxes, targets = made_scene(seed)
    K = scores[0].shape[1]
    found: dict[str, list[Tensor]] = {}
    for name, options in LOSSES.items():
        leaves = [s.clone().requires_grad_() for s in scores]
        loss_fn = sg.MAPLoss(K, **options)
        loss = loss_fn(leaves, boxes, targets)
        loss.backward()
        found[name] = [loss.detach(), *(s.grad for s in leaves), torch.as_tensor(loss_fn.metrics["ap"])]
    steps = sg.map_steps(scores, boxes, targets)
    found["steps"] = [steps.value, *steps.up_at, *steps.up_value, *steps.down_at, *steps.down_value]
    for protocol in ("voc07-devkit", "coco"):
        result = sg.mean_average_precision(scores, boxes, targets, protocol=protocol)
        found[protocol] = [torch.tensor(result.map), torch.as_tensor(result.ap)]
    found["nms"] = list(sg.nms(boxes[0].reshape(len(scores[0]), -1, 4)[:, 0], scores[0][:, 0], 0.5))
    return found | _rankings(scores[0][:, 0], seed)


def _rankings(scores: Tensor, seed: int) -> dict[str, list[Tensor]]:
    import stepgrad as sg

    relevance = torch.from_numpy(np.random.default_rng([seed, 17]).integers(0, 3, len(scores)))
    query = torch.arange(len(scores)) % 3
    found = {}
    for name in ("APLoss", "NDCGLoss", "MRRLoss", "SpearmanLoss"):
        leaf = scores.clone().requires_grad_()
        home = sg if hasattr(sg, name) else sg.ranking  # where it was, and where it is
        loss = getattr(home, name)()(leaf, relevance, query)
        loss.backward()
        found[name] = [loss.detach(), leaf.grad]
    return found


def digests(scenes: range) -> Iterator[dict[str, str]]:
    for seed in scenes:
        yield {name: _digest(tensors) for name, tensors in numbers_of(seed).items()}


def _digest(tensors: Sequence[Tensor]) -> str:
    # Among tied scores a step may stand at 0.0 or at -0.0, which are the same number: adding 0 makes them the same bytes.
    return hashlib.sha256(b"".join((t + 0).contiguous().numpy().tobytes() for t in tensors)).hexdigest()[:16]


def cases() -> dict[str, Callable[[], object]]:
    """What is timed: a batch of eight photos' windows, forward and backward."""
    import stepgrad as sg
    from benchmarks.scenes import clustered_scene

    scene = clustered_scene()
    leaves = [s.clone().requires_grad_() for s in scene.scores]

    def step(**options: Any) -> Callable[[], object]:
        loss_fn = sg.MAPLoss(20, **options)
        return lambda: torch.autograd.grad(loss_fn(leaves, scene.boxes, scene.targets), leaves)

    ranked = torch.cat([s[:, 0] for s in scene.scores]).requires_grad_()
    relevance = (torch.arange(len(ranked)) % 7 == 0).long()
    ap = sg.APLoss()
    return {
        "MAPLoss": step(),
        "MAPLoss, mee": step(estimator="mee"),
        "MAPLoss, paper": step(estimator="mee", through_nms="paper"),
        "MAPLoss, coco": step(protocol="coco", absent_classes="zero"),
        "mean_average_precision": lambda: sg.mean_average_precision(scene.scores, scene.boxes, scene.targets),
        "APLoss": lambda: torch.autograd.grad(ap(ranked, relevance), ranked),
    }


def child(scenes: int) -> None:
    """Digests first, then one round of times for every line that arrives."""
    for line in digests(range(scenes)):
        print(json.dumps(line), flush=True)
    timed = cases()
    for case in timed.values():
        case()
    for _ in sys.stdin:
        seconds = {}
        for name, case in timed.items():
            start = time.perf_counter()
            case()
            seconds[name] = time.perf_counter() - start
        print(json.dumps(seconds), flush=True)


class Version:
    """A process that runs one version."""

    def __init__(self, source: Path, scenes: int) -> None:
        environment = {**os.environ, **with_source(source)}
        words = [sys.executable, "-W", "ignore", "-m", "benchmarks.same_numbers", "--child", "--scenes", str(scenes)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe, encoding="utf-8")

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        if not text:
            raise SystemExit("a version ended early; see above")
        return json.loads(text)

    def round(self) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.line()


def compare(before: Path, scenes: int, rounds: int) -> int:
    versions = [Version(before, scenes), Version(ROOT / "src", scenes)]
    different = []
    for seed in range(scenes):
        old, new = (version.line() for version in versions)
        different += [f"scene {seed}: {name}" for name in old if old[name] != new[name]]
    print(f"{scenes} scenes, {len(old)} results each: {len(different)} differ")
    print("\n".join(different[:20]))
    times = [[version.round() for version in versions] for _ in range(rounds)]
    for name in times[0][0]:
        ratio = statistics.median(new[name] / old[name] for old, new in times)
        print(f"{name}: {ratio:.3f} of the time before")
    return int(bool(different))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", help="a commit, tag or branch")
    parser.add_argument("--scenes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        child(options.scenes)
        return 0
    if not options.before:
        parser.error("--before COMMIT: the version to compare with")
    with source_of(options.before) as source:
        return compare(source, options.scenes, options.rounds)


if __name__ == "__main__":
    raise SystemExit(main())
