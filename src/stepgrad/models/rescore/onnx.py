"""A rescorer as a torch module of plain tensors, and as ONNX."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from stepgrad.errors import MissingDependencyError
from stepgrad.files import write_whole
from stepgrad.models.rescore.facts import facts_of
from stepgrad.models.rescore.network import QualityNetwork, Rows
from stepgrad.models.rescore.ways import Setting, ranked_by

_FARTHEST = 12.0
_EXAMPLE = 5
_OPSET = 17


class WholeRescorer(nn.Module):
    """New scores (M,) from boxes (M, 4), scores (M,) and labels (M,) of an image; `more` (M, E) has what else the rescorer
    was fitted with, in the order of its `more`."""

    def __init__(self, network: QualityNetwork, setting: Setting, are_probabilities: bool, columns: int) -> None:
        super().__init__()
        self.network, self.setting = network, setting
        self.are_probabilities, self.columns = are_probabilities, columns

    def forward(self, boxes: Tensor, scores: Tensor, labels: Tensor, more: Tensor | None = None) -> Tensor:
        own = scores.float()
        if self.are_probabilities:
            chance = own.clamp(1e-7, 1.0 - 1e-6)
            own = chance.log() - (1.0 - chance).log()
        own = own.clamp(-_FARTHEST, _FARTHEST)
        facts = facts_of(boxes, own, labels)
        columns = facts.columns if more is None else torch.cat([facts.columns, more.float()], dim=1)
        rows = Rows(columns, facts.neighbours, facts.present, facts.pairs, own, labels)
        ranked = ranked_by(self.network(rows), own, self.setting)
        if not self.are_probabilities:
            return ranked
        return ranked.exp() if self.setting.multiplies else ranked.sigmoid()


def export(module: WholeRescorer, path: Path) -> None:
    """Write ONNX with inputs boxes, scores, labels and, where the rescorer needs it, more."""
    if find_spec("onnx") is None:
        raise MissingDependencyError("onnx: not installed but needed for writing ONNX: pip install onnx")
    module = module.eval()
    boxes = torch.arange(_EXAMPLE)[:, None] * 5.0 + torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    inputs = [boxes, torch.linspace(0.1, 0.9, _EXAMPLE), torch.zeros(_EXAMPLE, dtype=torch.long)]
    names = ["boxes", "scores", "labels"]
    if module.columns:
        inputs.append(torch.zeros(_EXAMPLE, module.columns))
        names.append("more")
    with (
        TemporaryDirectory() as folder,
        warnings.catch_warnings(),
    ):  # the exporter without further packages calls itself old
        warnings.simplefilter("ignore")
        part = Path(folder) / "rescorer.onnx"
        torch.onnx.export(
            module,
            tuple(inputs),
            str(part),
            dynamo=False,
            input_names=names,
            output_names=["new_scores"],
            dynamic_axes={name: {0: "detections"} for name in [*names, "new_scores"]},
            opset_version=_OPSET,
        )
        write_whole(path.expanduser(), part.read_bytes())
