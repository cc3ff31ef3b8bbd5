"""The result tables train what their rows say, choose on held-out images and hide no failure."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from experiments import cross_fit
from experiments.cross_fit import with_base
from experiments.head_training import StepInput, back_propagate, choose_windows, fast_rcnn_sample, make_loss, train_row
from experiments.render import gain_of, line_of, spread_of
from experiments.rows import FOLDS, GRID, ROWS, Row
from experiments.run import chosen_rows, chosen_tuning, record
from experiments.window_head import (
    BACKGROUND,
    IGNORED,
    NUM_CLASSES,
    Part,
    PerClassHead,
    ResidualHead,
    Tuning,
    WindowHead,
    new_head,
    part_of,
)
from stepgrad.data import make_target
from stepgrad.detector.training.inputs import Example
from stepgrad.errors import ConfigError
from tests.double_precision import double_precision

FEATURES = 12


def _part(images: int = 8, windows: int = 40) -> Part:
    g = torch.Generator().manual_seed(0)
    made = []
    for i in range(images):
        corner = torch.rand(windows, 2, generator=g) * 50
        boxes = torch.cat([corner, corner + 10 + torch.rand(windows, 2, generator=g) * 30], dim=1)
        labels = torch.randint(NUM_CLASSES, (3,), generator=g)
        made.append(Example(None, boxes, make_target((boxes[:3] + 1.0).numpy(), labels.numpy(), str(i))))
    return part_of([image._replace(image=torch.randn(windows, FEATURES, generator=g).half()) for image in made])


def _input(part: Part) -> StepInput:
    return StepInput(
        torch.cat([i.image for i in part.images]), [i.windows for i in part.images], [i.target for i in part.images]
    )


@pytest.mark.parametrize("training", [True, False])
def test_back_propagating_only_windows_with_a_gradient_changes_nothing(training: bool) -> None:
    given, loss_fn = _input(_part()), make_loss(ROWS["radius"])
    with double_precision():
        head = new_head(FEATURES, seed=0).train(training)
        torch.manual_seed(1)
        back_propagate(head, given, loss_fn, "logprob")
        sparse = [p.grad.clone() for p in head.parameters() if p.grad is not None]
        head.zero_grad()
        torch.manual_seed(1)
        scores = head.scores(given.features, "logprob", head.dropout_mask(len(given.features)))
        loss_fn(list(scores.split(given.counts)), given.boxes, given.targets).backward()
    whole = [p.grad for p in head.parameters()]
    assert len(sparse) == len(whole)
    for a, b in zip(sparse, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert any(bool(g.abs().max() > 0) for g in sparse)


def test_a_share_of_the_windows_is_on_objects() -> None:
    labels = torch.tensor([BACKGROUND] * 90 + [3] * 10)
    chosen = choose_windows(labels, 40, 0.25, torch.Generator().manual_seed(0))
    assert len(chosen.unique()) == 40
    assert int((labels[chosen] == 3).sum()) == 10
    assert len(choose_windows(labels, None, None, torch.Generator())) == 100


def test_cross_entropy_draws_a_quarter_on_objects_and_nothing_that_is_ignored() -> None:
    labels = torch.tensor([BACKGROUND] * 200 + [IGNORED] * 300 + [3] * 40)
    chosen = fast_rcnn_sample(labels, torch.Generator().manual_seed(0))
    assert len(chosen.unique()) == 64
    assert labels[chosen].unique(return_counts=True)[1].tolist() == [16, 48]
    assert not bool((labels[chosen] == IGNORED).any())


def _with_base(part: Part) -> Part:
    g = torch.Generator().manual_seed(1)
    return with_base(part, torch.randn(sum(map(len, part.labels)), NUM_CLASSES + 1, generator=g))


def test_every_row_trains_a_step() -> None:
    for row in ROWS.values():
        corrects = row.start in ("fresh", "seen", "mean")
        part = _with_base(_part()) if corrects else _part()
        head = new_head(part.inputs(0).shape[1], 0, ResidualHead if corrects else WindowHead)
        before = head.output.weight.clone()
        short = replace(row, images=8, steps=min(row.steps, 1), windows=row.windows and 30)
        train_row(head, part, short, Tuning("sgd", 0.01), seed=0)
        assert bool(head.output.weight.isfinite().all()), row.name
        if row.steps and row.loss != "song":  # whose eps moves pairs in long lists only
            assert not torch.equal(head.output.weight, before), row.name


def test_a_correction_starts_as_the_model_it_corrects() -> None:
    part = _with_base(_part())
    head = new_head(FEATURES + NUM_CLASSES + 1, 0, ResidualHead).eval()
    assert part.base is not None
    assert torch.equal(head(part.inputs(2)), part.base[2])
    assert torch.equal(head(part.inputs(2, torch.tensor([3, 1]))), part.base[2][[3, 1]])


def test_networks_for_each_class_start_as_the_model_and_share_nothing() -> None:
    part = _with_base(_part())
    head = new_head(FEATURES + NUM_CLASSES + 1, 0, PerClassHead, 4)
    assert part.base is not None
    inputs, start = part.inputs(0), part.base[0].log_softmax(1)
    torch.testing.assert_close(head(inputs), start)
    with torch.no_grad():
        head.output.weight.normal_(generator=torch.Generator().manual_seed(0))
    head.scores(inputs, "raw")[:, 3].sum().backward()
    assert head.hidden.weight.grad is not None
    touched = head.hidden.weight.grad.unflatten(0, (NUM_CLASSES, 4)).abs().sum((1, 2)).nonzero()
    assert touched.tolist() == [[3]]


def test_fresh_outputs_are_of_models_that_have_not_seen_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, trained_on = _part(), []

    def record(head: WindowHead, given: Part, *_: object) -> None:
        trained_on.append({image.target["image_id"] for image in given.images})
        with torch.no_grad():
            head.output.bias.fill_(len(trained_on))

    monkeypatch.setattr(cross_fit, "train_nll", record)
    fresh = cross_fit.CrossEntropyModels(part, 0, tmp_path).fresh()
    assert fresh.base is not None
    assert len(trained_on) == FOLDS
    for image, outputs in zip(fresh.images, fresh.base, strict=True):
        by = [k for k in range(FOLDS) if torch.equal(outputs, _outputs(part, int(image.target["image_id"]), k + 1))]
        assert len(by) == 1
        assert image.target["image_id"] not in trained_on[by[0]]
        assert len(trained_on[by[0]]) == len(part) - len(part) // FOLDS


def _outputs(part: Part, image: int, bias: float) -> torch.Tensor:
    head = new_head(FEATURES, 0).eval()
    with torch.no_grad():
        head.output.bias.fill_(bias)
        return head(part.inputs(image))


def test_outputs_come_from_the_cache_the_second_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part, calls = _part(), []
    monkeypatch.setattr(cross_fit, "train_nll", lambda *_: calls.append(1))
    models = cross_fit.CrossEntropyModels(part, 0, tmp_path)
    first, again = models.mean("val", part[:2]), models.mean("val", part[:2])
    assert len(calls) == FOLDS + 1
    assert first.base is not None
    assert again.base is not None
    assert torch.equal(first.base[1], again.base[1])


def test_rows_take_their_rates_from_rows_that_are_tuned() -> None:
    for row in ROWS.values():
        if row.tuned_as is not None:
            assert ROWS[row.tuned_as].tuned_as is None
            assert row.tuned_as == "start" or ROWS[row.tuned_as].grid == row.grid


def _tune(folder: Path, row: Row, tuning: Tuning, held_out: float | None) -> None:
    scored = {} if held_out is None else {"heldout": {"voc12": held_out}}
    run = {"row": asdict(row), "tuning": asdict(tuning), "seed": 0, "map": scored, "failure": None, "seconds": 1.0}
    record("tune", folder, run)


def test_the_rate_is_the_one_best_on_held_out_images_and_failures_are_never_chosen(tmp_path: Path) -> None:
    first, second, third = GRID["second"][:3]
    _tune(tmp_path, ROWS["radius"], first, 30.0)
    _tune(tmp_path, ROWS["radius"], second, 31.0)
    _tune(tmp_path, ROWS["radius"], third, None)
    _tune(tmp_path, ROWS["radius-free"], third, 99.0)  # in the same table
    assert chosen_tuning(ROWS["radius"], tmp_path) == second
    assert chosen_tuning(ROWS["radius-none"], tmp_path) == second


def test_a_row_without_tuning_says_how_to_tune(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"experiments\.run yue --tune"):
        chosen_tuning(ROWS["yue"], tmp_path)


def test_a_mistyped_row_is_an_error() -> None:
    with pytest.raises(ConfigError, match="radius"):
        chosen_rows(["radios"], [])


def _final(row: str, seed: int, value: float | None) -> dict:
    scored = {} if value is None else {"val": dict.fromkeys(("voc12", "voc07", "coco"), value)}
    return {"row": asdict(ROWS[row]), "seed": seed, "map": scored, "failure": None, "train_seconds": 1.0}


def test_a_failed_seed_stays_in_the_table() -> None:
    runs = [{**_final("radius", 0, 30.0), "tuning": asdict(GRID["second"][0])}, _final("radius", 1, None)]
    assert "failed in 1 of 2" in line_of(ROWS["radius"], {"radius": runs}, "nll-more", ["coco"])


def test_gains_are_differences_of_the_same_seed() -> None:
    control = [_final("nll-more", 0, 30.0), _final("nll-more", 1, 20.0)]
    runs = [_final("radius", 0, 31.0), _final("radius", 1, 23.0)]
    assert gain_of(runs, control) == "+2.0 (1.4)"
    assert spread_of(runs, "coco") == "27.0 (5.7)"
