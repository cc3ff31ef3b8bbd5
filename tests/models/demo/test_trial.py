"""The detector of the demo, and the sentence at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepgrad.models.demo
from stepgrad.data import ShapesDataset
from stepgrad.models.demo.detector import WEIGHTS, trained_ssd
from stepgrad.models.demo.trial import ALIGNED, MAP, MORE, START, TrialOutcome
from stepgrad.models.fine_tuning import Trained


def test_the_weights_are_the_packages_only_binary_and_below_two_megabytes() -> None:
    folder = Path(stepgrad.models.demo.__file__).parent
    assert (folder / WEIGHTS).stat().st_size < 2_000_000
    package = folder.parent
    texts = {".py", ".pyi", ".md", ".json", ".yaml", ".css", ".js", ".jinja", ".typed"}
    others = [f for f in package.rglob("*") if f.is_file() and f.suffix not in texts and "__pycache__" not in f.parts]
    assert [f.relative_to(package) for f in others if f.name != "py.typed"] == [Path("demo") / WEIGHTS]


def test_the_detector_finds_what_it_was_trained_for() -> None:
    model, data = trained_ssd(), ShapesDataset("val", 30)
    evaluator = stepgrad.Evaluator(6)
    for i in range(30):
        image, target = data[i]
        (found,) = model([image.float() / 255])
        evaluator.update([{**found, "labels": found["labels"] - 1}], [target])
    assert evaluator.compute().map > 0.6  # 0.77 on 500 images


def outcome(more: list[float], ours: list[float]) -> TrialOutcome:
    ways = {
        name: Trained(name, 1e-3, (), {"coco": tuple(values), "voc12": tuple(values)}, 2.0)
        for name, values in ((START, more), (MORE, more), (ALIGNED, more), (MAP, ours))
    }
    return TrialOutcome(9, ways)


@pytest.mark.parametrize(
    ("more", "ours", "said"),
    [
        ([0.40, 0.42], [0.45, 0.46], "gained 4.5 COCO AP"),
        ([0.45, 0.46], [0.40, 0.42], "lost 4.5 COCO AP"),
        (
            [0.40, 0.42],
            [0.42, 0.41],
            "No clear difference between training for mAP and more cross-entropy: +0.5 COCO AP",
        ),
        ([0.40], [0.45], "in 1 of 1 seeds"),
    ],
)
def test_the_sentence_says_what_happened_whichever_way_it_went(more: list[float], ours: list[float], said: str) -> None:
    assert said in outcome(more, ours).sentence
