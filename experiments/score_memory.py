"""Windows of recent batches as company for those of the present one.

The mAP of a few images is a noisy and biased estimate of a dataset's. A memory of what the model said of other images a
few steps ago makes the ranking long at no cost in memory or time of the model; those scores are a little out of date, and
constants: no gradient reaches them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stepgrad.errors import InputError, whole_number
from stepgrad.losses.objective import BatchLoss
from stepgrad.metric.batch import Target
from stepgrad.steps.autograd import scale_gradient

Loss = Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Target]], Tensor]
_Image = dict[str, Tensor]  # scores, boxes, and the target's entries as "target.boxes" and so on
_KEYS = ("boxes", "labels", "difficult", "iscrowd")


class ScoreMemory:
    """Keeps the scored windows of the latest images and ranks them together with those of each new batch.

    Args:
        size_images: images to remember; the oldest are forgotten. 0: none, and the loss is unchanged.
        rescale: multiply the gradient by (images ranked / images in the batch). AP is a mean over the objects of all
            images ranked, so the share of each image shrinks as the memory fills; with rescale, training steps keep their size.

    A class's pushes up and down are balanced over all windows ranked, remembered ones included, so those in the batch
    alone need not sum to zero: shifting only its scores does change their place among the others.

    >>> box = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    >>> here, nothing = {"boxes": box, "labels": torch.tensor([0])}, {"boxes": box[:0], "labels": torch.zeros(0).long()}
    >>> from stepgrad import MAPLoss
    >>> loss_fn, memory = MAPLoss(num_classes=1), ScoreMemory(size_images=100)
    >>> _ = memory(loss_fn, [torch.tensor([[0.9]])], [box], [nothing], ids=["a"])      # a confident false alarm
    >>> score = torch.tensor([[0.2]], requires_grad=True)
    >>> memory(loss_fn, [score], [box], [here], ids=["b"]).backward()
    >>> loss_fn.metrics["map"], len(memory), score.grad.item() < 0     # alone, b would have mAP 1 and no gradient
    (0.5, 2, True)
    """

    def __init__(self, size_images: int, *, rescale: bool = True) -> None:
        self.size_images, self.rescale = whole_number("size_images", size_images, least=0), rescale
        self._images: OrderedDict[Hashable, _Image] = OrderedDict()  # oldest first
        self._unnamed = 0

    def __len__(self) -> int:
        return len(self._images)

    def __call__(
        self,
        loss_fn: Loss,
        scores: Sequence[Tensor],
        boxes: Sequence[Tensor],
        targets: Sequence[Target],
        ids: Sequence[Hashable] | None = None,
    ) -> Tensor:
        """`loss_fn` of the batch and the remembered images; the batch is remembered for the next call.

        `ids` name the images: one scored again takes the place of its old entry. Without them each is a new image.
        """
        names = self._names(ids, len(scores))
        old = [image for name, image in self._images.items() if name not in set(names)]
        loss = loss_fn(
            [*scores, *(image["scores"].to(_device(scores)) for image in old)],
            [*boxes, *(image["boxes"].to(_device(boxes)) for image in old)],
            [*targets, *(_target(image) for image in old)],
        )
        self._remember(names, scores, boxes, targets)
        if self.rescale and old and len(scores):
            loss = scale_gradient(loss, (len(scores) + len(old)) / len(scores))
        return loss

    def clear(self) -> None:
        """Forget everything."""
        self._images.clear()

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to continue exactly: JSON-able, except for the flat dict "tensors"."""
        tensors = {f"{i}.{key}": value for i, image in enumerate(self._images.values()) for key, value in image.items()}
        return {"unnamed": self._unnamed, "names": list(self._images), "tensors": tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._unnamed = state["unnamed"]
        images: list[_Image] = [{} for _ in state["names"]]
        for key, value in state["tensors"].items():
            number, name = key.split(".", 1)
            images[int(number)][name] = value
        self._images = OrderedDict(zip(state["names"], images, strict=True))
        self._forget()

    def tensors(self) -> dict[str, Tensor]:
        """The whole memory as tensors, for files that hold only tensors; images must have no names (`ids`)."""
        state = self.state_dict()
        return {"unnamed": torch.tensor(state["unnamed"]), **state["tensors"]}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from `tensors()`."""
        images = {name: value for name, value in tensors.items() if name != "unnamed"}
        unnamed = int(tensors.get("unnamed", torch.tensor(0)))
        count = len({name.split(".", 1)[0] for name in images})
        names = [f"\0{i}" for i in range(unnamed - count, unnamed)]
        self.load_state_dict({"unnamed": unnamed, "names": names, "tensors": images})

    def _names(self, ids: Sequence[Hashable] | None, count: int) -> list[Hashable]:
        if ids is None:
            self._unnamed += count
            return [f"\0{i}" for i in range(self._unnamed - count, self._unnamed)]  # nobody names an image like this
        if len(ids) != count:
            raise InputError(f"Expected ids to have one entry per image, {count}, but got {len(ids)}.")
        if len(set(ids)) != count:
            raise InputError(f"Expected every image once in a batch but the ids {list(ids)} repeat.")
        return list(ids)

    def _remember(
        self, names: Iterable[Hashable], scores: Sequence[Tensor], boxes: Sequence[Tensor], targets: Sequence[Target]
    ) -> None:
        for name, s, b, t in zip(names, scores, boxes, targets, strict=True):
            self._images.pop(name, None)  # moves it to the end
            entries = {"scores": s, "boxes": b} | {f"target.{key}": t[key] for key in _KEYS if key in t}
            self._images[name] = {key: torch.as_tensor(value).detach().clone() for key, value in entries.items()}
        self._forget()

    def _forget(self) -> None:
        while len(self._images) > self.size_images:
            self._images.popitem(last=False)


class RememberingLoss(nn.Module):
    """A loss that ranks what `memory` holds along with each batch it trains on; every process has its own memory."""

    def __init__(self, loss_fn: BatchLoss, memory: ScoreMemory) -> None:
        super().__init__()
        self.loss_fn = loss_fn
        self.memory = memory

    @property
    def num_classes(self) -> int:
        """Columns of the scores."""
        return self.loss_fn.num_classes

    @property
    def metrics(self) -> dict[str, Any]:
        """Of the last call: the batch and its company together."""
        return self.loss_fn.metrics

    def forward(self, scores: Sequence[Tensor], boxes: Sequence[Tensor], targets: Sequence[Target]) -> Tensor:
        """The loss, with company if it is to be followed."""
        if self.memory.size_images == 0 or not torch.is_grad_enabled():
            return self.loss_fn(scores, boxes, targets)
        return self.memory(self.loss_fn, scores, boxes, targets)


def _target(image: _Image) -> Target:
    return {key.removeprefix("target."): value for key, value in image.items() if key.startswith("target.")}


def _device(tensors: Sequence[Tensor]) -> torch.device | None:
    return tensors[0].device if len(tensors) else None
