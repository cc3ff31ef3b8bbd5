"""keep_best: watching changes nothing about training, and training cannot end below its start."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import stepgrad as sg
from stepgrad.errors import ConfigError, InputError, LikelyMistakeWarning
from stepgrad.models import held_out as _held_out
from stepgrad.models import keep_best as _best
from stepgrad.models.held_out import HeldOutResult, held_out_map
from stepgrad.models.keep_best import weights_of
from stepgrad.models.torchvision import keep_best, train_for_map
from tests.models.tiny import CLASSES, DENSE, WITHOUT_BACKGROUND, permissive, tiny_batch


def held_out(family: str) -> list[Any]:
    return [tiny_batch(family, seed=seed) for seed in (11, 12)]


def prepared(family: str, **options: Any) -> nn.Module:
    """A model that reports what it sees, so that there is a mAP, with a low bar for a hit."""
    return train_for_map(permissive(family), match_threshold=0.2, **options)


def equal(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name].cpu()) for name in first)


class Loop:
    """Some steps of SGD; notes the weights it starts from, the random numbers and batches it sees, and whether mAP was on."""

    def __init__(self, model: nn.Module, steps: int = 3, rate: float = 1e-2) -> None:
        self.model, self.steps, self.rate = model, steps, rate
        self.best: Any = None
        self.starts: list[dict[str, Tensor]] = []
        self.drawn: list[list[int]] = []
        self.losses: list[list[bool]] = []

    def __call__(self) -> None:
        self.starts.append(weights_of(self.model))
        self.drawn.append([])
        self.losses.append([])
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.rate)
        for step in range(self.steps):
            self.model.map_loss_switch.enabled = step > 0
            seed = int(torch.randint(1000, ()))
            losses = self.model(*tiny_batch("ssd", seed=seed))
            optimizer.zero_grad()
            sum(losses.values()).backward()
            optimizer.step()
            self.drawn[-1].append(seed)
            self.losses[-1].append("loss_map" in losses)
            if self.best is not None:
                self.best.step()


@pytest.mark.parametrize("family", ["faster_rcnn", *DENSE])
def test_held_out_map_is_that_of_the_models_own_detections(family: str) -> None:
    model, data = prepared(family), held_out(family)
    first = 0 if family in WITHOUT_BACKGROUND else 1
    evaluator = sg.Evaluator(CLASSES, model.map_loss.objective.protocol)
    with torch.no_grad():
        for images, targets in data:
            found = copy.deepcopy(model).eval()(images)
            evaluator.update(
                [{**f, "labels": f["labels"] - first} for f in found],
                [{**t, "labels": t["labels"] - first} for t in targets],
            )
    assert 0.0 < held_out_map(model, data) == evaluator.compute().map
    assert held_out_map(nn.ModuleDict({"inside": model}), data) == evaluator.compute().map


def test_held_out_map_of_a_detr_is_that_of_the_list_training_ranks() -> None:
    pytest.importorskip("transformers", reason='needs transformers: pip install ".[transformers]"')
    from stepgrad.models.detr import transformers
    from tests.models import hf_models

    for name in {"yolos", "deformable_detr", "lw_detr", "rt_detr"} & hf_models.MODELS.keys():
        model = transformers.train_for_map(hf_models.make(name), match_threshold=0.005)
        pixels, labels = hf_models.batch()
        with torch.no_grad():
            output = copy.deepcopy(model).eval()(pixels)
            lists = model.map_loss_switch.ranked_lists(output.logits, output.pred_boxes, labels)
        expected = sg.mean_average_precision(
            *lists, protocol=model.map_loss_switch.loss_fn.objective.protocol, nms_threshold=None
        )
        assert 0.0 < held_out_map(model, [(pixels, labels)]) == pytest.approx(expected.map, rel=1e-12)
        assert held_out_map(model, [{"pixel_values": pixels, "labels": labels}]) == pytest.approx(expected.map)


def test_restored_weights_and_buffers_are_the_best_to_the_last_bit() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    values = iter([0.3, 0.2, 0.7, 0.7, 0.6])
    best = keep_best(model, lambda: next(values), every=1)
    seen = []
    for _ in range(4):
        model(torch.rand(3, 2))  # changes the statistics of batch normalisation
        model[0].weight.data += 1.0
        seen.append(weights_of(model))
        best.step()
    parameters = list(model.parameters())
    assert best.restore() == (
        "Kept the weights after 2 steps with mAP: mAP on held-out images 70.0; at the start 30.0."
    )
    assert equal(weights_of(model), seen[1])  # of equals the first
    assert [score.map for score in best.history] == [0.3, 0.2, 0.7, 0.7, 0.6]
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))


def test_the_start_is_kept_where_nothing_is_better() -> None:
    model = nn.Linear(2, 2)
    start = weights_of(model)
    with keep_best(model, iter([0.5, 0.5, math.nan, 0.4]).__next__, every=2) as best:
        for _ in range(5):
            model.weight.data += 1.0
            best.step()
    assert equal(weights_of(model), start)
    assert best.summary == ("Kept the weights at the start: mAP on held-out images 50.0; with mAP 50.0, after 2 steps.")
    assert [score.step for score in best.history] == [0, 2, 4, 5]  # the end was measured too


def judged(right: int, images: int = 40) -> HeldOutResult:
    """What a detector finds that puts a false alarm first on all images but the first ones."""
    evaluator = sg.Evaluator(1, "voc12")
    boxes = torch.tensor([[0.0, 0, 10, 10], [50, 0, 60, 10]])
    for i in range(images):
        scores = torch.tensor([0.9, 0.1] if i < right else [0.1, 0.9])
        found = {"boxes": boxes, "scores": scores, "labels": torch.tensor([0, 0])}
        evaluator.update([found], [{"boxes": boxes[:1], "labels": torch.tensor([0]), "image_id": i}])
    result = evaluator.compute()
    return HeldOutResult(result.map, result)


@pytest.mark.parametrize(("start", "after"), [(5, 35), (20, 21), (30, 29)])
def test_the_summary_says_by_compare_whether_the_images_can_tell(
    start: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = [judged(start), judged(after)]
    given = iter(measured)
    monkeypatch.setattr(_best, "measure", lambda *_: next(given))
    model = nn.Linear(2, 2)
    best = keep_best(model, lambda: 0.0, every=1)
    best.step()
    kept, other = sorted(measured, key=lambda one: -one.value)
    assert kept.result is not None
    assert other.result is not None
    names = ("the start", "training with mAP") if after > start else ("training with mAP", "the start")
    sentence = sg.compare(other.result, kept.result, names=names).sentence
    assert best.restore().endswith(f" {sentence[0].upper()}{sentence[1:]}")
    assert ("cannot tell" in sentence) == (abs(after - start) == 1)


def test_an_error_in_the_loop_leaves_the_best_weights() -> None:
    model = nn.Linear(2, 2)
    start = weights_of(model)

    def stopped(best: Any) -> None:
        with best:
            model.weight.data.fill_(math.nan)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped(keep_best(model, lambda: 0.5))
    assert equal(weights_of(model), start)


def test_a_diverged_detector_goes_back_to_its_start() -> None:
    pytest.importorskip("transformers", reason='needs transformers: pip install ".[transformers]"')
    from stepgrad.models.detr import transformers
    from tests.models import hf_models

    model = transformers.train_for_map(hf_models.make("yolos"))
    start = weights_of(model)
    best = keep_best(model, [hf_models.batch()])
    for parameter in model.parameters():
        parameter.data.fill_(math.nan)
    assert math.isnan(best.check())
    best.restore()
    assert equal(weights_of(model), start)


def test_watching_changes_nothing_about_the_training() -> None:
    ends = []
    data = DataLoader(held_out("ssd"), batch_size=None)  # draws a random number each time it is gone through
    for watched in (False, True):
        model = prepared("ssd")
        model.backbone.first.eval()  # frozen in this mode
        loop = Loop(model)
        torch.manual_seed(0)
        if watched:
            loop.best = keep_best(model, data, every=1)
        loop()
        assert model.training
        assert not model.backbone.first.training
        ends.append(weights_of(model))
    assert equal(*ends)


@pytest.mark.parametrize("rate", [1e-2, 1e4])
def test_training_with_a_control_starts_both_alike_and_never_ends_below_the_start(rate: float) -> None:
    model, data = prepared("ssd"), held_out("ssd")
    before, start = weights_of(model), held_out_map(model, data)
    loop = Loop(model, rate=rate)
    loop.best = keep_best(model, data, every=2, protocol="voc12")
    summary = loop.best.train(loop, control=True)
    assert equal(loop.starts[0], before)
    assert equal(loop.starts[1], before)
    assert loop.drawn[0] == loop.drawn[1]
    assert loop.losses == [[False] * 3, [False, True, True]]  # whatever the loop sets the switch to
    history = loop.best.history
    assert [(score.step, score.trained) for score in history[1:]] == [
        (2, "stock"),
        (3, "stock"),
        (2, "map"),
        (3, "map"),
    ]
    best = max(score.map for score in history)
    assert held_out_map(model, data, "voc12") == loop.best.best.map == best
    assert best >= history[0].map
    assert start > 0.0
    assert summary.startswith("Kept the weights ")
    assert "mAP (voc12) on held-out images" in summary


def test_of_both_runs_the_better_one_is_kept() -> None:
    for values, kept in (([0.1, 0.4, 0.3], "stock"), ([0.1, 0.3, 0.4], "map"), ([0.1, 0.4, 0.4], "stock")):
        model = prepared("ssd")
        measured = iter(values)
        loop = Loop(model)
        loop.best = keep_best(model, [tiny_batch("ssd")], every=100)
        loop.best.best = _best.HeldOutScore(0, next(measured), "start")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_best, "measure", lambda *_: HeldOutResult(next(measured)))  # noqa: B023
            loop.best.train(loop, control=True)
        assert loop.best.best.trained == kept
        assert loop.best.best.map == 0.4


def test_a_loop_that_cannot_be_run_twice_is_told_so() -> None:
    model = prepared("ssd")
    batches = iter([tiny_batch("ssd")] * 2)
    best = keep_best(model, [tiny_batch("ssd")])
    start = weights_of(model)

    def loop() -> None:
        for _ in batches:
            model(*tiny_batch("ssd"))
            best.step()

    with pytest.raises(InputError, match="used up"):
        best.train(loop, control=True)
    assert equal(weights_of(model), start)
    assert not model.map_loss_switch.held_off
    lengths = iter([2, 3])

    def uneven() -> None:
        for _ in range(next(lengths)):
            best.step()

    with pytest.warns(LikelyMistakeWarning, match="took 2 steps and the training for mAP 3"):
        best.train(uneven, control=True)
    with pytest.raises(ConfigError, match="prepared by `train_for_map`"):
        keep_best(model, lambda: 0.5).train(uneven, control=True)


def test_held_out_data_that_cannot_be_measured_is_named() -> None:
    model = prepared("ssd")
    with pytest.raises(InputError, match="found 0"):
        keep_best(nn.Linear(1, 1), [tiny_batch("ssd")])
    with pytest.raises(InputError, match=r"\(images, targets\).*Tensor"):
        keep_best(model, [torch.zeros(3)])
    with pytest.raises(InputError, match="background"):
        keep_best(model, [tiny_batch("fcos")])
    with pytest.raises(ConfigError, match="every"):
        keep_best(model, [tiny_batch("ssd")], every=0)
    best = keep_best(model, iter([tiny_batch("ssd")]))
    with pytest.raises(InputError, match="read only once"):
        best.check()


def test_processes_measure_the_map_of_all_their_images(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = prepared("ssd"), held_out("ssd")
    device = torch.device("cpu")
    whole = held_out_map(model, data)
    copied = copy.deepcopy(model).eval()
    with torch.no_grad():
        others = [model.map_loss_switch.detections(copied, data[1], device)]
    monkeypatch.setattr(_held_out, "gather_objects", lambda mine: [mine, others])
    assert held_out_map(model, data[:1]) == whole
    monkeypatch.setattr(_held_out, "gather_objects", lambda mine: [0.25, mine])
    assert held_out_map(model, lambda: 0.75) == 0.25
