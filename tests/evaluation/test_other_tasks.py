"""Oriented boxes and segments of time: AP equals the rules of DOTA's and ActivityNet's own code, restated."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.metric.protocol import ACTIVITYNET
from tests.oracles.other_tasks import activitynet_ap, area_under, dota_ap, eleven_points
from tests.scenes import over_seeds

IMAGES = 3


def oriented_boxes(rng: np.random.Generator, count: int) -> np.ndarray:
    columns = rng.uniform(5, 40, (count, 2)), rng.uniform(3, 20, (count, 2)), rng.uniform(-4, 4, (count, 1))
    return np.concatenate(columns, axis=1)


@pytest.mark.parametrize(("protocol", "ap"), [("dota", area_under), ("dota07", eleven_points)])
@over_seeds(15, 1000)
def test_oriented_boxes_are_counted_as_dota_counts_them(seed: int, protocol: str, ap: object) -> None:
    rng = np.random.default_rng([seed, 95])
    evaluator = sg.Evaluator(1, protocol, task="oriented")
    found, objects = [], []
    for image in range(IMAGES):
        boxes = oriented_boxes(rng, int(rng.integers(0, 5)))
        difficult = rng.random(len(boxes)) < 0.2
        near = (
            boxes[rng.integers(len(boxes), size=6)] + rng.normal(0, 0.4, (6, 5)) * [2, 2, 1, 1, 0.2]
            if len(boxes)
            else boxes
        )
        seen = np.concatenate([np.abs(near), oriented_boxes(rng, int(rng.integers(0, 3)))])
        scores = rng.permutation(100)[: len(seen)] / 100 + image / 1000
        found += [(image, score, box) for score, box in zip(scores.tolist(), seen.tolist(), strict=True)]
        objects += [(image, box, bool(d)) for box, d in zip(boxes.tolist(), difficult, strict=True)]
        label = torch.zeros(len(seen), dtype=torch.long)
        target = {
            "boxes": boxes,
            "labels": torch.zeros(len(boxes), dtype=torch.long),
            "difficult": torch.tensor(difficult),
        }
        evaluator.update([{"boxes": seen, "scores": torch.tensor(scores), "labels": label}], [target])
    assert evaluator.compute().map == pytest.approx(dota_ap(found, objects, ap), abs=1e-12)  # type: ignore[arg-type]


@over_seeds(15, 1000)
def test_segments_are_counted_as_activitynet_counts_them(seed: int) -> None:
    rng = np.random.default_rng([seed, 96])
    evaluator = sg.Evaluator(1, "activitynet", task="segments")
    found, objects = [], []
    for video in range(IMAGES):
        begin = rng.integers(0, 20, int(rng.integers(0, 5))).astype(float)
        segments = np.stack([begin, begin + rng.integers(1, 12, len(begin))], axis=1)
        start = rng.integers(0, 20, 6).astype(float)
        seen = np.stack([start, start + rng.integers(1, 12, 6)], axis=1)
        if len(segments):
            seen[:4] = segments[rng.integers(len(segments), size=4)] + rng.integers(-1, 2, (4, 2)) * [1, 0]
        scores = rng.permutation(100)[:6] / 100 + video / 1000
        found += [(video, score, segment) for score, segment in zip(scores.tolist(), seen.tolist(), strict=True)]
        objects += [(video, segment) for segment in segments.tolist()]
        labels = torch.zeros(6, dtype=torch.long)
        key = "segments" if seed % 2 else "boxes"
        evaluator.update(
            [{key: seen, "scores": torch.tensor(scores), "labels": labels}],
            [{key: segments, "labels": labels[: len(begin)]}],
        )
    expected = [activitynet_ap(found, objects, t) for t in ACTIVITYNET.match_thresholds] if objects else [0.0]
    assert evaluator.compute().map == pytest.approx(np.mean(expected), abs=1e-12)


def test_the_defaults_of_the_loss_and_the_evaluator_agree_for_every_task() -> None:
    rng = np.random.default_rng(3)
    boxes = torch.tensor(oriented_boxes(rng, 8))
    masks = torch.tensor(rng.random((8, 12, 12)) < 0.4)
    poses = torch.tensor(np.concatenate([rng.uniform(0, 40, (8, 17, 2)), np.ones((8, 17, 1))], axis=2))
    upright = torch.tensor([[0.0, 0, 40, 40]]).repeat(8, 1).double()
    labels = torch.tensor([0, 1, 0, 1])
    scores = torch.tensor(rng.normal(size=(8, 2)))
    cases = {
        "oriented": ({"boxes": boxes}, {}),
        "masks": ({"boxes": upright, "masks": masks}, {"masks": [masks]}),
        "keypoints": ({"boxes": upright, "keypoints": poses}, {"keypoints": [poses]}),
        "segments": ({"boxes": torch.stack([boxes[:, 0], boxes[:, 0] + boxes[:, 2]], 1)}, {}),
    }
    for task, (shapes, more) in cases.items():
        target = {**{name: values[:4] for name, values in shapes.items()}, "labels": labels}
        overlap = sg.overlaps.overlap_of(task)
        for protocol in ("coco", "voc12"):
            loss_fn = sg.MAPLoss(2, protocol, nms_threshold=None, overlap=overlap)
            loss_fn([scores], [shapes["boxes"]], [target], **more)
            evaluator = sg.Evaluator(2, protocol, task=task)
            both = {name: torch.cat([values, values]) for name, values in shapes.items()}
            classes = torch.tensor([0] * 8 + [1] * 8)
            evaluator.update([{**both, "scores": scores.T.reshape(-1), "labels": classes}], [target])
            assert loss_fn.metrics["map"] == evaluator.compute().map, (task, protocol)
