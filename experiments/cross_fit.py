"""Cross-entropy models, and their outputs on images they have not been trained on.

A model that has learnt its training images by heart ranks them almost perfectly: what is left of their mAP to gain is
outliers. So the outputs that training for mAP starts from are cross-fitted: the training images are dealt into folds, and
those of a fold are scored by a model that was trained on the other folds. What is learnt on them corrects, at test time, the
model that was trained on all images.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from experiments.head_training import train_nll
from experiments.rows import FOLDS, NLL_STEPS, NLL_TUNING
from experiments.window_head import Part, WindowHead, new_head


@dataclass(frozen=True)
class CrossEntropyModels:
    """The cross-entropy models of one training set and seed, and their outputs; all kept in a cache folder."""

    part: Part
    seed: int
    cache: Path
    hidden: int = 512

    def model(self, fold: int | None = None) -> WindowHead:
        """The model of all images or, with a fold, of all images but those of the fold."""
        head = new_head(self.part.inputs(0).shape[1], self.seed, hidden=self.hidden)
        file = self._file("model", fold)
        if not file.is_file():
            given = self.part if fold is None else _without(self.part, _fold(len(self.part), fold))
            train_nll(head, given, NLL_STEPS, NLL_TUNING, self.seed)
            _save(head.state_dict(), file)
        head.load_state_dict(load_file(file))
        return head

    def fresh(self) -> Part:
        """The training images with outputs of models that have not seen them."""
        file = self._file("fresh")
        if not file.is_file():
            found = [outputs_of(self.model(k), self.part[_fold(len(self.part), k)]) for k in range(FOLDS)]
            _save({"outputs": torch.cat([rows for fold in found for rows in fold])}, file)
        return with_base(self.part, load_file(file)["outputs"])

    def seen(self) -> Part:
        """The training images with outputs of the model that was trained on them."""
        return self.scored("seen", self.part)

    def scored(self, name: str, part: Part) -> Part:
        """Any images with outputs of the model of all training images."""
        file = self._file(name)
        if not file.is_file():
            _save({"outputs": torch.cat(outputs_of(self.model(), part))}, file)
        return with_base(part, load_file(file)["outputs"])

    def mean(self, name: str, part: Part) -> Part:
        """Any images with the mean log-probabilities of the model of all training images and those of the folds."""
        file = self._file(f"{name}-mean")
        if not file.is_file():
            found = [torch.cat(outputs_of(self.model(k), part)).log_softmax(1) for k in (None, *range(FOLDS))]
            _save({"outputs": torch.stack(found).mean(0)}, file)
        return with_base(part, load_file(file)["outputs"])

    def _file(self, what: str, fold: int | None = None) -> Path:
        start = f"nll{len(self.part)}-{self.seed}-{NLL_STEPS}-{NLL_TUNING.optimiser}-{NLL_TUNING.rate:g}"
        start += "" if self.hidden == 512 else f"-{self.hidden}"
        return self.cache / f"{start}-{what}{'' if fold is None else f'{fold}of{FOLDS}'}.safetensors"


@torch.inference_mode()
def outputs_of(head: WindowHead, part: Part) -> list[Tensor]:
    """(N, K + 1) outputs for each image."""
    head.eval()
    return [head(part.inputs(i)) for i in range(len(part))]


def with_base(part: Part, outputs: Tensor) -> Part:
    """The part with the outputs of all its windows, in order, as its base."""
    return Part(part.images, part.labels, outputs.split([len(labels) for labels in part.labels]))


def _fold(count: int, fold: int) -> slice:
    """The images of a fold: neighbours, so that a part's slices will do.

    >>> [_fold(10, k) for k in range(4)]
    [slice(0, 2, None), slice(2, 5, None), slice(5, 7, None), slice(7, 10, None)]
    """
    return slice(fold * count // FOLDS, (fold + 1) * count // FOLDS)


def _without(part: Part, left_out: slice) -> Part:
    before, after = part[: left_out.start], part[left_out.stop :]
    return Part([*before.images, *after.images], [*before.labels, *after.labels])


def _save(tensors: dict[str, Tensor], file: Path) -> None:
    """Whole or absent; another process may be writing the same."""
    part = file.with_suffix(f".{os.getpid()}")
    save_file(tensors, part)
    os.replace(part, file)
