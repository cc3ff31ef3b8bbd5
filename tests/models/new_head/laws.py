"""What holds for every family: the model with a new layer in it gives what was judged on features."""

from __future__ import annotations

import torch
from torch import Tensor

from stepgrad.losses.functional import suppress_and_rank
from stepgrad.models.fine_tuning.outputs import Reading
from stepgrad.models.held_out import as_used
from stepgrad.models.new_head.frozen import FrozenDetector
from stepgrad.models.new_head.layer import ClassLayer


def everything(likely: Tensor) -> Tensor:
    """All windows."""
    return torch.arange(len(likely))


NEW_CLASSES = 2
TOLERANCE = {"rtol": 1e-9, "atol": 1e-9}  # float64, sums of some hundred terms in two orders


def random_layer(detector: FrozenDetector, features: Tensor, seed: int = 0) -> ClassLayer:
    """A layer with weights that tell windows apart, in units of the features."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layer = detector.new_layer(NEW_CLASSES)
        torch.nn.init.normal_(layer.weight, std=features.shape[1] ** -0.5)
        torch.nn.init.normal_(layer.bias)
    layer.standardise_like([features])
    return layer


@torch.no_grad()
def judged(detector: FrozenDetector, layer: ClassLayer, features: Tensor, boxes: Tensor) -> list[Tensor]:
    """Scores, labels and boxes after NMS, from features; the best first."""
    reading = Reading(NEW_CLASSES, detector.background)
    scores = reading.scores(layer(features))
    kept, labels, values = suppress_and_rank(scores, boxes, detector.nms_threshold, candidates=None)
    return ordered(values.exp() if detector.background else values.sigmoid(), labels, boxes[kept])


def ordered(scores: Tensor, labels: Tensor, boxes: Tensor) -> list[Tensor]:
    order = scores.argsort(descending=True, stable=True)
    return [scores[order], labels[order], boxes[order]]


def check_the_model_gives_what_was_judged(detector: FrozenDetector, image: Tensor) -> None:
    """Install a random layer: same number of detections, same scores, labels and boxes."""
    with as_used(detector.model):
        _, features, boxes, _ = detector.windows(image, everything)
    layer = random_layer(detector, features)
    expected = judged(detector, layer, features, boxes)
    detector.install(*layer.folded(), ["a", "b"])
    with as_used(detector.model):
        found = detector.detect(image)
    got = ordered(found["scores"], found["labels"], found["boxes"])
    assert len(got[0]) == len(expected[0]) > 0
    assert set(got[1].tolist()) == {0, 1}
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one.double(), other.double(), **TOLERANCE)
