"""Masks, keypoints and oriented boxes of `shapes` agree with each other and with the boxes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stepgrad.data import ShapesDataset
from stepgrad.errors import ConfigError
from stepgrad.overlaps import Rotated


@pytest.mark.parametrize("index", range(12))
def test_shapes_agree_with_their_boxes(index: int) -> None:
    target = ShapesDataset("train", length=20, task="masks").target(index)
    masks, boxes = target["masks"], target["boxes"]
    for mask, (x1, y1, x2, y2) in zip(masks, boxes.long().tolist(), strict=True):
        assert mask[y1:y2, x1:x2].sum() == mask.sum() > 0
        assert mask[y1].any() and mask[y2 - 1].any() and mask[:, x1].any() and mask[:, x2 - 1].any()  # noqa: PT018
    assert target["area"].tolist() == masks.sum(dim=(1, 2)).tolist()
    assert int(masks.sum(dim=0).max()) <= 1  # what one hides, another does not show
    oriented = ShapesDataset("train", length=20, task="oriented").target(index)["oriented"]
    around = Rotated().boxes(Rotated().windows(oriented, "boxes"))
    for mask, (cx, cy, w, h, angle), box in zip(masks.numpy(), oriented.tolist(), around, strict=True):
        rows, columns = np.nonzero(mask)
        x, y = columns + 0.5 - cx, rows + 0.5 - cy
        along, across = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
        assert abs(along).max() <= w / 2
        assert abs(across).max() <= h / 2
        assert w * h <= (box[2] - box[0]) * (box[3] - box[1]) + 1e-6
        upright = (columns.max() + 1 - columns.min()) * (rows.max() + 1 - rows.min())
        assert w * h <= upright + 1e-6


@pytest.mark.parametrize("index", range(6))
def test_keypoints_lie_on_the_shape_and_are_seen_where_its_mask_is(index: int) -> None:
    target = ShapesDataset("val", length=20, task="keypoints").target(index)
    masks = ShapesDataset("val", length=20, task="masks").target(index)["masks"]
    assert target["keypoints"].shape == (len(masks), 4, 3)
    for mask, points in zip(masks, target["keypoints"], strict=True):
        columns, rows = points[:, 0].long(), points[:, 1].long()
        assert torch.equal(mask[rows, columns], points[:, 2] == 2)
        top, right, bottom, left = points[:, :2]
        assert top[1] <= bottom[1]
        assert left[0] <= right[0]


def test_boxes_alone_are_the_default() -> None:
    assert set(ShapesDataset("train", length=1).target(0)) == {
        "boxes",
        "labels",
        "difficult",
        "iscrowd",
        "area",
        "image_id",
    }
    with pytest.raises(ConfigError, match="masks"):
        ShapesDataset("train", task="mask")
