"""The sentence a report opens with."""

from __future__ import annotations

from typing import Any

import pytest

from stepgrad.report.sentence import MISTAKES, compared, opening
from stepgrad.report.training import summary
from tests.report.runs import log_lines

NO_GAINS = dict.fromkeys(MISTAKES, 0.0)


def numbers(**changes: Any) -> dict[str, Any]:
    return {
        "protocols": ["voc12"],
        "maps": {"voc12": 0.4287},
        "intervals": {"voc12": [0.401, 0.452]},
        "dataset": {"images": 24},
        "run": summary([], "voc12"),
        "config": {},
        "mistakes": {"threshold": 0.5, "overlap": "IoU", "nouns": ["box", "boxes"], "gains": NO_GAINS},
        **changes,
    }


def validated(before: float, after: float, batch: tuple[float, float] = (0.5, 0.6)) -> dict[str, Any]:
    """A run of two phases with one validation in each."""
    lines: list[dict[str, Any]] = []
    for step, phase in ((1, "nll"), (2, "nll"), (3, "map"), (4, "map")):
        value = None if phase == "nll" else batch[step - 3]
        lines.append({"kind": "train", "step": step, "phase": phase, "loss": 1.0, "map": value})
    lines += [{"kind": "val", "step": step, "map": {"voc12": value}} for step, value in ((2, before), (4, after))]
    return summary(lines, "voc12")


@pytest.mark.parametrize(
    ("run", "metric", "parts"),
    [
        (
            validated(0.5, 0.512),
            "ap",
            ["mAP training gained 1.2 over the cross-entropy before it (50.0 to 51.2 on the"],
        ),
        (validated(0.5, 0.52), "f1", ["Training for f1 gained 2.0"]),
        (validated(0.5, 0.50004), "ap", ["mAP training did as well as the cross-entropy before it"]),
        (
            validated(0.5, 0.496, (0.5, 0.6)),
            "ap",
            ["mAP training lost 0.4 against the cross-entropy", "own minibatches rose by 10.0,", "see docs/"],
        ),
        (
            validated(0.5, 0.496, (0.5, 0.4)),
            "ap",
            ["mAP training lost 0.4 against", "did not rise either", "see docs/"],
        ),
    ],
)
def test_the_map_phase_is_measured_against_the_cross_entropy_before_it(
    run: dict[str, Any], metric: str, parts: list[str]
) -> None:
    said = opening(numbers(run=run, config={"metric": metric}))
    assert said.startswith(parts[0])
    assert all(part in said for part in parts)


def test_a_run_of_one_phase_says_what_it_reached_and_whether_it_still_rose() -> None:
    said = opening(numbers(run=summary(log_lines(map_steps=0), "voc12")))
    assert said.startswith("Cross-entropy training reached mAP ")
    assert said.endswith("more steps may gain more.")


def test_detections_without_a_run_have_their_map() -> None:
    assert opening(numbers()) == "mAP is 42.9 (40.1 to 45.2; voc12) on 24 images."
    assert opening(numbers(intervals={"voc12": None})) == "mAP is 42.9 (voc12) on 24 images."
    assert opening(numbers(maps={"voc12": None})) == "There are no objects to find, so there is no mAP."


def test_the_two_most_expensive_mistakes_are_named_in_order() -> None:
    gains = {**NO_GAINS, "missed": 0.083, "background": 0.041, "box": 0.02}
    said = opening(numbers(mistakes={"threshold": 0.5, "overlap": "IoU", "nouns": ["box", "boxes"], "gains": gains}))
    assert said.endswith(
        "Most mAP is lost to missed objects (8.3 at IoU 0.5), then to false alarms on background (4.1)."
    )


def arms(first: float, second: float, costs: tuple[float, float], training: str = "") -> dict[str, Any]:
    return {
        "protocols": ["coco"],
        "reference": 0,
        "chosen": 1,
        "arms": [
            {"name": "a", "training": "cross-entropy", "maps": {"coco": {"mean": first}}, "gains": {"coco": None}},
            {
                "name": "b",
                "training": training,
                "maps": {"coco": {"mean": second}},
                "gains": {"coco": {"mean": second - first}},
            },
        ],
        "mistakes": [
            {"threshold": 0.5, "overlap": "IoU", "nouns": ["box", "boxes"], "gains": {**NO_GAINS, "missed": cost}}
            for cost in costs
        ],
        "paired": None,
    }


def test_runs_side_by_side_say_which_mistake_made_the_difference() -> None:
    gained = compared(arms(0.5, 0.512, (0.1, 0.08)))
    assert (
        gained == "b gained 1.2 over a (cross-entropy) (50.0 to 51.2, coco): missed objects cost 2.0 less at IoU 0.5."
    )
    lost = compared(arms(0.5, 0.496, (0.1, 0.11)))
    assert lost == "b lost 0.4 against a (cross-entropy) (50.0 to 49.6, coco): missed objects cost 1.0 more at IoU 0.5."
    sure = {"sentence": "b is ahead of a by 1.2 (0.1 to 2.2) on these 90 images."}
    assert compared({**arms(0.5, 0.512, (0.1, 0.08)), "paired": sure}) == f"{gained} {sure['sentence']}"
    assert compared(arms(0.5, 0.512, (0.1, 0.12))) == "b gained 1.2 over a (cross-entropy) (50.0 to 51.2, coco)."


def test_advice_on_map_training_is_given_only_for_it() -> None:
    for training, advised in {"mAP training": True, "cross-entropy": False, "": False}.items():
        assert ("when_it_pays" in compared(arms(0.5, 0.496, (0.1, 0.11), training))) == advised
