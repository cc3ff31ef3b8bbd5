"""One class of a random batch as the engine sees it, and the same in plain lists."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from stepgrad.engine.classes import prepare
from stepgrad.engine.matching import ABSENT, FALSE_POSITIVE, IGNORED, TRUE_POSITIVE, OneClass
from stepgrad.metric.batch import make_batch
from stepgrad.metric.protocol import COCO, VOC12, Protocol
from stepgrad.reference.class_ap import ClassScene, describe_class, judged_detections, kept_windows
from stepgrad.reference.matching import FALSE, TRUE
from tests.scenes import Batch, random_batch

ROLES = {TRUE: TRUE_POSITIVE, FALSE: FALSE_POSITIVE, "ignored": IGNORED}
PROTOCOLS = {
    "voc12": VOC12,
    "coco": replace(COCO, match_thresholds=(0.5,)),
    "voc12 with 3": replace(VOC12, max_detections=3),
    "voc12 with 8": replace(VOC12, max_detections=8),
    "coco with 2": replace(COCO, match_thresholds=(0.5,), max_detections=2),
}


@dataclass(frozen=True)
class Viewed:
    """Class 0 of a batch: as the engine has it, the reference's scene, and what NMS keeps."""

    batch: Batch
    protocol: Protocol
    one: OneClass
    scene: ClassScene
    scores: list[list[float]]
    kept: list[list[int]]

    @property
    def first(self) -> list[int]:
        """The first window of each image among all."""
        return [0, *np.cumsum([len(s) for s in self.scores]).tolist()]

    def number(self, image: int, window: int) -> int:
        """The engine's number of a window."""
        return int(self.one.neighbours.number_of[self.first[image] + window])

    def position(self, image: int, window: int) -> int:
        """The place of a window in the order of scores."""
        return int(self.one.ranking.position[self.number(image, window)])

    def windows(self, numbers: Iterable[int]) -> list[tuple[int, int]]:
        """(image, window) of the engine's numbers."""
        indices = [int(self.one.neighbours.index_of[number]) for number in numbers]
        images = [int(np.searchsorted(self.first, index, side="right")) - 1 for index in indices]
        return [(i, index - self.first[i]) for i, index in zip(images, indices, strict=True)]

    def roles(self) -> np.ndarray:
        """The role of every window by position, from the reference: kept ones beyond the limit are ignored, others absent."""
        roles = np.full(self.first[-1], ABSENT, dtype=np.int8)
        for i, windows in enumerate(self.kept):
            for b in windows:
                roles[self.position(i, b)] = IGNORED
        for i, b, verdict in judged_detections(self.scene, self.scores, self.kept):
            roles[self.position(i, b)] = ROLES[verdict]
        return roles


def viewed(seed: int, protocol: str = "voc12", windows: int = 60, nms_threshold: float | None = 0.3) -> Viewed:
    """Three images, one of which often has more than 64 windows when there are many."""
    rng = np.random.default_rng([seed, 90])
    batch = random_batch(
        rng, windows=windows, images=3, objects=12, ties=seed % 2 == 1, difficult=0.2, crowd=0.2, clusters=2
    )
    rules = PROTOCOLS[protocol]
    one = prepare(make_batch(*batch.tensors()), rules, nms_threshold, threads=1).one_class(0)
    targets = batch.targets
    if rules.duplicates == "best":  # VOC knows no crowds
        targets = [{k: v for k, v in t.items() if k != "iscrowd"} for t in targets]
    scene = describe_class(batch.boxes, targets, 0, rules, 0.5, nms_threshold)
    scores = batch.column(0)
    return Viewed(batch, rules, one, scene, scores, kept_windows(scene, scores))
