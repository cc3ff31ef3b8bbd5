"""Which way of a fine-tuning is kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import stepgrad as sg
from stepgrad.evaluation.result import EvaluationResult
from stepgrad.models.fine_tuning.result import (
    CROSS_FITTED,
    MAP,
    START,
    STOCK,
    FineTuned,
    Trained,
    choose,
    noise_of_gain,
)


def judged(found: np.ndarray) -> EvaluationResult:
    """Images with an object each; it is found on those that are marked."""
    evaluator = sg.Evaluator(1)
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    for i, hit in enumerate(found):
        preds = {
            "boxes": boxes[: int(hit)],
            "scores": torch.ones(int(hit)),
            "labels": torch.zeros(int(hit), dtype=torch.long),
        }
        evaluator.update([preds], [{"boxes": boxes, "labels": torch.tensor([0]), "image_id": i}])
    return evaluator.compute()


HALF = np.arange(40) % 2 == 0
STEADY = judged(HALF)


def _ways(**val: tuple[tuple[float, ...], EvaluationResult]) -> dict[str, Trained]:
    names = {"start": START, "stock": STOCK, "map": MAP, "fresh": CROSS_FITTED}
    return {names[key]: Trained(names[key], None, seeds, {}, 0.0, result) for key, (seeds, result) in val.items()}


def test_a_gain_that_rests_on_a_few_held_out_images_is_not_kept() -> None:
    control = {"start": ((0.5,), STEADY), "stock": ((0.5, 0.5), STEADY)}
    sure = _ways(**control, map=((0.52, 0.52), STEADY))
    other = judged(HALF ^ (np.arange(40) > 28))  # better on some images and worse on as many
    unsure = _ways(**control, map=((0.52, 0.52), other))
    assert choose(sure) == MAP
    assert choose(unsure) == START


def test_of_several_gains_the_surest_is_kept_whichever_was_trained_first() -> None:
    control = {"start": ((0.5,), STEADY), "stock": ((0.51, 0.51), STEADY)}
    wild, tame = (0.60, 0.54), (0.56, 0.57)
    assert choose(_ways(**control, map=(wild, STEADY), fresh=(tame, STEADY))) == CROSS_FITTED
    assert choose(_ways(**control, map=(tame, STEADY), fresh=(wild, STEADY))) == MAP


def test_without_a_sure_gain_the_better_of_start_and_usual_loss_is_kept() -> None:
    worse = ((0.4, 0.41), STEADY)
    assert choose(_ways(start=((0.5,), STEADY), stock=((0.49, 0.5), STEADY), map=worse, fresh=worse)) == START
    assert choose(_ways(start=((0.5,), STEADY), stock=((0.51, 0.5), STEADY), map=worse, fresh=worse)) == STOCK


def test_the_sentence_speaks_of_the_way_that_is_kept() -> None:
    ways = _ways(
        start=((0.5,), STEADY), stock=((0.5, 0.5), STEADY), map=((0.53, 0.53), STEADY), fresh=((0.6, 0.5), STEADY)
    )
    assert choose(ways) == MAP
    tuned = FineTuned(nn.Identity(), MAP, ways, "voc12")
    assert "ended 3.0 points of voc12 above" in tuned.sentence
    assert "(spread over seeds 0.0)" in tuned.sentence


def test_noise_of_a_gain_is_the_standard_error_of_its_mean_over_images() -> None:
    """Where AP is recall, the gain is a mean over images, whose standard error is known; resampling has it to some per cent."""
    better = HALF | (np.arange(40) < 12)
    gains = better.astype(float) - HALF
    ways = _ways(stock=((0.5,), STEADY), map=((0.65,), judged(better)))
    assert noise_of_gain(ways[MAP], ways[STOCK]) == pytest.approx(gains.std() / np.sqrt(40), rel=0.15)
    assert noise_of_gain(ways[STOCK], ways[STOCK]) == 0.0
    assert noise_of_gain(ways[MAP], Trained(START, None, (0.5,), {}, 0.0)) == 0.0
