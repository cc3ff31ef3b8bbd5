"""Which way of a fine-tuning is kept."""

from __future__ import annotations

import math
import statistics

import pytest
from torch import nn

from stepgrad.metric.protocol import get_protocol
from stepgrad.models.fine_tuning.outputs import Reading
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
from stepgrad.models.fine_tuning.training import Task, judge, judge_without
from stepgrad.models.fine_tuning.windows import labelled
from tests.models.fine_tuning.made_up import CLASSES, TRAIN, new_head

STEADY = (0.5,) * 10


def _ways(**val: tuple[tuple[float, ...], tuple[float, ...]]) -> dict[str, Trained]:
    names = {"start": START, "stock": STOCK, "map": MAP, "fresh": CROSS_FITTED}
    return {names[key]: Trained(names[key], None, seeds, {}, 0.0, without) for key, (seeds, without) in val.items()}


def test_a_gain_that_rests_on_a_few_held_out_images_is_not_kept() -> None:
    control = {"start": ((0.5,), STEADY), "stock": ((0.5, 0.5), STEADY)}
    sure = _ways(**control, map=((0.52, 0.52), (0.52,) * 10))
    # without one of the ten parts the gain would be gone, so one part was all of it
    unsure = _ways(**control, map=((0.52, 0.52), (0.52,) * 9 + (0.49,)))
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


def test_noise_of_a_mean_is_its_standard_error() -> None:
    values = [0.1, 0.4, 0.2, 0.9, 0.3]
    without = [(sum(values) - value) / 4 for value in values]
    expected = statistics.stdev(values) / math.sqrt(5)
    assert noise_of_gain(without, [0.7] * 5) == pytest.approx(expected, rel=1e-12)


def test_each_image_is_left_out_once() -> None:
    images = labelled("images", TRAIN[:4], CLASSES)
    reading = Reading(CLASSES)
    task = Task(reading, get_protocol("voc12"), 0.5, reading.stock_loss)
    head = new_head()
    expected = [judge(head, images[:n] + images[n + 1 :], task, [task.protocol])[0] for n in range(4)]
    assert judge_without(head, images, task) == tuple(expected)
    assert len(judge_without(head, images, task, parts=2)) == 2
    assert judge_without(head, images[:1], task) == ()
