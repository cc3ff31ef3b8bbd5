"""DETR-style detectors of transformers as a new last class layer sees them: every query is a window, and there is no NMS.

What a family's scores and boxes are is known to `stepgrad.models.detr.transformers`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stepgrad.errors import ConfigError
from stepgrad.models.detr.transformers import corners, every_class, family_of, log_scores
from stepgrad.models.new_head.frozen import Found, FrozenDetector, Pick, in_bytes, linear_of, replace_layer, rows

Processor = Callable[..., Any]
"""An image processor of transformers."""
_CLASS_LAYER = re.compile(r"(?:^|\.)(?:class_labels_classifier(?:\.layers\.\d+)?|class_embed(?:\.(?P<number>\d+))?)$")


class QueryDetector(FrozenDetector):
    """A model of `stepgrad.models.detr.transformers.FAMILIES`.

    What the model adds to the logits of all classes of a query after the class layer (D-FINE: how well it takes the box to
    fit) stays, as the quality of the window.
    """

    slots = 1
    quality = "sum"
    nms_threshold = None
    keeps_all = True

    def __init__(self, model: Any, processor: Processor | None) -> None:
        self.model, self.processor = model, processor
        self.scores = family_of(model).scores
        self.background = "last" if self.scores == "softmax" else None
        self.layers = class_layers(model)
        self.width = self.layers[-1].in_features

    def windows(self, image: Tensor, pick: Pick) -> Found:
        calls: list[tuple[Tensor, Tensor]] = []
        hooks = [layer.register_forward_hook(lambda _, i, o: calls.append((i[0], o))) for layer in self.layers]
        try:
            output = self._run(image)
        finally:
            for hook in hooks:
                hook.remove()
        features, logits = _last_call(calls, output.logits)
        quality = (output.logits - logits)[0]
        chosen = pick(log_scores(output.logits[0], self.scores).amax(dim=1))
        boxes = corners(output.pred_boxes[0, chosen], self._size(image, output.pred_boxes))
        return Found(chosen.cpu(), rows(torch.zeros_like(chosen), quality[chosen, 0], features[0, chosen]), boxes.cpu())

    def detect(self, image: Tensor) -> dict[str, Tensor]:
        """Every query in every class."""
        output = self._run(image)
        boxes = corners(output.pred_boxes[0], self._size(image, output.pred_boxes))
        found = every_class(log_scores(output.logits[0], self.scores).cpu(), boxes.cpu())
        return {**found, "scores": found["scores"].exp()}

    def _run(self, image: Tensor) -> Any:
        if self.processor is None:
            return self.model(self.prepared(image)[None])
        ready = self.processor(images=in_bytes(image), return_tensors="pt")
        given = {name: ready[name].to(self._like.device) for name in ("pixel_values", "pixel_mask") if name in ready}
        given["pixel_values"] = given["pixel_values"].to(self.dtype)
        return self.model(**given)

    @staticmethod
    def _size(image: Tensor, like: Tensor) -> Tensor:
        return torch.tensor([image.shape[-1], image.shape[-2]], device=like.device, dtype=like.dtype)

    def install(self, weight: Tensor, bias: Tensor, class_names: Sequence[str]) -> None:
        """All decoder layers get the new class layer: those before the last have no other use than losses in training."""
        from stepgrad.models.detr.transformers import restore

        restore(self.model)  # a loss for mAP would be one of the old classes
        new = linear_of(weight, bias)
        for old in self.layers:
            replace_layer(self.model, old, copy.deepcopy(new))
        self.model.config.id2label = dict(enumerate(class_names))
        self.model.config.label2id = {name: k for k, name in enumerate(class_names)}
        self.layers = class_layers(self.model)


def class_layers(model: Any) -> list[nn.Linear]:
    """The class layers of the decoder, the last at the end; not those that choose queries by what an encoder says."""
    decoder_layers = getattr(model.config, "decoder_layers", None)
    found: dict[Any, nn.Linear] = {}
    for name, module in model.named_modules():
        match = _CLASS_LAYER.search(name)
        if match is None or not isinstance(module, nn.Linear):
            continue
        number = match["number"]
        # one more than the decoder has layers is for the proposals of a two-stage model
        if number is None or decoder_layers is None or int(number) < decoder_layers:
            inside = ".layers." in match[0]  # YOLOS: of a small network only the last layer is meant
            found["inside" if inside else id(module)] = module
    layers = list(found.values())
    if not layers:
        raise ConfigError(f"Expected {type(model).__name__} to have linear class layers but found none.")
    return layers


def _last_call(calls: Sequence[tuple[Tensor, Tensor]], logits: Tensor) -> tuple[Tensor, Tensor]:
    """Input and output of the class layer that the model's logits come from: of the last call that fits them."""
    for features, output in reversed(calls):
        if output.ndim == 4:  # all decoder layers in one call, the last of them last
            features, output = (t[-1] if t.shape[1] == logits.shape[0] else t[:, -1] for t in (features, output))
        if output.shape != logits.shape:
            continue
        added = logits - output
        if torch.allclose(added, added[..., :1].expand_as(added), rtol=1e-4, atol=1e-4):
            return features, output
    raise ConfigError(
        "Expected the model's logits to come from its class layers, but they differ by more than a shift."
    )
