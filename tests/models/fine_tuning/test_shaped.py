"""Windows whose overlaps with objects are known, and are not those of boxes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stepgrad as sg
from stepgrad.errors import InputError
from stepgrad.metric.protocol import get_protocol
from stepgrad.models.fine_tuning import finetune
from stepgrad.models.fine_tuning.outputs import Reading
from stepgrad.models.fine_tuning.training import Task, detections, judge
from stepgrad.models.fine_tuning.windows import ImageWindows, labelled

K = 2


def an_image(seed: int, oriented: bool, tables: bool = True) -> ImageWindows:
    """Twelve windows, three objects, a crowd among them, and overlaps that no boxes have."""
    g = torch.Generator().manual_seed(seed)
    corner = 30 * torch.rand(12, 2, generator=g)
    boxes = torch.cat([corner, corner + 20], dim=1)
    target = {"boxes": boxes[:3], "labels": torch.tensor([0, 1, 1]), "iscrowd": torch.tensor([0, 0, 1])}
    turned = torch.cat([corner + 10, torch.full((12, 2), 18.0), torch.rand(12, 1, generator=g)], dim=1)
    table = torch.rand(12, 3, generator=g)
    features = torch.randn(12, 4, generator=g)
    return ImageWindows(features, boxes, target, table if tables else None, turned if oriented else None)


def task(oriented: bool) -> Task:
    reading = Reading(K)
    return Task(reading, get_protocol("coco"), 0.5, reading.stock_loss, by_table=True)


def head() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(4, K)


@pytest.mark.parametrize("oriented", [False, True])
def test_the_evaluator_and_the_number_that_is_chosen_by_agree(oriented: bool) -> None:
    images = labelled("images", [an_image(seed, oriented) for seed in range(8)], K)
    (value,) = judge(head(), images, task(oriented), [get_protocol("coco")])
    assert 0.0 < value < 1.0
    assert detections(head(), images, task(oriented)).compute().map == pytest.approx(value)
    by_boxes = judge(
        head(),
        labelled("images", [an_image(s, False, False) for s in range(8)], K),
        task(False),
        [get_protocol("coco")],
    )
    assert by_boxes[0] != value


def test_a_head_learns_by_the_tables() -> None:
    """Each object is found, by its table, by the window with the largest first feature alone."""

    def told(seed: int) -> ImageWindows:
        image = an_image(seed, oriented=False)
        order = image.features[:, 0].argsort(descending=True)[:3]
        table = torch.zeros(12, 3)
        table[order, torch.arange(3)] = 1.0
        target = {**image.target, "labels": torch.zeros(3, dtype=torch.long), "iscrowd": torch.zeros(3)}
        return image._replace(target=target, overlaps=table)

    images = [told(seed) for seed in range(40)]
    start = nn.Linear(4, 1)
    nn.init.zeros_(start.weight)
    options = {
        "steps": 30,
        "images_per_step": 8,
        "rates": [0.1],
        "stock_rates": [0.1],
        "seeds": [0, 1],
        "nms_threshold": None,
    }
    tuned = finetune(start, images[:30], images[30:], progress=False, **options)
    ways = {name: max(way.val) for name, way in tuned.ways.items()}
    assert ways["mAP"] > ways["start"] + 0.2


def test_tables_that_fit_no_objects_are_refused() -> None:
    image = an_image(0, oriented=False)
    with pytest.raises(InputError, match="row per window"):
        labelled("images", [image._replace(overlaps=torch.zeros(12, 2))], K)
    with pytest.raises(InputError, match="overlaps"):
        labelled("images", [image, an_image(1, oriented=False, tables=False)], K)


def test_oriented_windows_suppress_as_the_loss_has_it() -> None:
    images = labelled("images", [an_image(seed, oriented=True) for seed in range(4)], K)
    found = detections(head(), images, task(True)).evidence().detections
    for i, image in enumerate(images):
        scores = head()(image.features).detach().double()
        near = sg.overlaps.ProbIoU()(image.oriented, {"boxes": image.oriented}) > 0.5
        for k in range(K):
            kept: list[int] = []
            for window in scores[:, k].argsort(descending=True).tolist():
                if not any(near[window, other] for other in kept):
                    kept.append(window)
            mine = (found.images == i) & (found.labels == k)
            assert sorted(found.scores[mine].tolist()) == pytest.approx(sorted(scores[kept, k].tolist()))
