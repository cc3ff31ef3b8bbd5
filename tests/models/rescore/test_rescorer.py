"""`sg.Rescorer`: what it may change, what it finds, and what it keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import stepgrad as sg
from stepgrad.errors import ConfigError, DataError, InputError
from stepgrad.models.rescore.ways import Setting, settings_of
from stepgrad.overlaps.masks import coco_masks
from tests.models.rescore.worlds import CLASSES, shorten, world

PLAIN = [
    Setting("quality", 1e-2, "fit", 0.1, alpha=2.0),
    Setting("context", 1e-2, "hits"),
    Setting("context", 1e-2, "best"),
    Setting("metric", 1e-2),
    Setting("metric_after", 1e-2, start=Setting("context", 1e-2, "hits")),
    Setting("metric_after", 1e-2, start=Setting("quality", 1e-2, "fit", alpha=0.5)),
]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)


def map_of(detections: Any, targets: Any) -> float:
    evaluator = sg.Evaluator(CLASSES, "coco")
    evaluator.update(detections, targets)
    return evaluator.compute().map


@pytest.fixture(scope="module")
def fitted() -> sg.Rescorer:
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch, steps=150)
        detections, targets, features = world(90, seed=0)
        return sg.Rescorer(CLASSES).fit(detections, targets, features)


def test_a_feature_that_knows_the_fit_is_found_and_helps_on_new_images(fitted: sg.Rescorer) -> None:
    detections, targets, features = world(90, seed=1)
    better = fitted.apply(detections, features)
    assert fitted.way != "own"
    assert fitted.sentence.startswith("Scores follow ")
    assert map_of(better, targets) > map_of(detections, targets) + 0.1
    assert [t.way for t in fitted.trials] == ["own", "quality", "context", "metric", "metric_after"]
    chosen = next(t for t in fitted.trials if t.way == fitted.way)
    assert chosen.interval[0] > 0.0
    assert chosen.interval[0] <= chosen.difference <= chosen.interval[1]


def test_own_scores_are_kept_where_objects_have_nothing_to_do_with_detections() -> None:
    detections, _, _ = world(60, seed=0)
    _, targets, _ = world(60, seed=5)
    rescorer = sg.Rescorer(CLASSES).fit(detections, targets)
    assert rescorer.way == "own"
    assert "own scores are kept" in rescorer.sentence
    for before, after in zip(detections, rescorer.apply(detections), strict=True):
        assert torch.equal(before["scores"], after["scores"])


@pytest.mark.parametrize("setting", PLAIN, ids=lambda s: f"{s.way}-{s.labels}{s.start.way if s.start else ''}")
def test_only_scores_change_and_stay_probabilities(setting: Setting) -> None:
    detections, targets, _ = world(12, seed=2)
    detections[0]["note"] = "kept"
    rescorer = sg.Rescorer(CLASSES).fit_way(detections, targets, setting)
    better = rescorer.apply(detections)
    for before, after in zip(detections, better, strict=True):
        assert set(after) == set(before)
        assert all(after[name] is before[name] for name in before if name != "scores")
        assert bool(((after["scores"] >= 0) & (after["scores"] <= 1)).all())
    assert any(not torch.equal(a["scores"], b["scores"].double()) for a, b in zip(better, detections, strict=True))


def test_a_quality_only_lowers_scores() -> None:
    detections, targets, _ = world(12, seed=2)
    rescorer = sg.Rescorer(CLASSES).fit_way(detections, targets, PLAIN[0])
    for before, after in zip(detections, rescorer.apply(detections), strict=True):
        assert bool((after["scores"] <= before["scores"].double() * (1 + 1e-6)).all())


@pytest.mark.parametrize("setting", PLAIN[:1] + PLAIN[3:4], ids=["product", "sum"])
def test_an_untrained_network_keeps_the_order(setting: Setting) -> None:
    detections, targets, _ = world(12, seed=2)
    rescorer = sg.Rescorer(CLASSES).fit_way(detections, targets, replace(setting, rate=0.0))
    for before, after in zip(detections, rescorer.apply(detections), strict=True):
        assert torch.equal(before["scores"].argsort(), after["scores"].argsort())


def test_images_do_not_know_of_each_other_and_detections_have_no_order() -> None:
    detections, targets, _ = world(12, seed=3)
    rescorer = sg.Rescorer(CLASSES).fit_way(detections, targets, PLAIN[1])
    together = [image["scores"] for image in rescorer.apply(detections)]
    turned = [{name: rows.flip(0) for name, rows in image.items()} for image in detections]
    for one, scores, other in zip(detections, together, rescorer.apply(turned), strict=True):
        assert torch.equal(rescorer.apply([one])[0]["scores"], scores)
        assert torch.allclose(other["scores"].flip(0), scores, rtol=1e-5)  # sums of float32 in another order


def test_the_same_seed_gives_the_same_scores() -> None:
    detections, targets, _ = world(12, seed=3)
    one, two = (sg.Rescorer(CLASSES).fit_way(detections, targets, PLAIN[4], seed=7).apply(detections) for _ in range(2))
    assert all(torch.equal(a["scores"], b["scores"]) for a, b in zip(one, two, strict=True))


def test_a_saved_rescorer_comes_back_to_the_last_bit(fitted: sg.Rescorer, tmp_path: Path) -> None:
    detections, _, features = world(10, seed=4)
    fitted.save(tmp_path / "r.json")
    back = sg.Rescorer.load(tmp_path / "r.json")
    assert back.sentence == fitted.sentence
    assert back.table == fitted.table
    for a, b in zip(fitted.apply(detections, features), back.apply(detections, features), strict=True):
        assert torch.equal(a["scores"], b["scores"])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "stepgrad rescorer 1"}'])
def test_a_damaged_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(DataError, match=r"r\.json"):
        sg.Rescorer.load(tmp_path / "r.json")


@pytest.mark.parametrize("setting", [PLAIN[0], PLAIN[4]], ids=["product", "sum"])
def test_onnx_and_module_say_the_same_for_any_number_of_detections(setting: Setting, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    detections, targets, features = world(12, seed=3)
    rescorer = sg.Rescorer(CLASSES).fit_way(detections, targets, setting, features)
    rescorer.to_onnx(tmp_path / "r.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "r.onnx", providers=["CPUExecutionProvider"])
    for count in (6, 1, 0):
        image = {name: rows[:count] for name, rows in detections[0].items()}
        expected = rescorer.apply([image], [features[0][:count]])[0]["scores"].double()
        given = (image["boxes"], image["scores"], image["labels"], features[0][:count])
        inputs = dict(zip(["boxes", "scores", "labels", "more"], (rows.numpy() for rows in given), strict=True))
        exported = torch.from_numpy(session.run(None, inputs)[0]).double()
        with torch.no_grad():
            said = rescorer.torch_module(*given).double()
        assert torch.allclose(exported, expected, rtol=1e-4, atol=1e-6)
        assert torch.allclose(said, expected, rtol=1e-4, atol=1e-6)


def masks_of(boxes: Tensor) -> Tensor:
    place = torch.arange(140) + 0.5
    x1, y1, x2, y2 = boxes[:, :, None].unbind(1)
    return ((place >= y1) & (place < y2))[:, :, None] & ((place >= x1) & (place < x2))[:, None, :]


def test_dense_masks_and_run_lengths_give_the_same_scores() -> None:
    detections, targets, _ = world(10, seed=6)
    dense = [{**image, "masks": masks_of(image["boxes"])} for image in detections]
    objects = [{**image, "masks": masks_of(image["boxes"])} for image in targets]
    runs = [{**image, "masks": coco_masks(image["masks"])} for image in dense]
    run_objects = [{**image, "masks": coco_masks(image["masks"])} for image in objects]
    scores = [
        sg.Rescorer(CLASSES, task="masks").fit_way(found, wanted, PLAIN[4]).apply(found)
        for found, wanted in ((dense, objects), (runs, run_objects))
    ]
    for a, b in zip(*scores, strict=True):
        assert torch.allclose(a["scores"], b["scores"], rtol=1e-4)


def test_poses_are_rescored_by_their_confidences() -> None:
    detections, targets, _ = world(10, seed=6)
    for image in (*detections, *targets):
        corners = image["boxes"].reshape(-1, 2, 2)
        image["keypoints"] = torch.cat([corners, torch.full((len(corners), 2, 1), 2.0)], dim=2)
    rescorer = sg.Rescorer(CLASSES, task=sg.overlaps.Keypoints([0.1, 0.1]))
    better = rescorer.fit_way(detections, targets, PLAIN[1]).apply(detections)
    assert "pose_mean" in rescorer.more
    assert all(bool(torch.isfinite(image["scores"]).all()) for image in better)


def test_class_scores_are_used_where_there_are_some() -> None:
    detections, targets, _ = world(10, seed=6)
    for image in detections:
        image["class_scores"] = torch.rand(len(image["scores"]), CLASSES)
    rescorer = sg.Rescorer(CLASSES).fit_way(detections, targets, PLAIN[1])
    assert "margin" in rescorer.more
    rescorer.apply(detections)


def test_images_without_detections_or_objects_are_ordinary() -> None:
    detections, targets, _ = world(40, seed=6)
    nothing = {"boxes": torch.zeros(0, 4), "scores": torch.zeros(0), "labels": torch.zeros(0, dtype=torch.long)}
    detections[0], targets[1] = nothing, {name: rows[:0] for name, rows in targets[1].items()}
    rescorer = sg.Rescorer(CLASSES).fit(detections, targets)
    assert len(rescorer.apply(detections)[0]["scores"]) == 0
    assert rescorer.apply([]) == []


@pytest.mark.parametrize("images", [0, 1, 5])
def test_too_few_images_keep_the_own_scores_and_say_so(images: int) -> None:
    detections, targets, _ = world(images, seed=6)
    rescorer = sg.Rescorer(CLASSES).fit(detections, targets)
    assert rescorer.way == "own"
    if images:
        assert "too few" in rescorer.sentence
        assert rescorer.apply(detections)[0]["scores"] is detections[0]["scores"]


def test_logits_stay_logits() -> None:
    detections, targets, _ = world(12, seed=2)
    for image in detections:
        image["scores"] = image["scores"].logit() * 3
    rescorer = sg.Rescorer(CLASSES).fit_way(detections, targets, replace(PLAIN[3], rate=0.0))
    for before, after in zip(detections, rescorer.apply(detections), strict=True):
        assert torch.allclose(before["scores"].double(), after["scores"], rtol=1e-5)


def test_bad_input_is_named() -> None:
    detections, targets, features = world(12, seed=2)
    rescorer = sg.Rescorer(CLASSES)
    with pytest.raises(InputError, match="fitted"):
        rescorer.apply(detections)
    with pytest.raises(ConfigError, match="own scores"):
        _ = rescorer.torch_module
    with pytest.raises(InputError, match="as many preds as targets"):
        rescorer.fit(detections, targets[1:])
    with pytest.raises(InputError, match="features of 12 images"):
        rescorer.fit(detections, targets, features[1:])
    with pytest.raises(InputError, match="image 3: expected features of shape"):
        rescorer.fit(detections, targets, [own[: 5 if i == 3 else None] for i, own in enumerate(features)])
    rescorer.fit_way(detections, targets, PLAIN[1], features)
    with pytest.raises(InputError, match="features="):
        rescorer.apply(detections)
    with pytest.raises(ConfigError, match="task"):
        sg.Rescorer(CLASSES, task="segments")
    with pytest.raises(InputError, match="fit_several"):
        rescorer.apply_several([detections])


def test_every_way_tries_as_many_trainings() -> None:
    counts = {way: len(settings_of(way, PLAIN[:1])) for way in ("quality", "context", "metric", "metric_after")}
    assert set(counts.values()) == {4}
