"""What heads on YOLOv8n's windows learn from, and the records of their trainings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from experiments.results import load_runs
from experiments.yolo import budgets, gain_plot, heads_table, ways
from experiments.yolo.box_branch import BoxBranch, Places, assigned, loss_of, padded
from experiments.yolo.heads import Point, Records, Runs, Trial, choose, chosen, final
from experiments.yolo.losses import CROSS_ENTROPIES, OTHERS, class_weights, stock_loss
from experiments.yolo.network import BINS, YOLOv8n
from experiments.yolo.sets import Parts, Set, long_tailed, standardised
from stepgrad.models.fine_tuning import ImageWindows
from stepgrad.models.fine_tuning.windows import Labelled, labelled

CLASSES = 3


def target(boxes: Tensor, labels: list[int], crowds: list[int] | None = None) -> dict[str, Tensor]:
    crowd = torch.tensor(crowds or [0] * len(labels), dtype=torch.bool)
    return {"boxes": boxes, "labels": torch.tensor(labels), "iscrowd": crowd, "difficult": torch.zeros_like(crowd)}


def pictures(count: int, seed: int = 0) -> list[ImageWindows]:
    """Images with two objects and windows about them; the features tell the class, and how well a window fits."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        low = torch.rand(2, 2, generator=generator) * 60
        objects = torch.cat([low, low + 20 + 20 * torch.rand(2, 2, generator=generator)], dim=1)
        labels = torch.randint(CLASSES, (2,), generator=generator)
        windows = objects.repeat_interleave(8, 0) + 4 * torch.randn(16, 4, generator=generator)
        about = torch.nn.functional.one_hot(labels, CLASSES).float().repeat_interleave(8, 0)
        off = (windows - objects.repeat_interleave(8, 0)).abs().mean(1, keepdim=True)
        found.append(ImageWindows(torch.cat([about, off], dim=1), windows, target(objects, labels.tolist())))
    return found


def only_image(image: ImageWindows) -> Labelled:
    return labelled("images", [image], CLASSES)[0]


def test_a_crowd_teaches_no_window_anything() -> None:
    one = torch.tensor([[0.0, 0.0, 20.0, 20.0]])
    image = only_image(ImageWindows(torch.zeros(1, 1), one, target(one, [1], crowds=[1])))
    outputs = torch.zeros(1, CLASSES, requires_grad=True)
    for name in CROSS_ENTROPIES:
        (gradient,) = torch.autograd.grad(stock_loss(name, CLASSES, [image])(outputs, [image]), outputs)
        assert float(gradient[0, 1]) == 0.0, name


def test_rare_classes_weigh_more_and_the_mean_weight_is_one() -> None:
    boxes = torch.tensor([[0.0, 0.0, 20.0, 20.0]]).repeat(6, 1)
    image = only_image(
        ImageWindows(torch.zeros(0, 1), torch.zeros(0, 4), target(boxes, [0, 0, 0, 0, 1, 2], [0] * 5 + [1]))
    )
    weights = class_weights([image], CLASSES)
    assert weights.mean().item() == pytest.approx(1.0)
    assert weights[1].item() == pytest.approx(2.0 * weights[0].item())


@pytest.mark.parametrize("name", [*CROSS_ENTROPIES, *OTHERS])
def test_every_loss_learns_which_windows_show_what(name: str) -> None:
    of = Set("none", ("train",), 16, steps=60, images=8, map_steps=60, map_images=8)
    trial = Trial(of, Parts(*standardised(pictures(40), pictures(20, 1), pictures(20, 2)), CLASSES))
    before = trial.new_head(0, 0)
    after = trial.fit(before, Point(name, 0.03, units=0), "train", 0)
    assert trial.measure(after, "held_out")["voc12"][0] > trial.measure(before, "held_out")["voc12"][0]


@pytest.fixture
def small() -> Trial:
    of = Set("none", ("train",), 16, steps=4, images=4, map_steps=2, map_images=4)
    return Trial(of, Parts(*standardised(pictures(8), pictures(6, 1), pictures(6, 2)), CLASSES))


def test_a_run_on_record_is_not_made_again_and_the_table_shows_every_way(small: Trial, tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    records = Records(file, "voc")
    for _ in range(2):
        choose(Runs(small, records, "choose", "train", "held_out"), 0, ["hard", "soft"], ["coco"], starts=1)
        list(final(Runs(small, records, "final", "all", "test"), chosen(records, 0), [0, 1]))
    tried = load_runs(file, "choose")
    assert len(tried) == 2 * 5 + 2 * 4
    ways = {(run["start"], run["loss"]) for run in tried}
    assert len(load_runs(file, "final")) == 2 * len(ways) == 2 * 4
    page = heads_table.render(file)
    assert "then more of it" in page
    assert "then mAP `coco`" in page


def test_half_a_budget_is_followed_by_as_many_epochs_of_map(small: Trial, tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    records = Records(file, "voc")
    budgets.choose(Runs(small, records, "choose", "train", "held_out"), 0, 2, ["hard", "soft"], ["coco"])
    list(budgets.final(Runs(small, records, "final", "all", "test"), 0, 2, [0]))
    runs = load_runs(file, "final")
    assert {(run["start"] is None, run["epochs"]) for run in runs} == {(True, 2), (False, 1.0)}
    assert small.set.images == 4
    assert Point("soft", 1.0, epochs=2).plan(small.set, 8).steps == 4
    assert "2 epochs" in budgets.render(file)


def test_curves_say_how_far_training_images_are_fitted_and_the_plot_shows_every_place(
    small: Trial, tmp_path: Path
) -> None:
    file = tmp_path / "runs.jsonl"
    records = Records(file, "voc")
    choose(Runs(small, records, "choose", "train", "held_out"), 0, ["soft"], ["coco"], starts=1)
    runs = Runs(small, records, "curve", "all", "test")
    list(final(runs, chosen(records, 0), [0, 1], images=4))
    curve = load_runs(file, "curve")
    assert all(0.0 <= run["fitted"] <= 100.0 for run in curve)
    (place,) = gain_plot.places(curve, "soft")
    by_way = {(run["start"], run["loss"]): run for run in curve if run["seed"] == 1}
    assert place.images == by_way["soft", "coco"]["images"] == 4
    gain_plot.draw(curve, tmp_path / "gain.svg")
    assert "4 images" in (tmp_path / "gain.svg").read_text()


def test_every_way_to_go_on_is_on_record_with_its_start(
    small: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Records(tmp_path / "heads.jsonl", "voc")
    records.add("choose", Point("aligned", 1e-2), 0, {"coco": [1.0]}, 0.0, {})
    some = (ways.Way(2, 4, beside=1.0, for_map=False), ways.Way(2, 4, windows=5), ways.Way(2, 4, through_nms=False))
    monkeypatch.setattr(ways, "WAYS", some)
    ways.run(small, records, tmp_path / "ways.jsonl", [0])
    page = ways.render(tmp_path / "ways.jsonl")
    assert len(page.splitlines()) == 2 + 1 + len(some)
    assert "more of it" in page
    assert "5 windows per image" in page


def test_a_long_tail_takes_nothing_from_the_most_frequent_classes() -> None:
    images = pictures(200)
    cut = long_tailed([i._replace(target={**i.target, "labels": i.target["labels"] * 4 % 12}) for i in images], 12)
    gone = torch.cat([i.target["difficult"] for i in cut])
    labels = torch.cat([i.target["labels"] for i in cut])
    assert len(gone) == 400
    assert set(labels.tolist()) == {0, 4, 8}
    assert not bool(gone.any()), "three classes are within the first four"
    many = [i._replace(target={**i.target, "labels": torch.tensor([n % 8, n % 8])}) for n, i in enumerate(images)]
    tail = long_tailed(many, 8)
    shares = [
        torch.cat([i.target["difficult"][i.target["labels"] == c] for i in tail]).float().mean().item()
        for c in range(8)
    ]
    assert shares[:4] == [0.0] * 4
    assert all(0.2 < share < 0.8 for share in shares[4:])


def test_places_learn_only_objects_they_lie_in() -> None:
    torch.manual_seed(0)
    branch = BoxBranch(YOLOv8n())
    places = branch([torch.rand(1, w, 64 // s, 96 // s) for w, s in ((64, 8), (128, 16), (256, 32))])
    objects = torch.tensor([[10.0, 10.0, 40.0, 40.0], [50.0, 5.0, 90.0, 60.0]])
    rows, which, overlap = assigned(places, objects)
    inside = places.centre[rows]
    assert bool((inside > objects[which, :2]).all() and (inside < objects[which, 2:]).all())
    assert bool((overlap >= 0).all())
    nothing = target(torch.zeros(0, 4), [])
    assert bool(torch.isfinite(loss_of(places, nothing)))
    assert padded(torch.zeros(3, 50, 70, dtype=torch.uint8)).shape == (1, 3, 64, 96)


def test_a_place_that_knows_its_box_has_nothing_to_learn() -> None:
    far = torch.tensor([1, 2, 3, 1])
    distances = torch.full((1, 4, BINS), -1e4)
    distances[0, torch.arange(4), far] = 1e4
    centre = torch.tensor([[20.0, 20.0]])
    box = torch.tensor([[12.0, 4.0, 44.0, 28.0]])  # centre minus and plus 8 times the distances
    places = Places(box, distances, torch.tensor([1e4]), centre, torch.tensor([8.0]))
    assert loss_of(places, target(box, [0])).item() == pytest.approx(0.0, abs=1e-5)
    in_a_crowd = Places(box, distances, torch.tensor([1e4]), centre, torch.tensor([8.0]))
    assert loss_of(in_a_crowd, target(box, [0], crowds=[1])).item() == 0.0
