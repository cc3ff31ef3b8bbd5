"""What the validation of ultralytics counts, saved: its own files hold boxes that were cut and rounded after counting."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.errors import ConfigError, LikelyMistakeWarning
from stepgrad.models.yolo.corners import in_order
from stepgrad.models.yolo.counted_shapes import CountedShapes, boxes_around, corners_in_original
from stepgrad.processes import world

FOLDER = "counted"
TASKS = ("detect", "segment", "pose", "obb")
_UNCUT_SINCE = (
    8,
    3,
    168,
)  # before, boxes were cut at the edges of the original image, and counted there; no shapes then


def save_counted(model: Any) -> None:
    """Let `model.val(...)` also save what it counts, as two files in `counted` in the folder of its results.

    `detections.json` has the detections, neither cut at the edges of the image nor rounded; `annotations.json` has the
    objects as ultralytics read them. Both are in pixels of the original images. Detections come in the order in which
    ultralytics ranks them, which decides on equal scores. Masks are there twice: at the size of their image (`segmentation`), and
    as they were compared (`counted`).

    Args:
        model: a YOLO of ultralytics, for detection, segmentation, poses or oriented boxes. Before 8.3.168 it saves upright
            boxes only, and refuses models of oriented ones.

    For `from ultralytics import YOLO` and `model = YOLO("best.pt")`:

        save_counted(model)
        model.val(data="my.yaml")
        # stepgrad evaluate --detections runs/detect/val/counted/detections.json --data runs/detect/val/counted/annotations.json
        #     --compare ultralytics ultralytics-json coco
        # with --task masks, keypoints or oriented for the other models
    """
    known = [task for task in TASKS if task != "obb" or not _cuts_boxes()]
    if model.task not in known:
        raise ConfigError(f"Expected a YOLO for one of {known} but this one is for {model.task!r}.")
    model.add_callback("on_val_start", _watch)
    model.add_callback("on_val_end", _save)


@dataclass
class Counted:
    """What one validation has counted so far, image by image."""

    files: list[Path] = field(default_factory=list)
    images: list[dict[str, Any]] = field(default_factory=list)
    found: list[dict[str, Tensor]] = field(default_factory=list)
    there: list[dict[str, Tensor]] = field(default_factory=list)
    ranked: NDArray[np.int64] | None = None
    """All detections as ultralytics ranks them: its sort is not stable, so nothing else tells the order of equal scores."""
    shapes: CountedShapes | None = None
    """Masks, poses or oriented boxes; None: boxes are all there is."""

    def add(self, i: int, detections: Mapping[str, Tensor], batch: Mapping[str, Any], pred: Any = None) -> None:
        """Add image `i` of a batch; `pred` has the shapes of its detections."""
        of_image = batch["batch_idx"] == i
        found, there, resizing = _in_original(i, detections["boxes"], batch["bboxes"][of_image], batch)
        found = in_order(found)
        height, width = (int(side) for side in batch["ori_shape"][i])
        self.files.append(Path(batch["im_file"][i]))
        self.images.append({"file_name": batch["im_file"][i], "width": width, "height": height, **resizing})
        if self.shapes is not None:
            self.shapes.add(i, pred, batch, resizing["resizing"])
        self.found.append({**detections, "boxes": found})
        self.there.append({"boxes": there, "labels": batch["cls"][of_image].view(-1).long()})

    def write(self, folder: Path, root: Path, class_names: Sequence[str]) -> None:
        """Write both files; `root` is the folder of the data."""
        from stepgrad.data.write_detections import write_coco_annotations, write_coco_results  # needs Pillow

        ids = _ids(self.files, root)
        images = [{"id": image_id, **image} for image_id, image in zip(ids, self.images, strict=True)]
        there, found, sigmas = ([], [], None) if self.shapes is None else self.shapes.fields()
        write_coco_annotations(folder / "annotations.json", self.there, images, class_names, there, sigmas)
        write_coco_results(folder / "detections.json", self.found, ids, order=self.ranked, more=found)


def _in_original(
    i: int, boxes: Tensor, objects: Tensor, batch: Mapping[str, Any]
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Detections and objects of an image in its own pixels, and how it was resized if they were counted in the resized one."""
    from ultralytics.utils import ops

    shape = batch["img"].shape[2:]
    in_pixels = torch.tensor(shape, device=objects.device)[[1, 0, 1, 0]]
    oriented = boxes.shape[1] == 5
    if not oriented:
        objects = ops.xywh2xyxy(objects) * in_pixels
    if _cuts_boxes():
        of_image = batch["ori_shape"][i], batch["ratio_pad"][i]
        found, there = (ops.scale_boxes(shape, b.clone(), *of_image) for b in (boxes, objects))
        return found, there, {}
    (scale_y, scale_x), (right, down) = batch["ratio_pad"][i]
    resizing = [float(number) for number in (scale_x, scale_y, right, down)]
    if oriented:
        objects = torch.cat([objects[:, :4] * in_pixels, objects[:, 4:]], dim=1)
        corners = [corners_in_original(b, np.array(resizing)) for b in (boxes, objects)]
        return boxes_around(corners[0]), boxes_around(corners[1]), {"resizing": resizing}
    scale, shift = (torch.tensor([x, y, x, y], dtype=torch.float64) for x, y in ((scale_x, scale_y), (right, down)))
    # In double precision the way back to the numbers that were counted is exact.
    found, there = ((b.cpu().double() - shift) / scale for b in (boxes, objects))
    return found, there, {"resizing": resizing}


def _cuts_boxes() -> bool:
    """Whether this version cuts boxes before it counts them."""
    from ultralytics import __version__

    return tuple(map(int, __version__.split(".")[:3])) < _UNCUT_SINCE


def _ids(files: Sequence[Path], root: Path) -> list[str]:
    """Ids as data.yaml's images have them here: names of files, or paths where names repeat."""
    stems = [file.stem for file in files]
    if len(set(stems)) == len(stems):
        return stems
    return [Path(os.path.relpath(file, root)).with_suffix("").as_posix() for file in files]


def _watch(validator: Any) -> None:
    """Keep what a validation counts from now on."""
    of_boxes = validator.args.task == "detect" or _cuts_boxes()
    counted = Counted(shapes=None if of_boxes else CountedShapes(validator))
    stock = type(validator).update_metrics

    def update_metrics(preds: Any, batch: Mapping[str, Any]) -> None:
        stock(validator, preds, batch)
        found = preds[0] if isinstance(preds, tuple) else preds  # older versions have prototypes of masks beside them
        for i, pred in enumerate(found):
            counted.add(i, columns_of(pred, one_class=validator.args.single_cls), batch, pred)

    def get_stats() -> Any:
        lists = validator.metrics.stats if hasattr(validator.metrics, "stats") else validator.stats
        scores = [part.cpu().numpy() if isinstance(part, Tensor) else part for part in lists["conf"]]
        counted.ranked = np.argsort(-np.concatenate(scores)) if scores else None  # the very call of ultralytics
        return type(validator).get_stats(validator)

    validator.update_metrics = update_metrics
    validator.get_stats = get_stats
    validator.counted = counted


def columns_of(pred: Any, one_class: bool) -> dict[str, Tensor]:
    """The detections of an image: a dict, or in older versions a table."""
    if not isinstance(pred, Mapping):
        pred = {"bboxes": pred[:, :4], "conf": pred[:, 4], "cls": pred[:, 5]}
    labels = pred["cls"].long()
    return {
        "boxes": pred["bboxes"],
        "scores": pred["conf"].clone(),
        "labels": torch.zeros_like(labels) if one_class else labels,
    }


def _save(validator: Any) -> None:
    """Write what was counted, unless other processes counted a part of it."""
    if world() > 1:
        warnings.warn(
            "save_counted: several processes validate, and this one has counted only its part, so nothing is saved; "
            "call model.val() in a single process.",
            LikelyMistakeWarning,
            stacklevel=2,
        )
        return
    names = validator.names
    listed = [names[label] for label in range(len(names))]
    validator.counted.write(Path(validator.save_dir) / FOLDER, Path(validator.data["path"]), listed)
