"""How outputs become scores and the usual loss, against the definitions written out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from stepgrad.errors import InputError
from stepgrad.models.fine_tuning.outputs import Reading, aligned_labels
from stepgrad.models.fine_tuning.windows import ImageWindows, Labelled, labelled
from stepgrad.reference.boxes import iou
from tests.models.fine_tuning.made_up import CLASSES, images

torch.manual_seed(0)
NOTHING = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long)}


def with_difficult(given: Sequence[ImageWindows]) -> list[Labelled]:
    marked = [i._replace(target={**i.target, "difficult": torch.tensor([True, False, False])}) for i in given]
    return labelled("images", marked, CLASSES)


def best(image: Labelled, n: int, c: int) -> tuple[float, bool]:
    """The largest overlap of a window with an object of the class, and whether that object is difficult."""
    target, found, difficult = image.target, 0.0, False
    for g in range(len(target["labels"])):
        overlap = iou(image.boxes[n].double().numpy(), target["boxes"][g].double().numpy()).item()
        if target["labels"][g] == c and overlap > found:
            found, difficult = overlap, bool(target["difficult"][g])
    return found, difficult


@pytest.mark.parametrize("soft", [False, True])
def test_each_class_for_itself_is_binary_cross_entropy_without_what_shows_a_difficult_object(soft: bool) -> None:
    given = with_difficult(images(0, 4))
    outputs = torch.randn(sum(len(i.boxes) for i in given), CLASSES, dtype=torch.float64)
    total, row = 0.0, 0
    for image in given:
        for n in range(len(image.boxes)):
            for c in range(CLASSES):
                overlap, difficult = best(image, n, c)
                label = 0.0 if overlap < 0.5 else overlap if soft else 1.0
                p = 1 / (1 + math.exp(-float(outputs[row, c])))
                if not (difficult and overlap >= 0.5):
                    total -= label * math.log(p) + (1 - label) * math.log(1 - p)
            row += 1
    loss = Reading(CLASSES, labels="soft" if soft else "hard").stock_loss(outputs, given)
    assert float(loss) == pytest.approx(total / len(outputs), rel=1e-6)  # overlaps are kept in float32


def test_aligned_labels_are_those_of_the_ten_best_windows_of_each_object() -> None:
    given = with_difficult(images(0, 3))
    image = given[0]
    logits = torch.randn(len(image.boxes), CLASSES, dtype=torch.float64)
    wanted = torch.zeros_like(logits)
    for g, c in enumerate(image.target["labels"].tolist()):
        if image.target["difficult"][g]:
            continue
        overlap = torch.tensor(
            [iou(b.double().numpy(), image.target["boxes"][g].double().numpy()).item() for b in image.boxes]
        )
        value = logits[:, c].sigmoid() ** 0.5 * overlap**6
        for n in value.argsort(descending=True)[:10].tolist():
            wanted[n, c] = max(wanted[n, c], value[n] / value.max() * overlap.max())
    assert aligned_labels(logits, image) == pytest.approx(wanted, rel=1e-5, abs=1e-9)  # overlaps are kept in float32


def test_aligned_cross_entropy_is_least_where_scores_are_the_labels() -> None:
    given = labelled("images", images(0, 3), CLASSES)
    outputs = torch.randn(sum(len(i.boxes) for i in given), CLASSES, dtype=torch.float64, requires_grad=True)
    reading = Reading(CLASSES, labels="aligned")
    (gradient,) = torch.autograd.grad(reading.stock_loss(outputs, given), outputs)
    label = torch.cat(
        [
            aligned_labels(own, image)
            for own, image in zip(outputs.detach().split([len(i.boxes) for i in given]), given, strict=True)
        ]
    )
    assert gradient.sign().equal((outputs.detach().sigmoid() - label).sign())
    assert label.sum() > 0


def test_an_image_without_objects_or_windows_teaches_that_nothing_is_there() -> None:
    empty = ImageWindows(torch.zeros(2, 1), torch.tensor([[0.0, 0.0, 9.0, 9.0]] * 2), NOTHING)
    none = ImageWindows(torch.zeros(0, 1), torch.zeros(0, 4), NOTHING)
    given = labelled("images", [empty, none], CLASSES)
    loss = Reading(CLASSES, labels="aligned").stock_loss(torch.zeros(2, CLASSES), given)
    assert float(loss) == pytest.approx(2 * CLASSES * math.log(2))
    for reading, columns in ((Reading(CLASSES), CLASSES), (Reading(CLASSES, "last"), CLASSES + 1)):
        assert float(reading.stock_loss(torch.zeros(0, columns), given[1:])) == 0.0


def test_with_background_it_is_cross_entropy_of_the_best_object_or_background() -> None:
    given = with_difficult(images(0, 4))
    outputs = torch.randn(sum(len(i.boxes) for i in given), CLASSES + 1, dtype=torch.float64)
    total, row = 0.0, 0
    for image in given:
        for n in range(len(image.boxes)):
            found = [best(image, n, c) for c in range(CLASSES)]
            hits = [c for c in range(CLASSES) if found[c][0] >= 0.5]
            column = max(hits, key=lambda c: found[c][0]) if hits else CLASSES
            if not any(found[c][1] for c in hits):
                total -= float(outputs[row].log_softmax(0)[column])
            row += 1
    loss = Reading(CLASSES, "last").stock_loss(outputs, given)
    assert float(loss) == pytest.approx(total / len(outputs), rel=1e-12)


def test_background_first_or_last_is_the_same_with_columns_turned() -> None:
    given = labelled("images", images(0, 3), CLASSES)
    outputs = torch.randn(sum(len(i.boxes) for i in given), CLASSES + 1, dtype=torch.float64)
    turned = outputs.roll(1, dims=1)
    last, first = Reading(CLASSES, "last"), Reading(CLASSES, "first")
    assert torch.allclose(last.scores(outputs), first.scores(turned), rtol=1e-12)
    assert float(last.stock_loss(outputs, given)) == pytest.approx(float(first.stock_loss(turned, given)), rel=1e-12)


def test_a_background_column_that_was_not_announced_is_named() -> None:
    with pytest.raises(InputError, match=r"2 columns but got \[4, 3\] \(background="):
        Reading(CLASSES).scores(torch.zeros(4, 3))
