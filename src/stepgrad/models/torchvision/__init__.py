"""torchvision's detectors, trained for mAP: `train_for_map(model)`, and the training loop stays as it is.

Faster, Mask and Keypoint R-CNN, RetinaNet, FCOS, SSD and SSDlite. What is known of each is in `families.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from torch import nn

from stepgrad.extras import need

need("torchvision", purpose="stepgrad.models.torchvision")

from torchvision.models.detection.rpn import RegionProposalNetwork

from stepgrad.errors import ConfigError, InputError
from stepgrad.losses.detection import DetectionLoss, MAPLoss
from stepgrad.metric.protocol import Protocol
from stepgrad.models.auto_weight import AutoWeight
from stepgrad.models.keep_best import keep_best
from stepgrad.models.specialised import Specialised, despecialise, specialise
from stepgrad.models.switch import NAME, loss_settings
from stepgrad.models.torchvision.dense import AnchorHead, DenseDetector
from stepgrad.models.torchvision.detector import DetectorSwitch, Selection
from stepgrad.models.torchvision.families import SUPPORTED, TwoStage, family_of
from stepgrad.models.torchvision.shaped import task_overlap
from stepgrad.models.torchvision.two_stage import BoxHeads, ProposalNetwork, TwoStageDetector, has_batch_norm
from stepgrad.overlaps import Boxes, Overlap

__all__ = ["SUPPORTED", "AutoWeight", "keep_best", "restore", "train_for_map"]

M = TypeVar("M", bound=nn.Module)


def train_for_map(
    model: M,
    *,
    task: str | Overlap = "boxes",
    mode: str = "mix",
    weight: float | str | AutoWeight = "auto",
    enabled: bool = True,
    protocol: str | Protocol | None = None,
    loss_fn: DetectionLoss | None = None,
    windows_per_image: int | None = None,
    topk: int | None = None,
    score_thresh: float = 0.0,
    keep_positives: bool = True,
    ignore: bool = True,
    **loss_options: Any,
) -> M:
    """The same model, with its classification loss replaced by mAP, or mixed with it.

    In training, `model(images, targets)` returns its loss dict with all keys; box regression, RPN, mask and centre-ness
    losses are the same as in the stock model, to the last bit. In eval mode nothing changes. The `state_dict` is that of the
    stock model.

    Args:
        model: a torchvision FasterRCNN, MaskRCNN, KeypointRCNN, RetinaNet, FCOS or SSD (SSDlite is one), or a subclass.
        task: what mAP compares: "boxes"; "masks" of a MaskRCNN or "keypoints" of a KeypointRCNN, as the model predicts them for
            its windows: the class score learns how well they fit, and their own losses stay. `sg.overlaps.Keypoints(sigmas)`
            for others than COCO's 17 keypoints. NMS compares boxes, as the model does.
        mode: "mix": the mAP loss is added to the loss dict as "loss_map". "replace": it replaces the
            classification loss, "loss_classifier" or "classification".
        weight: of the mAP loss. "auto": balances itself, so that mAP's gradient at the class logits is as long as that
            of the model's own classification loss; `AutoWeight(share=...)` sets another share and explains how it
            is measured. A number stays fixed. `model.map_loss_switch.weight` is the number in use.
        enabled: False keeps the model's own loss for now, and only measures mAP: `model.map_loss_switch.enabled`
            turns it on.
        protocol: what mAP means: "voc07", "voc12" (the default), "coco" or a `Protocol`. A `loss_fn` has its own.
        loss_fn: a ready `MAPLoss`, or a `DetectionLoss` for another metric, whose value is then `metrics["value"]`. None: a
            MAPLoss with the model's NMS threshold, the radius estimator, balanced.
        windows_per_image: two-stage models: at least this many of the RPN's best proposals take part; proposals that the
            training step does not score anyway cost an extra pass of the box head. None: no extra pass.
        topk: dense models: candidates before NMS. None: the model's `topk_candidates`. Masks and keypoints: best pairs of window
            and class per image whose shapes are predicted and ranked, besides positives. None: 100.
        score_thresh: pairs of window and class with at most this probability do not take part.
        keep_positives: pairs of positive windows with their object's class always take part.
        ignore: crowds of the targets (`iscrowd`) are regions that nobody judges, and no objects: windows that lie in one by half
            or more count neither in mAP nor as background in the classification losses, that of the RPN included. A region of
            every class is a crowd of each. False: crowds are objects for the model's own losses, as in torchvision.
        loss_options: of `MAPLoss`, if `loss_fn` is None.

    After each training batch, `model.map_loss.metrics` holds its mAP, AP by class and so on. Classes are numbered as
    columns: without background for two-stage models and SSD, so label 1 is `ap[0]`; RetinaNet and FCOS have no
    background column, and label 1 is `ap[1]`.

    >>> from torchvision.models.detection import ssdlite320_mobilenet_v3_large
    >>> import torch
    >>> model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3)
    >>> model = train_for_map(model)
    >>> target = {"boxes": torch.tensor([[10.0, 10.0, 60.0, 60.0]]), "labels": torch.tensor([2])}
    >>> sorted(model([torch.rand(3, 80, 80)] * 2, [target] * 2))
    ['bbox_regression', 'classification', 'loss_map']
    >>> 0.0 <= model.map_loss.metrics["map"] <= 1.0
    True
    >>> type(restore(model)).__name__
    'SSD'
    """
    detector: Any = model
    family = family_of(model)
    selection = Selection(windows_per_image, topk, score_thresh, keep_positives)
    overlap = task_overlap(task, model)
    _check_selection(model, isinstance(family, TwoStage), selection, overlap)
    settings = loss_settings(loss_options, protocol, loss_fn, [MAPLoss], train_for_map)
    own = {"nms_threshold": family.nms_threshold(model), "overlap": overlap}
    used = _loss(family.columns(model), loss_fn, {**own, **settings})
    switch = DetectorSwitch(used, selection, family, ignore=ignore, mode=mode, weight=weight, enabled=enabled)
    restore(model)  # where this is not the first time
    if isinstance(family, TwoStage):
        specialise(model, TwoStageDetector)
        specialise(detector.roi_heads, BoxHeads).__dict__["map_switch"] = switch
        if isinstance(detector.rpn, RegionProposalNetwork):
            specialise(detector.rpn, ProposalNetwork).__dict__["map_switch"] = switch
    else:
        specialise(model, DenseDetector)
        if hasattr(detector.head, "compute_loss"):
            specialise(detector.head, AnchorHead).__dict__["map_switch"] = switch
    model.__dict__[NAME] = switch
    return model


def restore(model: M) -> M:
    """Undo `train_for_map`: the same model with the class and loss it had. Other models come back as they are."""
    for module in list(model.modules()):
        if isinstance(module, Specialised):
            module.__dict__.pop(NAME, None)
            module.__dict__.pop("map_switch", None)
            despecialise(module)
    return model


def _check_selection(model: Any, two_stage: bool, selection: Selection, overlap: Overlap) -> None:
    for name, number, fits in (
        ("windows_per_image", selection.windows_per_image, two_stage),
        ("topk", selection.topk, not two_stage or not isinstance(overlap, Boxes)),
    ):
        if number is not None and not fits:
            kind = "two-stage" if name == "windows_per_image" else "dense (RetinaNet, FCOS, SSD)"
            raise ConfigError(f"{name}={number} is for {kind} models; leave it out for this one.")
    if selection.windows_per_image is not None and has_batch_norm(model.roi_heads.box_head):
        raise ConfigError(
            "Expected a box head without batch normalisation for windows_per_image: an extra pass would change its "
            "statistics; leave windows_per_image out."
        )


def _loss(columns: int | None, loss_fn: DetectionLoss | None, settings: Mapping[str, Any]) -> DetectionLoss:
    """The loss that was handed in, or one with these settings."""
    if loss_fn is None:
        if columns is None:
            raise ConfigError(
                "Cannot tell the number of classes from the model's own head; pass loss_fn=MAPLoss(num_classes=...)."
            )
        return MAPLoss(columns, **settings)
    if not isinstance(loss_fn, DetectionLoss):
        raise ConfigError(
            f"Expected loss_fn to be a MAPLoss or DetectionLoss but got {type(loss_fn).__name__}; over several processes, "
            "let each train for the mAP of its own images."
        )
    if columns is not None and loss_fn.num_classes != columns:
        raise InputError(
            f"Expected a loss of {columns} classes, the model's without background, but got "
            f"{type(loss_fn).__name__}({loss_fn.num_classes})."
        )
    if type(loss_fn.objective.overlap) is not type(settings["overlap"]):
        raise ConfigError(
            f"Expected a loss_fn made with overlap={settings['overlap']!r}, as the task asks for, but it has "
            f"{loss_fn.objective.overlap!r}; pass both task= and overlap=."
        )
    return loss_fn
