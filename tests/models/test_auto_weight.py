"""weight="auto": mAP's gradient at the class logits is the share of the stock loss's that was asked for."""

from __future__ import annotations

import copy
import math
import threading
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from stepgrad.errors import ConfigError, LikelyMistakeWarning
from stepgrad.models import auto_weight
from stepgrad.models.auto_weight import AutoWeight, StockLoss
from stepgrad.models.torchvision import train_for_map
from tests.double_precision import double_precision
from tests.models.tiny import DENSE, SAMPLED, classification_key, tiny_batch, tiny_model

LENGTHS = st.floats(min_value=0.0) | st.just(math.nan)
SEVERAL = st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6)), min_size=1, max_size=30)


def weight_after(lengths: list[tuple[float, float]], **options: float) -> float:
    auto = AutoWeight(**options)
    for stock, of_map in lengths:
        auto.update(stock, of_map)
    return auto.value


@given(SEVERAL)
def test_the_weight_lies_between_the_ratios_of_single_batches(lengths: list[tuple[float, float]]) -> None:
    ratios = [min(stock / of_map, 1e6) for stock, of_map in lengths]
    weight = weight_after(lengths, share=1.0)
    assert min(ratios) * (1 - 1e-9) <= weight <= max(ratios) * (1 + 1e-9)


def test_the_weight_follows_a_change_and_forgets_what_was_before() -> None:
    assert weight_after([(1.0, 100.0)] * 5 + [(3.0, 2.0)] * 400, share=0.5) == pytest.approx(0.75, rel=1e-6)
    assert weight_after([(1.0, 100.0), (3.0, 2.0)], memory=0.0, share=0.5) == 0.75


@given(SEVERAL, st.floats(0.1, 10.0))
def test_a_stock_loss_ten_times_as_large_makes_the_weight_ten_times_as_large(
    lengths: list[tuple[float, float]], share: float
) -> None:
    moderate = [(stock, max(of_map, stock)) for stock, of_map in lengths]  # below the bound on the weight
    larger = weight_after([(10 * stock, of_map) for stock, of_map in moderate], share=share)
    assert larger == pytest.approx(10 * weight_after(moderate, share=share), rel=1e-9)


@given(st.lists(st.tuples(LENGTHS, LENGTHS), max_size=10))
def test_the_weight_is_a_finite_number_whatever_was_measured(lengths: list[tuple[float, float]]) -> None:
    assert 0.0 <= weight_after(lengths) <= 1e6


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf])
def test_a_batch_without_a_gradient_on_either_side_changes_nothing(bad: float) -> None:
    lengths = [(2.0, 3.0)]
    assert weight_after([*lengths, (bad, 1.0), (1.0, bad)]) == weight_after(lengths) == pytest.approx(2 / 3)
    assert weight_after([(bad, 1.0), (1.0, bad)]) == 1.0


class Logits:
    """The class logits of a torchvision model's last training pass, extra passes of the box head included."""

    def __init__(self, model: nn.Module) -> None:
        self.passes: list[Tensor] = []
        heads = model.roi_heads.box_predictor if hasattr(model, "roi_heads") else model.head
        heads.register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        self.passes.append(outputs["cls_logits"] if isinstance(outputs, dict) else outputs[0])

    def length(self, loss: Tensor) -> float:
        gradients = torch.autograd.grad(loss, self.passes, retain_graph=True, allow_unused=True)
        return math.sqrt(sum(float(g.square().sum()) for g in gradients if g is not None))


def run(model: nn.Module, family: str, seed: int = 7, batch: int = 1) -> dict[str, Tensor]:
    torch.manual_seed(seed)  # the stock models sample with the global generator
    return model(*tiny_batch(family, seed=batch))


@pytest.mark.parametrize("family", ["faster_rcnn", *DENSE])
@pytest.mark.parametrize("mode", ["mix", "replace"])
def test_the_first_batch_of_a_detector_has_the_share_asked_for(family: str, mode: str) -> None:
    with double_precision():
        stock = tiny_model(family)
        model = train_for_map(copy.deepcopy(stock), mode=mode, weight=AutoWeight(share=0.25))
        of_stock, of_model = Logits(stock), Logits(model)
        key = classification_key(family)
        found, expected = run(model, family), run(stock, family)
        length = of_model.length(found[key if mode == "replace" else "loss_map"])
        sum(found.values()).backward()  # the graph is still there
    if mode == "replace" and family == "faster_rcnn":
        return  # other windows, so another loss than the stock model's: see below
    assert length == pytest.approx(0.25 * of_stock.length(expected[key]), rel=1e-9)


def test_replacing_in_two_stages_measures_cross_entropy_of_the_windows_that_are_ranked() -> None:
    with double_precision():
        # So few positives are sampled that others are among the best proposals, which take the negatives' places.
        few = tiny_model("faster_rcnn", box_positive_fraction=0.05)
        model = train_for_map(few, mode="replace", weight=AutoWeight(share=2.0))
        logits, seen = Logits(model), []
        inputs = model.roi_heads.box_roi_pool.register_forward_pre_hook(lambda _module, given: seen.append(given[1]))
        found = run(model, "faster_rcnn")
        inputs.remove()
        windows, targets = seen[0], tiny_batch("faster_rcnn")[1]
        labels = model.roi_heads.assign_targets_to_proposals(
            windows, [t["boxes"].double() for t in targets], [t["labels"] for t in targets]
        )[1]
        stock = nn.functional.cross_entropy(logits.passes[0], torch.cat(labels))
        assert (torch.cat(labels) > 0).sum() > 2 * int(0.05 * SAMPLED)
        assert logits.length(found["loss_classifier"]) == pytest.approx(2.0 * logits.length(stock), rel=1e-9)


def test_windows_scored_in_an_extra_pass_count_in_the_length_of_map() -> None:
    with double_precision():
        model = train_for_map(tiny_model("faster_rcnn"), windows_per_image=90, weight=AutoWeight(share=1.0))
        logits = Logits(model)
        found = run(model, "faster_rcnn")
        assert len(logits.passes) == 2
        assert logits.length(found["loss_map"]) == pytest.approx(logits.length(found["loss_classifier"]), rel=1e-9)


def test_the_weight_is_automatic_unless_a_number_is_given() -> None:
    model = train_for_map(tiny_model("ssd"))
    run(model, "ssd")
    assert model.map_loss_switch.weight not in (0.0, 1.0)
    assert train_for_map(model, weight=3).map_loss_switch.weight == 3.0
    loss = run(model, "ssd")["loss_map"]
    assert float(loss.detach()) == pytest.approx(-3.0 * math.log(model.map_loss.metrics["map"] + 0.01), rel=1e-5)
    model.map_loss_switch.weight = "auto"
    assert model.map_loss_switch.is_auto
    for bad in ("automatic", 0.0, True, None):
        with pytest.raises(ConfigError, match="weight"):
            model.map_loss_switch.weight = bad
    with pytest.raises(ConfigError, match="share"):
        AutoWeight(share=0.0)
    with pytest.raises(ConfigError, match="memory"):
        AutoWeight(memory=1.0)


def test_nothing_is_measured_without_gradients_or_while_switched_off() -> None:
    model = train_for_map(tiny_model("ssd"))
    run(model, "ssd")
    weight = model.map_loss_switch.weight
    with torch.no_grad():
        run(model, "ssd", batch=2)
    model.map_loss_switch.enabled = False
    run(model, "ssd", batch=3)
    assert model.map_loss_switch.weight == weight
    model.map_loss_switch.enabled = True
    run(model, "ssd", batch=2)
    assert model.map_loss_switch.weight != weight


def test_batches_without_objects_leave_the_weight_and_the_gradients_finite() -> None:
    model = train_for_map(tiny_model("ssd"))
    images, targets = tiny_batch("ssd")
    empty = [{key: value[:0] for key, value in target.items()} for target in targets]
    sum(model(images, empty).values()).backward()
    assert model.map_loss_switch.weight == 1.0
    run(model, "ssd")
    weight = model.map_loss_switch.weight
    sum(model(images, empty).values()).backward()
    assert model.map_loss_switch.weight == weight
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_a_resumed_model_has_the_weight_of_its_first_batch() -> None:
    model = train_for_map(tiny_model("ssd"))
    for batch in (1, 2, 3):
        run(model, "ssd", batch=batch)
    resumed = train_for_map(tiny_model("ssd", seed=1))
    resumed.load_state_dict(model.state_dict(), strict=True)  # the weight of mAP is in no checkpoint
    fresh = train_for_map(tiny_model("ssd"))
    run(fresh, "ssd", batch=4)
    run(resumed, "ssd", batch=4)
    assert resumed.map_loss_switch.weight == fresh.map_loss_switch.weight
    copied = copy.deepcopy(model)
    run(copied, "ssd", batch=4)
    assert copied.map_loss_switch.weight != model.map_loss_switch.weight


def test_logits_in_half_precision_are_measured_like_exact_ones() -> None:
    exact = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.randint(3, (4000,), generator=torch.Generator().manual_seed(1))
    weights = []
    for dtype in (torch.float64, torch.float16):
        logits = exact.to(dtype).requires_grad_()
        stock = 1e-3 * nn.functional.cross_entropy(logits.double(), labels)
        of_map = (logits.double() ** 2).mean()
        weights.append(AutoWeight().look_at(StockLoss(stock, [logits]), of_map))
    # The root mean square of an element is about 1e-7, and float16's least number 6e-8: half of it, at 2^8 times the
    # gradient, is at most 0.1% of that.
    assert weights[1] == pytest.approx(weights[0], rel=1e-2)


def test_a_stock_loss_out_of_reach_is_warned_of_once_and_changes_nothing() -> None:
    logits = torch.randn(5, 2, requires_grad=True)
    auto = AutoWeight()
    apart = torch.zeros(5, 2, requires_grad=True).sum()
    with pytest.warns(LikelyMistakeWarning, match="the weight stays 1"):
        assert auto.look_at(StockLoss(apart, [logits]), logits.sum()) == 1.0
    assert auto.look_at(StockLoss(None, [logits]), logits.sum()) == 1.0  # warnings are errors here


def test_processes_agree_on_the_weight_of_their_batches_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads for processes, with the exchange they would have."""
    lengths = [(3.0, 1.0), (4.0, 0.0)]  # the second process has nothing to rank
    barrier, total = threading.Barrier(2), torch.zeros(2, dtype=torch.float64)

    class Exchange:
        def __init__(self, group: Any, timeout: float) -> None:
            pass

        def add_up(self, tensor: Tensor, what: str) -> None:
            total.add_(tensor)
            barrier.wait(60)
            tensor.copy_(total)

    monkeypatch.setattr(auto_weight, "is_alone", lambda group: False)
    monkeypatch.setattr(auto_weight, "Channel", Exchange)
    weights: list[float] = [0.0, 0.0]

    def process(rank: int) -> None:
        logits = torch.ones(1, dtype=torch.float64, requires_grad=True)
        stock, of_map = (length * logits.sum() for length in lengths[rank])
        weights[rank] = AutoWeight(share=1.0).look_at(StockLoss(stock, [logits]), of_map)

    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert weights == [5.0, 5.0]


@pytest.mark.parametrize("mode", ["mix", "replace"])
def test_a_detr_has_the_share_asked_for_at_the_queries_of_inference(mode: str) -> None:
    pytest.importorskip("transformers", reason='needs transformers: pip install ".[transformers]"')
    from stepgrad.models.detr import transformers
    from tests.models import hf_models

    with double_precision():
        for name in hf_models.MODELS:
            model = hf_models.make(name)
            coefficient = 3.0 if name in ("lw_detr", "rf_detr") else 1.0
            model.config.class_loss_coefficient = coefficient
            options = {"match_threshold": 0.005, "weight": AutoWeight(share=0.25)}
            model = transformers.train_for_map(model, mode=mode, **options)
            pixels, labels = hf_models.batch()
            outputs = []
            for enabled in (False, True):
                model.map_loss_switch.enabled = enabled
                torch.manual_seed(1)
                outputs.append(model(pixel_values=pixels, labels=labels))
            key = next(key for key in ("loss_vfl", "loss_mal", "loss_ce") if key in outputs[0].loss_dict)
            stock, of_map = outputs[0].loss_dict[key], outputs[1].loss_dict[key if mode == "replace" else "loss_map"]
            lengths = []
            for loss, output in ((stock, outputs[0]), (of_map, outputs[1])):
                gradient = torch.autograd.grad(loss, output.logits)[0]
                first = gradient[:, : hf_models.QUERIES] if coefficient == 3.0 else gradient[:, -hf_models.QUERIES :]
                lengths.append(float(first.norm()))
            in_sum = coefficient if mode == "mix" else 1.0  # "replace" multiplies mAP by it too
            assert lengths[1] == pytest.approx(0.25 * in_sum * lengths[0], rel=1e-9), name


def test_a_switch_says_what_its_weight_is() -> None:
    assert "AutoWeight(share=1, now 1)" in repr(train_for_map(tiny_model("ssd")).map_loss_switch)
    assert "weight=2.0" in repr(train_for_map(tiny_model("ssd"), weight=2.0).map_loss_switch)
