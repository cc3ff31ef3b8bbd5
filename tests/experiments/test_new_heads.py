"""New class heads on frozen features: the smallest runs of each script, and the laws that their tables rest on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from experiments import finetune_bccd, finetune_bccd_table
from experiments.deployed import heads as deployed
from experiments.deployed import table as deployed_table
from experiments.deployed.measure import MISS, PRECISION, ClassList, cheapest, precise
from experiments.endless import new_head, where
from experiments.endless import ways as endless_ways
from experiments.records import load_runs, read_lines
from experiments.yolo import budgets, gain_plot, heads, heads_table, own_logits, ways
from experiments.yolo.losses import CROSS_ENTROPIES, OTHERS
from experiments.yolo.sets import SETS, Parts, Set, long_tailed, standardised
from stepgrad.models.fine_tuning import ImageWindows

CLASSES = 3


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    """The scripts take one."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


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


class MadeUp(Set):
    """Pictures of the above, wherever the data should be."""

    def load(self, data: Path, cache: Path, test: bool) -> Parts:
        return Parts(*standardised(pictures(8), pictures(6, 1), pictures(6, 2) if test else []), CLASSES)


@pytest.fixture
def common(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """A set for short trainings, in the place of VOC; returns the options of its scripts."""
    of = MadeUp("none", ("train",), 16, steps=4, images=4, map_steps=2, map_images=4)
    for sets in (SETS, deployed.SETS):
        monkeypatch.setitem(sets, "voc", of)
    return ["--set", "voc", "--data", ".", "--cache", ".", "--out", str(tmp_path / "runs.jsonl")]


def test_heads_of_yolo_are_chosen_trained_once_and_listed(
    common: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, few = tmp_path / "runs.jsonl", ["--losses", "soft", "aligned", "--after", "coco"]
    for _ in range(2):
        heads.main(["choose", *common, *few])
        heads.main(["final", *common, *few, "--seeds", "0", "1"])
        heads.main(["curve", *common, "--images", "4", "--seeds", "0", "1"])
    tried, final, curve = (load_runs(file, phase) for phase in ("choose", "final", "curve"))
    assert len(tried) == 2 * (5 + 2 * 4)
    assert len(final) == len(curve) == 2 * 6
    for run in final:
        own = [t for t in tried if (t["start"], t["loss"]) == (run["start"], run["loss"])]
        assert run["rate"] == max(own, key=lambda t: t["found"]["coco"][0])["rate"]
    page = heads_table.page(file)
    assert all(f"| {way} |" in page for way in ("soft, then more of it", "aligned, then mAP `coco`"))
    assert [place.images for place in gain_plot.places(curve, "soft")] == [4]
    some = (ways.Way(2, 4, beside=1.0, for_map=False), ways.Way(2, 4, windows=5), ways.Way(2, 4, through_nms=False))
    monkeypatch.setattr(ways, "WAYS", some)
    ways.main([*common, "--chosen", str(file), "--seeds", "0", "--out", str(tmp_path / "ways.jsonl")])
    assert ways.page(tmp_path / "ways.jsonl").count("\n| ") == 2 + len(some)


def test_half_a_budget_is_followed_by_as_many_epochs_of_map(common: list[str], tmp_path: Path) -> None:
    for phase in (["choose", "--losses", "hard", "soft", "--after", "coco"], ["final", "--seeds", "0"]):
        budgets.main([*phase, *common, "--units", "0", "--epochs", "2"])
    runs = load_runs(tmp_path / "runs.jsonl", "final")
    assert {(run["start"] is None, run["epochs"]) for run in runs} == {(True, 2), (False, 1.0)}
    assert "2 epochs" in budgets.page(tmp_path / "runs.jsonl")


def test_heads_are_trained_for_the_metric_they_are_deployed_by(
    common: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployed, "IMAGES", 4)
    monkeypatch.setattr(deployed, "STEPS", 1)
    deployed.main(["final", *common, "--units", "0", "--seeds", "0"])
    chosen = load_runs(tmp_path / "runs.jsonl", "choose")
    for metric, measure, sign in (("recall", "around", 1), ("cost", "cost", -1)):
        way = deployed_table.chosen_ways(chosen, metric, "hard")["metric"]
        tried = [run for run in chosen if (run["loss"], run["start"]) == (metric, "hard")]
        assert way.rate == max(tried, key=lambda run: sign * run["found"][measure])["rate"]
    assert "| VOC, YOLOv8n, linear, hard |" in deployed_table.page(tmp_path / "runs.jsonl")


@pytest.mark.parametrize("seed", range(50))
def test_thresholds_are_the_cheapest_and_the_lowest_that_is_precise(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = np.sort(rng.integers(0, 6, rng.integers(0, 15)))[::-1].astype(np.float64)  # many are equal
    hits = rng.random(len(scores)) < 0.7
    ranked = ClassList(scores, hits, int(hits.sum() + rng.integers(0, 4)))
    cuts = [math.inf, *np.unique(ranked.scores).tolist()]
    assert ranked.cost(cheapest(ranked)) == min(ranked.cost(cut) for cut in cuts)
    counts = {cut: ranked.at(cut) for cut in cuts[1:]}
    enough = [cut for cut, (found, alarms) in counts.items() if found / (found + alarms) >= PRECISION]
    assert precise(ranked) == min(enough, default=math.inf)
    assert ranked.cost(math.inf) == ranked.objects * MISS


@pytest.mark.parametrize("name", [*CROSS_ENTROPIES, *OTHERS])
def test_every_loss_learns_which_windows_show_what(name: str) -> None:
    of = Set("none", ("train",), 16, steps=60, images=8, map_steps=60, map_images=8)
    trial = heads.Trial(of, Parts(*standardised(pictures(40), pictures(20, 1), []), CLASSES))
    before = trial.new_head(0, 0)
    after = trial.fit(before, heads.Point(name, 0.03, units=0), "train", 0)
    assert trial.measure(after, "held_out")["voc12"][0] > trial.measure(before, "held_out")["voc12"][0]


def test_a_long_tail_takes_nothing_from_the_most_frequent_classes() -> None:
    images = [i._replace(target={**i.target, "labels": torch.tensor([n % 8] * 2)}) for n, i in enumerate(pictures(200))]
    tail = long_tailed(images, 8)
    gone, labels = (torch.cat([i.target[key] for i in tail]) for key in ("difficult", "labels"))
    shares = [gone[labels == c].float().mean().item() for c in range(8)]
    assert shares[:4] == [0.0] * 4
    assert all(0.2 < share < 0.8 for share in shares[4:])


def test_yolos_own_detections_are_bounded_and_rescored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("IMAGES_PER_STEP", 4), ("EPOCHS", 1), ("MAP_STEPS", 1), ("RATES", (1e-3,))):
        monkeypatch.setattr(own_logits, name, value)
    images, file = pictures(10), tmp_path / "runs.jsonl"
    logits = list(torch.randn(10, 16, own_logits.CLASSES, generator=torch.Generator().manual_seed(0)))
    values = [value["coco"] for value in own_logits.bounds(images, logits).values()]
    assert (values[0], values[-1]) == (min(values), max(values))
    found = [own_logits.detect(*pair) for pair in zip(images, logits, strict=True)]
    for image, scores in zip(found, own_logits.Rescorer().eval()(found), strict=True):
        assert torch.equal(image.logits, scores)  # a new network changes no score
    own_logits.rescore(found, found[:4], file, [0])
    page = own_logits.page(file)
    assert all(f"| {way} |" in page for way in ("as it is", "regressed", "coco after regressed"))


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few images of the packaged detector, and few steps."""
    monkeypatch.setattr(new_head, "SIZES", {"train": 8, "val": 4, "test": 4})
    monkeypatch.setattr(new_head, "STEPS", 3)
    monkeypatch.setattr(new_head, "MAP_STEPS", 1)
    for module in (endless_ways, where):
        monkeypatch.setattr(module, "SEEDS", (0,))
    new_head.pictures.cache_clear()
    yield
    new_head.pictures.cache_clear()


@pytest.mark.usefixtures("small_demo")
def test_a_new_head_of_the_packaged_detector_is_chosen_on_val(tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    new_head.main(["choose", "--labels", "soft", "--out", str(out)])
    tried = read_lines(out)
    assert len(tried) == len(new_head.STARTS) + sum(map(len, new_head.RATES.values()))
    new_head.main(["final", "--labels", "soft", "--seeds", "3", "--out", str(out)])
    final = read_lines(out)[len(tried) :]
    assert [run["arm"] for run in final] == ["start", *new_head.RATES]
    for run in final:
        own = [t for t in tried if t["arm"] == run["arm"]]
        assert run["rate"] == max(own, key=lambda t: t["val"]["coco"])["rate"]
    assert "| then 400 more of it | soft |" in new_head.page(out)
    plans = [new_head.Point("hard", arm, 1e-3).plan for arm in new_head.RATES]
    assert len({plan.steps * plan.images for plan in plans}) == 1


@pytest.mark.usefixtures("small_demo")
def test_ways_and_places_of_the_packaged_detector_go_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = {"memory": endless_ways.Way(2, 4, memory=4), "both": endless_ways.Way(2, 4, stock=1.0, from_random=True)}
    monkeypatch.setattr(endless_ways, "WAYS", some)
    for _ in range(2):
        endless_ways.main(["--out", str(tmp_path / "ways.jsonl")])
    assert [line["way"] for line in read_lines(tmp_path / "ways.jsonl")] == ["cross-entropy", *some]
    monkeypatch.setattr(where, "PLACES", {axis: [where.Place(4, 8, wrong=1.0)] for axis in where.PLACES})
    where.main(["run", "--out", str(tmp_path / "where.jsonl")])
    assert [line["axis"] for line in read_lines(tmp_path / "where.jsonl")] == list(where.PLACES)
    right, wrong = (where.training_images(where.Place(images=8, wrong=share)) for share in (0.0, 1.0))
    for a, b in zip(right, wrong, strict=True):
        assert bool((a.target["labels"] != b.target["labels"]).all())


def test_fine_tunings_on_blood_cells_go_on_record_once(tmp_path: Path) -> None:
    images, file = pictures(16), tmp_path / "runs.jsonl"
    parts = finetune_bccd.Parts(images[:8], images[8:12], images[12:], CLASSES)
    budget = {"steps": 2, "images_per_step": 4, "rates": [1e-3], "stock_rates": [1e-3], "seeds": [0, 1], "folds": 2}
    for _ in range(2):
        finetune_bccd.one_start(parts, 3, "coco", 5, tmp_path / "heads", file, **budget)
    all_of, half = load_runs(file, "final")
    assert [(run["held_out"], run["images"]) for run in (all_of, half)] == [("all", 4), ("half", 2)]
    for way, found in all_of["ways"].items():  # the same heads, so the same numbers on test images
        assert found["test"] == half["ways"][way]["test"]
        assert f"| {way} |" in finetune_bccd_table.page(file)
