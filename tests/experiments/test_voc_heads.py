"""Heads on frozen features of VOC: the smallest runs of each script, and the laws that its numbers rest on."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.models import alexnet
from torchvision.ops import roi_pool

import stepgrad as sg
from experiments import balance, batch_bias, cross_fit, curves, frozen_features, run, scored_images
from experiments.balance_forms import FORMS
from experiments.frozen_features import FeatureSettings, FrozenFeatures
from experiments.head_training import StepInput, back_propagate, make_loss, train_row
from experiments.records import load_runs
from experiments.rows import FOLDS, GRID, ROWS
from experiments.score_memory import RememberingLoss
from experiments.window_head import NUM_CLASSES, Part, ResidualHead, Tuning, WindowHead, new_head, part_of
from stepgrad.data import make_target
from stepgrad.detector.training.inputs import Example, open_data
from tests.double_precision import double_precision
from tests.scenes import random_batch

FEATURES = 12


def made_part(images: int = 8, windows: int = 40) -> Part:
    g = torch.Generator().manual_seed(0)
    made = []
    for i in range(images):
        corner = torch.rand(windows, 2, generator=g) * 50
        boxes = torch.cat([corner, corner + 10 + torch.rand(windows, 2, generator=g) * 30], dim=1)
        target = make_target((boxes[:3] + 1.0).numpy(), torch.randint(NUM_CLASSES, (3,), generator=g).numpy(), str(i))
        made.append(Example(torch.randn(windows, FEATURES, generator=g).half(), boxes, target))
    return part_of(made)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Some made-up images and few steps; returns the options that every script takes."""
    part = made_part(28)
    for module in (run, curves, balance, frozen_features):
        monkeypatch.setattr(module, "load_parts", lambda *_: (part[:24], part[24:]))
    monkeypatch.setattr(cross_fit, "NLL_STEPS", 2)
    monkeypatch.setattr(run, "HELD_OUT", 4)
    monkeypatch.setattr(curves, "HELD_OUT", 4)
    return ["--data", str(tmp_path), "--cache", str(tmp_path), "--results", str(tmp_path)]


def test_a_row_is_tuned_on_held_out_images_then_run_and_drawn(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ROWS, "radius", replace(ROWS["radius"], images=8, steps=2))
    for _ in range(2):  # what is on record is not run again
        run.main(["radius", "--tune", *small])
        run.main(["radius", "--seed", "0", "1", *small])
    tuned, final = (load_runs(tmp_path / "table_A.jsonl", phase) for phase in ("tune", "final"))
    assert [Tuning(**r["tuning"]) for r in tuned] == GRID["second"]
    best = max(tuned, key=lambda r: r["map"]["heldout"]["voc12"])
    assert [(r["seed"], r["tuning"]) for r in final] == [(0, best["tuning"]), (1, best["tuning"])]
    monkeypatch.setattr(curves, "CURVES", {"radius": "mAP"})
    monkeypatch.setattr(curves, "STEPS", (0, 1))
    curves.main(["run", *small, "--file", str(tmp_path / "curves.jsonl")])
    (line,) = load_runs(tmp_path / "curves.jsonl", "run")
    assert [point["steps"] for point in line["points"]] == [0, 1]


def test_balance_is_chosen_on_held_out_images(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("NLL_STEPS", 1), ("MAP_STEPS", 1), ("CONTROL_STEPS", 1), ("IMAGES_PER_STEP", 4)):
        monkeypatch.setattr(balance, name, value)
    monkeypatch.setattr(balance, "arms", lambda: [balance.Arm("nll", "nll"), balance.Arm("scratch", "mee", "class")])
    balance.main(["choose", *small])
    balance.main(["final", "--seeds", "1", *small])
    chosen, final = (load_runs(tmp_path / "balance.jsonl", phase) for phase in ("choose", "final"))
    for r in final:
        assert r["rate"] == max((c for c in chosen if c["arm"] == r["arm"]), key=lambda c: c["heldout"])["rate"]
    assert "| scratch | mee | class | exact |" in balance.page(tmp_path / "balance.jsonl")


def test_minibatches_of_scored_images_are_measured(small: list[str], tmp_path: Path) -> None:
    batch_bias.main(["measure", "--draws", "3", *small])
    whole = load_runs(tmp_path / "batch_bias.jsonl", "measure")[0]["rows"][-1]
    assert (whole["size"], whole["draws"], whole["zero"]["bias"]) == (4, 1, 0.0)


@pytest.mark.parametrize("seed", range(3))
def test_map_of_any_choice_of_images_is_stepgrads(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, windows=160, images=12, K=4, objects=36, difficult=0.2).tensors(torch.float32)
    records = scored_images.judge(scored_images.ScoredImages(*batch))
    for size in (1, 3, 12):
        chosen = np.isin(np.arange(12), rng.choice(12, size, replace=False))
        part = [[entry for entry, c in zip(entries, chosen, strict=True) if c] for entries in batch]
        for value, kind in zip(scored_images.mean_ap(records, chosen), ("zero", "skip"), strict=True):
            expected = sg.mean_average_precision(*part, protocol="voc12", nms_threshold=0.3, absent_classes=kind).map
            assert value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("training", [True, False])
def test_back_propagating_only_windows_with_a_gradient_changes_nothing(training: bool) -> None:
    images, loss_fn = made_part().images, make_loss(ROWS["radius"])
    given = StepInput(torch.cat([i.image for i in images]), [i.windows for i in images], [i.target for i in images])
    with double_precision():
        head = new_head(FEATURES, seed=0).train(training)
        torch.manual_seed(1)
        back_propagate(head, given, loss_fn, "logprob")
        sparse = [p.grad.clone() for p in head.parameters() if p.grad is not None]
        head.zero_grad()
        torch.manual_seed(1)
        scores = head.scores(given.features, "logprob", head.dropout_mask(len(given.features)))
        loss_fn(list(scores.split(given.counts)), given.boxes, given.targets).backward()
    for a, b in zip(sparse, head.parameters(), strict=True):
        torch.testing.assert_close(a, b.grad, rtol=0, atol=1e-12)
    assert any(bool(g.abs().max() > 0) for g in sparse)


def _with_base(part: Part) -> Part:
    g = torch.Generator().manual_seed(1)
    return cross_fit.with_base(part, torch.randn(sum(map(len, part.labels)), NUM_CLASSES + 1, generator=g))


@pytest.mark.parametrize("name", ROWS)
def test_every_row_trains_a_step(name: str) -> None:
    row = ROWS[name]
    corrects = row.start in ("fresh", "seen", "mean")
    part = _with_base(made_part()) if corrects else made_part()
    head = new_head(part.inputs(0).shape[1], 0, ResidualHead if corrects else WindowHead)
    before = head.output.weight.clone()
    short = replace(row, images=8, steps=min(row.steps, 1), windows=row.windows and 30)
    train_row(head, part, short, Tuning("sgd", 0.01), seed=0)
    assert bool(head.output.weight.isfinite().all())
    if row.loss != "song":  # whose eps moves pairs in long lists only
        assert torch.equal(head.output.weight, before) == (row.steps == 0)
    if row.tuned_as is not None:
        assert ROWS[row.tuned_as].tuned_as is None


def test_fresh_outputs_are_of_models_that_have_not_seen_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, trained_on = made_part(), []

    def record(head: WindowHead, given: Part, *_: object) -> None:
        trained_on.append({image.target["image_id"] for image in given.images})
        with torch.no_grad():  # all of its outputs tell which model it is
            head.output.weight.zero_()
            head.output.bias.fill_(len(trained_on) - 1)

    monkeypatch.setattr(cross_fit, "train_nll", record)
    fresh = cross_fit.CrossEntropyModels(part, 0, tmp_path).fresh()
    assert fresh.base is not None
    assert [len(seen) for seen in trained_on] == [len(part) - len(part) // FOLDS] * FOLDS
    for image, outputs in zip(fresh.images, fresh.base, strict=True):
        assert image.target["image_id"] not in trained_on[int(outputs[0, 0])]


def test_a_rate_that_failed_is_never_chosen_and_one_is_needed(tmp_path: Path) -> None:
    for tuning, value in zip(GRID["second"], (30.0, 31.0, None), strict=False):
        found = {} if value is None else {"heldout": {"voc12": value}}
        made = {"row": asdict(ROWS["radius"]), "tuning": asdict(tuning), "seed": 0, "map": found, "failure": None}
        run.record("tune", tmp_path, {**made, "seconds": 1.0})
    assert run.chosen_tuning(ROWS["radius-none"], tmp_path) == GRID["second"][1]
    with pytest.raises(SystemExit, match=r"experiments\.run yue --tune"):
        run.chosen_tuning(ROWS["yue"], tmp_path)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("seed", range(3))
def test_every_balance_has_the_invariance_it_promises_and_invents_no_gradient(name: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    gradient, scores = torch.randn(2, 60, 4, generator=generator, dtype=torch.float64) + torch.tensor([-0.8, 2]).view(
        2, 1, 1
    )
    gradient[torch.rand(60, 4, generator=generator) < 0.4] = 0
    gradient[:, 0] = 0
    found = FORMS[name](gradient, scores)
    assert torch.all(found[gradient == 0] == 0)
    if name != "none":
        assert found.sum(0).abs().max() < 1e-12
    if name in ("project", "class+scale"):
        assert (found * scores).sum(0).abs().max() < 1e-12


def test_remembered_images_count_in_the_ranking_and_get_no_gradient() -> None:
    batches = [random_batch(np.random.default_rng(seed), windows=24, images=3, K=3, objects=9) for seed in range(3)]
    first, second, third = (batch.tensors(requires_grad=True) for batch in batches)
    plain, loss_fn = sg.MAPLoss(3), RememberingLoss(sg.MAPLoss(3), images=4)
    assert torch.equal(loss_fn(*first), plain(*first))
    loss_fn(*second)  # the first two images of all are forgotten now
    loss = loss_fn(*third)
    loss.backward()
    assert all(s.grad is None for s in second[0])
    again = [[*batches[2].tensors(requires_grad=True)[k], *first[k][2:], *second[k]] for k in range(3)]
    expected = plain(*again)
    expected.backward()
    assert torch.equal(loss, expected)
    for mine, other in zip(third[0], again[0], strict=False):
        torch.testing.assert_close(mine.grad, other.grad * 7 / 3)  # images ranked over images in the batch
    with torch.no_grad():
        assert torch.equal(loss_fn(*third), plain(*third))


def _weights(folder: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    torch.save(alexnet(weights=None).features.state_dict(), folder / f"{seed}.pt")
    return folder / f"{seed}.pt"


@torch.inference_mode()
def test_features_are_conv5_of_the_enlarged_image_pooled_at_the_corners_of_the_windows(tmp_path: Path) -> None:
    weights, data = _weights(tmp_path, 0), open_data("shapes", "train", limit=1)
    image, windows = data.dataset.image(0), data.windows(0)
    trunk = alexnet(weights=None).features
    trunk.load_state_dict(torch.load(weights, weights_only=True))
    pixels = np.array(image.resize((2 * image.width, 2 * image.height), Image.Resampling.BILINEAR))
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    conv5 = trunk[:12]((torch.from_numpy(pixels).permute(2, 0, 1) / 255 - mean)[None] / std)
    # torchvision's AlexNet has a conv5 cell every 16 pixels, the first centred on pixel 15
    expected = roi_pool(conv5, [2 * windows - 15], output_size=6, spatial_scale=1 / 16).flatten(1)
    assert expected.abs().max() > 0
    torch.testing.assert_close(FrozenFeatures(weights, FeatureSettings()).pooled(image, windows), expected)
