"""YOLO for masks, poses and oriented boxes: mAP compares what the model predicts, as ultralytics' validation does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

import stepgrad as sg
from stepgrad.errors import ConfigError
from stepgrad.models.switch import FINE_TUNING
from stepgrad.models.yolo.heads import losses_of_heads, read_heads, targets_of
from stepgrad.models.yolo.loss import WithMAP, make_switches
from stepgrad.models.yolo.settings import NAME, YoloSettings, as_text, from_text
from stepgrad.models.yolo.shapes import upright
from tests.models.yolo.small import EASY, SIZE, batch_of, needs_ultralytics, network, rows_of, train, yolo_folder

pytestmark = needs_ultralytics
K = 3
MODELS = {"masks": "yolo11n-seg.yaml", "keypoints": "yolo11n-pose.yaml", "oriented": "yolo11n-obb.yaml"}
FOLDERS = {"masks": "segment", "keypoints": "pose", "oriented": "obb"}
TASKS = list(MODELS)
NO_PART = -1e4  # a score below any floor


def batch_for(task: str) -> dict[str, Tensor]:
    batch, g = batch_of(), torch.Generator().manual_seed(5)
    G = len(batch["cls"])
    if task == "masks":
        batch["masks"] = torch.zeros(2, SIZE // 4, SIZE // 4)
        centre, sides = (batch["bboxes"] * SIZE / 4).split(2, dim=1)
        low, high = (centre - sides / 2).int().tolist(), (centre + sides / 2).int().tolist()
        for n, ((x1, y1), (x2, y2)) in enumerate(zip(low, high, strict=True)):
            batch["masks"][n // 4, y1 : y2 - 1, x1:x2] = (
                n % 4 + 1
            )  # objects of an image are numbered, later ones in front
    elif task == "keypoints":
        batch["keypoints"] = torch.cat([torch.rand(G, 2, 2, generator=g), torch.ones(G, 2, 1)], dim=2)
        batch["keypoints"][0, 1, 2] = 0
        batch["keypoints"][1, :, 2] = 0
    else:
        batch["bboxes"] = torch.cat([batch["bboxes"], torch.rand(G, 1, generator=g) * 3 - 0.7], dim=1)
        batch["bboxes"][3, 3] = 1 / SIZE  # too small for the stock loss
    return batch


def outputs(detector: Any, pixels: Tensor) -> tuple[Any, Any]:
    """What it says in training, and at inference of the same: batch normalisation uses its means for both."""
    detector.eval()
    with torch.no_grad():
        inference = detector(pixels)
    detector.model[-1].training = True
    raw = detector(pixels)
    return raw, inference


def shapes_by_hand(task: str, inference: Any, i: int) -> Tensor:
    """Masks (A, h, w), poses (A, 2, 3) or oriented boxes (A, 5) of an image."""
    with_prototypes = isinstance(inference[0], tuple)  # before 8.4, prototypes came with what training gets
    found = inference[0][0] if with_prototypes else inference[0]
    rows = found[i].T
    boxes, rest = rows[:, :4], rows[:, 4 + K :]
    if task == "keypoints":
        return rest.reshape(-1, 2, 3)
    if task == "oriented":
        return torch.cat([boxes, rest], dim=1)
    prototypes = inference[0][1] if with_prototypes else inference[1][-1]
    mask = torch.einsum("an,nhw->ahw", rest, prototypes[i]) > 0
    low, high = ((boxes[:, :2] + sign * boxes[:, 2:] / 2) / 4 for sign in (-1, 1))
    place = torch.stack(torch.meshgrid(torch.arange(SIZE // 4), torch.arange(SIZE // 4), indexing="xy"), dim=-1)
    inside = (place >= low[:, None, None]) & (place < high[:, None, None])
    return mask & inside.all(dim=-1)


def by_hand(task: str, inference: Any, batch: dict[str, Tensor], i: int) -> Tensor:
    """(A, G) overlaps by stepgrad's own functions."""
    shapes, mine = shapes_by_hand(task, inference, i), batch["batch_idx"] == i
    if task == "masks":
        return sg.overlaps.Masks()(shapes, batch["masks"][i] == torch.arange(1, 5)[:, None, None])
    if task == "oriented":
        large = (batch["bboxes"][mine][:, 2:4] * SIZE >= 2).all(dim=1)
        scale = torch.tensor([SIZE, SIZE, SIZE, SIZE, 1])
        return sg.overlaps.ProbIoU()(shapes, (batch["bboxes"][mine] * scale)[large])
    points = batch["keypoints"][mine] * torch.tensor([SIZE, SIZE, 1])
    target = {"keypoints": points, "boxes": batch["bboxes"][mine].repeat(1, 1)}
    target["area"] = (target["boxes"][:, 2:] * SIZE).prod(dim=1) * 0.53
    labelled = (points[:, :, 2] > 0).any(dim=1)
    return sg.overlaps.Keypoints([0.5, 0.5])(shapes, target) * labelled


@pytest.mark.parametrize("task", TASKS)
def test_overlaps_equal_those_of_the_models_inference(task: str) -> None:
    detector, batch = network(MODELS[task]), batch_for(task)
    raw, inference = outputs(detector, batch["img"])
    heads = read_heads(raw, losses_of_heads(detector.init_criterion()), (SIZE, SIZE), task)
    (head,), targets = heads.values(), targets_of(batch, torch.float64, task)
    for i, target in enumerate(targets):
        A = head.boxes.shape[1]
        assert head.compare is not None
        found, expected = head.compare(i, torch.arange(A), target), by_hand(task, inference, batch, i)
        assert found.shape == expected.shape == (A, len(target["labels"]))
        close = (found - expected).abs() <= 1e-5 * (1 + expected)
        assert close.float().mean() > (0.98 if task == "masks" else 0.9999)  # pixels at the level go either way
        assert expected.max() > 0.05


@pytest.mark.parametrize("task", TASKS)
def test_mAP_adds_the_gradient_of_MAPLoss_called_with_these_overlaps(task: str) -> None:
    detector, batch = network(MODELS[task]), batch_for(task)
    detector.args.iou = 0.3
    raw, inference = outputs(detector, batch["img"])
    settings = YoloSettings(weight=1.0, candidates=10_000, task=task, loss={**FINE_TUNING, **EASY})
    stock = detector.init_criterion()
    switches = make_switches(settings, stock, detector.args)
    switches[""].enabled = True
    criterion = WithMAP(stock, switches, "")
    (head,) = read_heads(raw, losses_of_heads(stock), (SIZE, SIZE), task).values()
    with_map, without = (
        torch.autograd.grad(one(raw, batch)[0].sum(), head.sources, retain_graph=True) for one in (criterion, stock)
    )
    targets = targets_of(batch, torch.float64, task)
    A = head.boxes.shape[1]
    is_box = (head.boxes[..., 2:] > head.boxes[..., :2]).all(dim=-1)
    scores = [torch.where(is_box[i, :, None], logsigmoid(head.logits[i].T), NO_PART) for i in range(2)]
    tables = [head.compare(i, torch.arange(A), target).clamp(0, 1) for i, target in enumerate(targets)]
    more = {}
    if task == "oriented":
        every = [shapes_by_hand(task, inference, i) for i in range(2)]
        more["neighbours"] = [sg.overlaps.ProbIoU()(one, one) for one in every]
    loss_fn = sg.MAPLoss(K, nms_threshold=0.3, score_floor=NO_PART / 10, **{**FINE_TUNING, **EASY})
    loss = loss_fn(
        scores, [b * c[:, None] for b, c in zip(head.boxes, is_box, strict=True)], targets, overlaps=tables, **more
    )
    expected = torch.autograd.grad(loss, head.sources)
    assert switches[""].metrics["map"] == pytest.approx(loss_fn.metrics["map"], rel=1e-9)
    assert 0 < loss_fn.metrics["map"] < 1
    for a, b, by_itself in zip(with_map, without, expected, strict=True):
        torch.testing.assert_close(a - b, 2 * by_itself, rtol=1e-6, atol=1e-9)


def test_masks_of_objects_of_their_own_equal_numbered_ones() -> None:
    batch = batch_for("masks")
    numbered = [target["masks"] for target in targets_of(batch, torch.float64, "masks")]
    apart = {**batch, "masks": torch.cat(numbered).float()}
    again = [target["masks"] for target in targets_of(apart, torch.float64, "masks", numbered=False)]
    assert all(torch.equal(a, b) for a, b in zip(numbered, again, strict=True))


def test_upright_boxes_are_around_the_corners() -> None:
    oriented = torch.rand(20, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 4
    expected = sg.overlaps.Rotated().boxes(sg.overlaps.Rotated().windows(oriented, "boxes"))
    torch.testing.assert_close(upright(oriented), torch.from_numpy(expected))


@pytest.mark.parametrize("task", TASKS)
def test_training_for_the_task_runs_and_logs_its_mAP(task: str, tmp_path: Path) -> None:
    from stepgrad.models.yolo import MAPTrainer

    data = yolo_folder(tmp_path / "data", FOLDERS[task], images=4)
    trainer = MAPTrainer.options(task=task, start=0, weight=0.5, protocol="voc12", match_threshold=0.001)
    yolo = train(data, tmp_path / "run", trainer, MODELS[task], epochs=1)
    assert yolo.trainer.map_loss_switch.task == task
    assert yolo.trainer.map_loss_switch.metrics["candidates"] > 0
    assert all(0 <= row[f"train/{NAME}"] <= 1 for row in rows_of(tmp_path / "run"))


def test_a_task_that_the_model_is_not_for_is_refused() -> None:
    from stepgrad.models.yolo import MAPTrainer

    with pytest.raises(ConfigError, match=r"\['boxes', 'masks'\] for a YOLO for 'segment' but got 'keypoints'"):
        MAPTrainer.options(task="keypoints")(overrides={"task": "segment"})
    with pytest.raises(ConfigError, match="oriented"):
        MAPTrainer.options(task="boxes")(overrides={"task": "obb"})


def test_the_task_goes_with_the_options_into_checkpoints() -> None:
    assert from_text(as_text(YoloSettings(task="masks"))).task == "masks"
