"""`sg.finetune`: equal budgets, an honest choice, nothing lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import stepgrad as sg
from stepgrad.errors import ConfigError, InputError, LikelyMistakeWarning
from stepgrad.locks import FolderInUse, only_writer
from stepgrad.metric.protocol import get_protocol
from stepgrad.models.fine_tuning import ImageWindows, Trained
from stepgrad.models.fine_tuning.outputs import Reading
from stepgrad.models.fine_tuning.result import CROSS_FITTED, MAP, START, STOCK, choose
from stepgrad.models.fine_tuning.training import Task, detections, judge
from stepgrad.models.fine_tuning.ways import Budget, Corrected, Correction, fresh_outputs
from stepgrad.models.fine_tuning.windows import batches, labelled
from tests.models.fine_tuning.made_up import CLASSES, FEATURES, SMALL, TEST, TRAIN, VAL, images, new_head, weights


def tune(head: nn.Module | None = None, **options: Any) -> sg.fine_tuning.FineTuned:
    return sg.finetune(head or new_head(), TRAIN, VAL, **{**SMALL, **options})


def task_of(protocol: str, class_names: list[str] | None = None) -> Task:
    reading = Reading(CLASSES)
    return Task(reading, get_protocol(protocol), 0.5, reading.stock_loss, class_names)


@given(st.lists(st.tuples(*[st.floats(0, 1)] * 3), min_size=1, max_size=4))
def test_what_is_kept_is_never_below_the_other_ways_but_mAP_on_held_out_images(values: list[tuple[float, ...]]) -> None:
    start, stock, ours = zip(*values, strict=True)
    ways = {name: Trained(name, None, val, {}, 0.0) for name, val in ((START, start[:1]), (STOCK, stock), (MAP, ours))}
    kept = ways[choose(ways)]
    assert kept.val_mean >= max(ways[START].val_mean, ways[STOCK].val_mean) - 1e-12


def test_both_losses_see_as_many_images_and_the_same_seed_draws_the_same_order() -> None:
    budget = Budget(100, 32, (1e-3,), (1e-3,), (0,))
    ours, control = budget.plan("map", 1e-3), budget.plan("stock", 1e-3)
    assert ours.steps * ours.images == control.steps * control.images == 3200
    numbered = labelled("images", TRAIN, CLASSES)
    drawn = [batches(numbered, size, torch.Generator().manual_seed(5)) for size in (4, 8)]
    small = [image.boxes.tolist() for _ in range(6) for image in next(drawn[0])]
    assert small == [image.boxes.tolist() for _ in range(3) for image in next(drawn[1])]
    assert len({str(boxes) for boxes in small}) == len(TRAIN)  # every image once before any comes again


def test_the_head_that_was_handed_in_is_as_it_was() -> None:
    head = new_head()
    head[2].eval()  # type: ignore[index]
    before, modes = weights(head), [module.training for module in head.modules()]
    tuned = tune(head)
    assert weights(head) == before
    assert [module.training for module in head.modules()] == modes
    assert list(tuned.ways) == [START, STOCK, MAP]
    assert {len(way.val) for name, way in tuned.ways.items() if name != START} == {2}


def test_a_start_that_is_kept_is_a_copy_in_eval_mode() -> None:
    head = new_head()
    # a rate this small changes no output, so nothing is better than the start
    tuned = tune(head, test_images=TEST, steps=1, rates=[1e-30], stock_rates=[1e-30], seeds=[0])
    assert tuned.chosen == START
    assert not any(module.training for module in tuned.head.modules())
    known = tuned.head(TEST[0].features)
    nn.init.zeros_(head.get_parameter("3.weight"))
    assert torch.equal(tuned.head(TEST[0].features), known)


def test_inference_mode_around_the_call_changes_nothing() -> None:
    usual = tune()
    with torch.inference_mode():
        made_there = images(0, 24), images(100, 10)
        tuned = sg.finetune(new_head(), *made_there, **SMALL)
        assert torch.is_inference_mode_enabled()
    assert weights(tuned.head) == weights(usual.head)
    assert {name: way.val for name, way in tuned.ways.items()} == {name: way.val for name, way in usual.ways.items()}
    assert all(weight.requires_grad and not weight.is_inference() for weight in tuned.head.parameters())


def test_thresholds_have_the_best_F1_of_all_on_held_out_images() -> None:
    tuned = tune(class_names=["a", "b"])
    found = detections(tuned.head, labelled("val", VAL, CLASSES), task_of("coco", class_names=["a", "b"])).compute()
    for row in found.classes:
        scores = torch.from_numpy(row.scores).sigmoid().numpy()

        def f1(least: float, row: Any = row, scores: Any = scores) -> float:
            passing = row.verdicts[0][scores >= least]
            return float(2 * (passing == 1).sum() / ((passing == 1).sum() + (passing == 0).sum() + row.objects))

        assert f1(tuned.thresholds[row.name]) == max(f1(score) for score in scores)
        assert f"{row.name} from {tuned.thresholds[row.name]:.3f}" in str(tuned)


def test_thresholds_of_a_softmax_with_background_are_probabilities() -> None:
    tuned = tune(new_head(outputs=CLASSES + 1), background="last")
    assert tuned.thresholds
    assert all(0.0 < value <= 1.0 for value in tuned.thresholds.values())


def test_weights_that_require_no_gradient_stay() -> None:
    head = new_head()
    head[0].requires_grad_(False)  # type: ignore[index]
    tuned = tune(head)
    assert torch.equal(tuned.head.get_parameter("0.weight"), head.get_parameter("0.weight"))


def test_numbers_of_the_result_are_those_of_the_heads(tmp_path: Path) -> None:
    tuned = tune(test_images=TEST, out=tmp_path / "a", class_names=["a", "b"])
    scores = [tuned.head(image.features).detach().double() for image in TEST]
    boxes, targets = [image.boxes for image in TEST], [image.target for image in TEST]
    for protocol, values in tuned.ways[tuned.chosen].test.items():
        again = sg.mean_average_precision(scores, boxes, targets, protocol=protocol, nms_threshold=0.5)
        assert again.map == values[0]
    report = json.loads((tmp_path / "a/report.json").read_text())
    rows = {row["name"]: row for row in report["arms"]}
    assert list(rows) == list(tuned.ways)
    for name, way in tuned.ways.items():
        values = way.test["coco"] * (2 if name == START else 1)
        assert rows[name]["maps"]["coco"]["mean"] == pytest.approx(sum(values) / 2)
    assert tuned.sentence in str(tuned)
    assert report["sentence"] == tuned.sentence


def test_what_the_report_shows_has_the_mAP_that_was_measured() -> None:
    head = new_head().eval()
    task = task_of("voc12")
    test = labelled("test", TEST, CLASSES)
    result = detections(head, test, task).compute()
    assert judge(head, test, task, task.reported) == (result.map, result["coco"].map)


class Stop(Exception):
    pass


def test_a_fine_tuning_that_was_stopped_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    whole = tune(out=tmp_path / "whole")
    steps: list[str] = []

    def stop_at_last(what: str, done: int, total: int) -> None:
        steps.append(what)
        if what.startswith(MAP) and what.endswith("seed 1"):
            raise Stop

    with pytest.raises(Stop):
        tune(out=tmp_path / "a", watch=stop_at_last)
    again: list[str] = []
    resumed = tune(out=tmp_path / "a", watch=lambda what, *_: again.append(what))
    assert set(again) == {steps[-1]}  # only what was not done
    assert weights(resumed.head) == weights(whole.head)
    assert {n: w.val for n, w in resumed.ways.items()} == {n: w.val for n, w in whole.ways.items()}


def test_two_fine_tunings_do_not_share_a_folder(tmp_path: Path) -> None:
    with only_writer(tmp_path, "test"), pytest.raises(FolderInUse):
        tune(out=tmp_path)


@pytest.mark.parametrize("turn", [1, -1])
def test_the_rate_with_the_best_map_on_held_out_images_is_chosen_whichever_was_tried_first(turn: int) -> None:
    rates = [1e-9, 0.03, 0.3][::turn]
    alone = {rate: tune(rates=[rate], stock_rates=[rate], seeds=[0]).ways for rate in rates}
    ways = tune(rates=rates, stock_rates=rates, seeds=[0]).ways
    for name in (STOCK, MAP):
        values = {rate: alone[rate][name].val[0] for rate in rates}
        assert len(set(values.values())) == 3, values
        assert values[ways[name].rate] == ways[name].val[0] == max(values.values())


def test_a_rate_at_which_training_diverges_is_not_chosen() -> None:
    class Fragile(nn.Module):
        """Gives NaN once its weight has moved far."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(FEATURES, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.linear(x)
            return outputs if float(self.linear.weight.detach().abs().max()) < 10 else outputs * torch.nan

    tuned = tune(Fragile(), rates=[100.0, 1e-3], stock_rates=[100.0, 1e-3])
    assert tuned.ways[STOCK].rate == tuned.ways[MAP].rate == 1e-3


def test_every_image_is_scored_by_a_head_that_did_not_see_it() -> None:
    numbered = labelled("images", TRAIN[:10], CLASSES)

    class Knows(nn.Module):
        def __init__(self, seen: list[ImageWindows]) -> None:
            super().__init__()
            self.anchor = nn.Parameter(torch.zeros(()))
            self.seen = {str(image.features.tolist()) for image in seen}

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return torch.full((len(features), CLASSES), float(str(features.tolist()) in self.seen))

    scored = fresh_outputs(numbered, Knows, folds=3)
    assert all(bool((image.features[:, -CLASSES:] == 0).all()) for image in scored)
    assert all(torch.equal(a.features[:, :-CLASSES], b.features) for a, b in zip(scored, numbered, strict=True))


def test_a_correction_changes_nothing_at_first() -> None:
    head = new_head().eval()
    features = torch.randn(6, FEATURES)
    corrected = Corrected(head, Correction(FEATURES + CLASSES, CLASSES, 16))
    assert torch.equal(corrected(features), head(features))


def test_with_refit_there_is_a_fourth_way(tmp_path: Path) -> None:
    fits = []

    def refit(given: list[ImageWindows]) -> nn.Module:
        fits.append(len(given))
        return new_head(len(fits))

    tuned = tune(refit=refit, folds=4, out=tmp_path)
    assert fits == [18] * 4
    assert list(tuned.ways) == [START, STOCK, MAP, CROSS_FITTED]


def test_mAP_trains_on_fresh_images_and_the_control_on_all() -> None:
    seen: dict[str, set[int]] = {}
    fresh = images(300, 8)

    def stock(outputs: torch.Tensor, given: Any) -> torch.Tensor:
        seen.setdefault("stock", set()).update(hash(str(i.boxes.tolist())) for i in given)
        return outputs.square().mean()

    tune(fresh_images=fresh, stock_loss=stock, steps=12)
    every = {hash(str(i.boxes.tolist())) for i in (*TRAIN, *fresh)}
    assert seen["stock"] == every
    with_bad_training_images = [i._replace(features=i.features * 0) for i in TRAIN]
    a = sg.finetune(new_head(), TRAIN, VAL, fresh_images=fresh, **SMALL)
    b = sg.finetune(new_head(), with_bad_training_images, VAL, fresh_images=fresh, **SMALL)
    assert a.ways[MAP].val == b.ways[MAP].val
    assert a.ways[STOCK].val != b.ways[STOCK].val


@pytest.mark.parametrize("background", ["first", "last"])
def test_a_column_that_no_object_belongs_to_is_most_likely_background(background: str) -> None:
    shift = int(background == "first")
    moved = [i._replace(target={**i.target, "labels": i.target["labels"] + shift}) for i in (*TRAIN, *VAL)]
    with pytest.warns(LikelyMistakeWarning, match=f'pass background="{background}"'):
        sg.finetune(new_head(outputs=CLASSES + 1), moved[:24], moved[24:], **SMALL)


BAD = {
    "no images": (([],), InputError, "train_images to hold at least one image"),
    "a tensor": ((torch.zeros(3, 4),), InputError, "train_images to be a list"),
    "a number": (([3],), InputError, r"train_images\[0\] to be \(features, boxes, target\)"),
    "flat features": (([(torch.zeros(3), torch.zeros(3, 4), {})],), InputError, r"train_images\[0\] .* \(N, F\)"),
    "boxes": (([(torch.zeros(3, 5), torch.zeros(2, 4), {})],), InputError, r"shape \[3, 4\]"),
    "nan": (([TRAIN[0]._replace(features=torch.full((14, 5), torch.nan))],), InputError, "finite"),
    "label": (
        ([TRAIN[0]._replace(target={"boxes": TRAIN[0].boxes[:1], "labels": torch.tensor([7])})],),
        InputError,
        "7",
    ),
}


@pytest.mark.parametrize(("arguments", "error", "message"), BAD.values(), ids=list(BAD))
def test_bad_images_are_named(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sg.finetune(new_head(), *arguments, VAL, **SMALL)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"background": "middle"}, "middle"),
        ({"labels": "soft", "background": "last"}, "labels"),
        ({"rates": []}, "rates to hold at least one"),
        ({"rates": [-1.0]}, "rates"),
        ({"seeds": []}, "at least one seed"),
        ({"seeds": [0, 0]}, "seeds that differ"),
        ({"seeds": ["x"]}, "each of seeds to be a whole number"),
        ({"seeds": [-1]}, "each of seeds to be a whole number"),
        ({"seeds": 3}, "seeds to be a list"),
        ({"rates": 1e-3}, "rates to be a list"),
        ({"class_names": ["a"]}, "2 class names"),
        ({"steps": 0}, "steps"),
        ({"protocol": "coc"}, "coc"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    head = new_head(outputs=CLASSES + 1) if "background" in options else new_head()
    with pytest.raises((ConfigError, InputError), match=message):
        tune(head, **options)
