"""The call as a whole: what comes out, what is kept in the folder, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import stepgrad as sg
from stepgrad.errors import ConfigError, InputError
from stepgrad.evaluation.class_result import best_cut
from stepgrad.models.held_out import as_used
from stepgrad.models.new_head import start as starting
from stepgrad.models.new_head.features import IMAGES_PER_FILE
from tests.models.new_head.small import QUICK, TRAIN, VAL, pairs
from tests.models.tiny import tiny_model


def run(model: nn.Module, out: Path | None = None, **changed: Any) -> Any:
    return sg.train_new_head(model, TRAIN, VAL, **{"num_classes": 3, "out": out, **QUICK, **changed})


class Counted(list[Any]):
    """Data that counts how often an image is read."""

    reads = 0
    stop_at: int | None = None

    def __getitem__(self, number: Any) -> Any:
        self.reads += 1
        if self.reads == self.stop_at:
            raise KeyboardInterrupt
        return super().__getitem__(number)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    out = tmp_path_factory.mktemp("run")
    return out, run(tiny_model("ssd"), out, class_names=["a", "b", "c"])


def test_the_model_detects_the_new_classes(done: tuple[Path, Any]) -> None:
    _, result = done
    model = result.model
    with as_used(model):
        found = model([VAL[0][0]])[0]
    assert result.names == {1: "a", 2: "b", 3: "c"}
    assert set(found["labels"].tolist()) <= set(result.names)
    assert len(found["boxes"]) > 0
    assert model.head.classification_head.num_columns == 4


def test_the_result_has_the_control_and_the_whole_model(done: tuple[Path, Any]) -> None:
    _, result = done
    assert list(result.tuned.ways) == ["start", "more of the usual loss", "mAP"]
    assert 0.0 <= result.whole <= 1.0
    assert "The model as a whole" in str(result)


def test_the_same_call_gives_the_same_model_without_reading_an_image_twice(done: tuple[Path, Any]) -> None:
    out, first = done
    counted, model = Counted(TRAIN), tiny_model("ssd")
    trained_before = {file.stat().st_mtime_ns for file in out.rglob("*.safetensors")}
    options = {"num_classes": 3, "class_names": ["a", "b", "c"], "out": out, **QUICK}
    again = sg.train_new_head(model, counted, VAL, **options)
    assert counted.reads == len(TRAIN)  # each once, for its fingerprint
    assert {file.stat().st_mtime_ns for file in out.rglob("*.safetensors")} == trained_before
    for one, other in zip(again.model.parameters(), first.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_everything_but_the_class_layer_is_as_it_was(done: tuple[Path, Any]) -> None:
    _, result = done
    stock = tiny_model("ssd").state_dict()
    for name, value in result.model.state_dict().items():
        if "classification_head" not in name:
            assert torch.equal(value, stock[name]), name
    assert result.model.training == tiny_model("ssd").training
    assert all(weights.requires_grad for weights in result.model.parameters())


def test_features_that_are_there_are_not_made_again(tmp_path: Path) -> None:
    many = Counted(pairs(IMAGES_PER_FILE + 3, seed=3))
    options = {"num_classes": 3, "out": tmp_path, "rounds": 1, **QUICK}
    many.stop_at = len(many) + IMAGES_PER_FILE + 2  # every image is read once before, for its fingerprint
    with pytest.raises(KeyboardInterrupt):
        sg.train_new_head(tiny_model("ssd"), many, VAL, **options)
    (kept,) = (tmp_path / "features").glob("train-*.safetensors")
    many.stop_at, many.reads = None, 0
    sg.train_new_head(tiny_model("ssd"), many, VAL, **options)
    assert many.reads == len(many) + 3
    assert kept.exists()


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(tiny_model("faster_rcnn")).tuned.report is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("family", ["retinanet", "fcos"])
def test_where_classes_have_a_sigmoid_each_labels_count_from_0(family: str) -> None:
    result = run(tiny_model(family))
    assert result.names == {0: "0", 1: "1", 2: "2"}
    assert result.model.head.classification_head.num_classes == 3


def test_fewer_classes_than_labels_are_refused() -> None:
    with pytest.raises(InputError, match=r"train image 0: expected labels in \[0, 2\) but got 2; they count from 0"):
        run(tiny_model("ssd"), num_classes=2)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"num_classes": None}, ConfigError, "Expected num_classes"),
        ({"class_names": ["a"]}, ConfigError, "as many class_names as num_classes, 3, but got 1"),
        ({"windows": 0}, ConfigError, "windows"),
        ({"start_rates": []}, ConfigError, "at least one of start_rates"),
        ({"refit": lambda images: None}, ConfigError, "leave it out"),
        ({"task": "masks"}, ConfigError, "Expected task to be one of"),
        ({"seeds": [0, 0]}, ConfigError, "seeds that differ"),
        ({"seed": "x"}, ConfigError, "seed to be a whole number"),
        ({"rates": []}, ConfigError, "at least one rate"),
        ({"step": 3}, ConfigError, "'step'"),
        ({"class_weights": [1.0]}, InputError, "class_weights"),
        ({"nms_threshold": 0.5}, ConfigError, "without nms_threshold"),
    ],
)
def test_a_wrong_option_is_refused_before_an_image_is_read(
    changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    counted = Counted(TRAIN)
    with pytest.raises(error, match=message):
        sg.train_new_head(tiny_model("ssd"), counted, VAL, **{"num_classes": 3, **QUICK, **changed})
    assert counted.reads == 0


def test_the_result_shows_what_reaches_the_score_of_best_f1(done: tuple[Path, Any]) -> None:
    _, result = done
    evaluator = sg.Evaluator(3, "voc12", result.class_names)
    kept = 0
    for image, target in VAL:
        with as_used(result.model):
            found = result.model([image])[0]
        shown = result.passes(found["labels"], found["scores"])
        kept += int(shown.sum())
        least = [result.thresholds.get(result.names[int(label)], 2.0) for label in found["labels"]]
        assert (found["scores"] >= torch.tensor(least)).tolist() == shown.tolist()
        evaluator.update(
            [{"boxes": found["boxes"], "scores": found["scores"], "labels": found["labels"] - 1}], [target]
        )
    rows = evaluator.compute().classes
    cuts = {row.name: best_cut(row.scores, row.verdicts[0], row.objects) for row in rows}
    assert result.thresholds == {name: cut.threshold for name, cut in cuts.items() if cut.threshold is not None}
    assert kept == sum(cut.passing for cut in cuts.values()) > 0
    assert all(f"{name} from {value:.3f}" in str(result) for name, value in result.thresholds.items())
    assert str(result).count("best F1") == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", ["ssd", "faster_rcnn"])
def test_half_precision_on_a_cpu_is_refused_with_the_way_out(family: str, dtype: torch.dtype) -> None:
    with pytest.raises(ConfigError, match=r"call model\.float\(\) first"):
        run(tiny_model(family).to(dtype))


def test_inference_mode_around_the_call_changes_nothing(done: tuple[Path, Any]) -> None:
    _, usual = done
    with torch.inference_mode():
        result = run(tiny_model("ssd"), class_names=["a", "b", "c"])
        assert torch.is_inference_mode_enabled()
    assert str(result) == str(usual)


def test_without_a_terminal_every_piece_of_work_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    run(tiny_model("ssd"), progress=True)
    told = capsys.readouterr().err
    for line in (
        "features of train images: 6 ...",
        "cross-entropy, rate 0.01, decay 0: 4 ...",
        "the model as a whole: 4 ...",
    ):
        assert line in told.splitlines()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "at least one image"),
        (iter(TRAIN), "a list or a dataset with a length"),
        ([TRAIN[0][0]], r"expected|Expected"),
        ([(TRAIN[0][0][0], TRAIN[0][1])], r"train image 0: expected a tensor \(3, H, W\)"),
        ([(TRAIN[0][0], {"boxes": TRAIN[0][1]["boxes"]})], r"'boxes' and 'labels' but got \['boxes'\]"),
    ],
)
def test_data_that_are_something_else_are_refused(data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sg.train_new_head(tiny_model("ssd"), data, VAL, num_classes=3, **QUICK)


def test_a_second_round_adds_windows_and_keeps_those_of_the_first(tmp_path: Path) -> None:
    run(tiny_model("ssd"), tmp_path)
    first = load_file(tmp_path / "features" / "train-000000.safetensors")
    second = load_file(tmp_path / "features" / "train-2-000000.safetensors")
    for n in range(len(TRAIN)):
        before, added = first[f"{n}.numbers"].tolist(), second[f"{n}.numbers"].tolist()
        assert len(before) == QUICK["windows"] + QUICK["others"]
        assert len(added) == QUICK["windows"]
        assert not set(before) & set(added)


def test_the_rates_it_has_of_its_own_train_too() -> None:
    own = {"start_rates", "weight_decays", "rates", "stock_rates"}
    options = {key: value for key, value in QUICK.items() if key not in own} | {"start_steps": 2, "steps": 1}
    result = sg.train_new_head(tiny_model("ssd"), TRAIN, VAL, num_classes=3, **options)
    assert all(torch.isfinite(weights).all() for weights in result.model.parameters())


def test_before_the_last_round_only_the_first_rate_and_decay_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    by_cross_entropy = starting.by_cross_entropy

    def watched(detector: Any, images: Any, task: Any, plans: Any, *more: Any) -> Any:
        tried.append([(plan.rate, plan.weight_decay) for plan in plans])
        return by_cross_entropy(detector, images, task, plans, *more)

    monkeypatch.setattr(starting, "by_cross_entropy", watched)
    run(tiny_model("ssd"), rounds=2, start_rates=[1e-2, 1e-3], weight_decays=[0.5, 0.1])
    assert tried == [[(1e-2, 0.5)], [(1e-2, 0.5), (1e-2, 0.1), (1e-3, 0.5), (1e-3, 0.1)]]
