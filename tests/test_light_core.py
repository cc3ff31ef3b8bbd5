"""Without extras, stepgrad brings torch, numpy and numba: the core runs on these alone, and the rest says what to install."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from stepgrad import extras
from stepgrad.errors import MissingDependencyError
from stepgrad.extras import EXTRAS

ROOT = Path(__file__).parents[1]
CORE = [
    *("errors", "extras", "files", "names", "pixels", "plain_tensors", "reference", "evaluation", "evaluation.plots"),
    *("metric.over_classes", "steps.nearest", "losses.detection", "losses.ranking.losses"),
    *("steps.layers", "models.detr.transformers", "cli"),
]
PARTS = {"data": "pillow", "detector.training": "lightning-fabric", "report": "jinja2"}
BLOCK = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted({"pytorch_lightning", *set().union(*EXTRAS.values())})}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
"""
USE = """
import warnings
warnings.simplefilter("error")
import torch
import stepgrad as sg

for name in sg.__all__:
    getattr(sg, name)
from stepgrad import *

boxes = [torch.tensor([[0.0, 0, 10, 10], [1.0, 0, 11, 10], [20.0, 0, 30, 10]])]
targets = [{"boxes": torch.tensor([[0.0, 0, 10, 10]]), "labels": torch.tensor([0])}]
scores = [torch.tensor([[-1.6], [-2.3], [-0.1]], requires_grad=True)]
sg.MAPLoss(1)(scores, boxes, targets).backward()
assert scores[0].grad.count_nonzero()
assert float(sg.mean_average_precision(scores, boxes, targets).map) == 0.5
assert sg.map_steps(scores, boxes, targets).value.tolist() == [0.5]
found = [{"boxes": boxes[0], "scores": torch.tensor([0.9, 0.2, 0.1]), "labels": torch.zeros(3, dtype=torch.int64)}]
evaluator = sg.Evaluator(1, "voc12")
evaluator.update(found, targets)
assert evaluator.compute().map == 1.0

relevance = torch.tensor([0.0, 1.0, 0.0])
others = sg.ranking.AUCLoss(), sg.ranking.MRRLoss(), sg.ranking.PrecisionAtKLoss(k=1), sg.ranking.RecallAtKLoss(k=1)
for loss_fn in (sg.APLoss(), sg.NDCGLoss(k=2), *others):
    ranked = torch.tensor([0.3, 0.2, 0.1], requires_grad=True)
    loss_fn(ranked, relevance).backward()
    assert ranked.grad.count_nonzero(), loss_fn
for layer in (sg.layers.Sign(), sg.layers.Round(), sg.layers.ArgmaxOneHot(), sg.layers.TopKMask(1), sg.layers.Ranks()):
    layer(torch.tensor([0.3, 1.2], requires_grad=True)).sum().backward()
print("done")
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BLOCK + code], capture_output=True, text=True)


def test_the_core_works_without_any_extra() -> None:
    imports = "".join(f"import stepgrad.{name}\n" for name in CORE)
    done = run(imports + USE)
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize(("part", "package"), PARTS.items())
def test_a_part_of_an_extra_names_the_package_and_the_line_to_type(part: str, package: str) -> None:
    code = (
        "from stepgrad.errors import StepgradError\n"
        f"try:\n    import stepgrad.{part}\n"
        "except StepgradError as error:\n    print(isinstance(error, ImportError), error)"
    )
    done = run(code)
    assert re.match(rf"True .*\b{package}\b.* stepgrad\.{part}: ", done.stdout), done.stdout + done.stderr
    assert re.search(r'pip install .*\[train\]"\n$', done.stdout)


@pytest.mark.parametrize(
    ("code", "package", "extra"),
    [
        ("import stepgrad as sg; sg.detector.FastRCNN", "torchvision", "train"),
        ("import stepgrad.models.torchvision", "torchvision", "train"),
        ("import stepgrad as sg; sg.Evaluator(1).compute().plot()", "matplotlib", "train"),
        ("import stepgrad.models.frameworks.torchmetrics", "torchmetrics", "torchmetrics"),
        ("import stepgrad.models.frameworks.hf_trainer", "transformers", "transformers"),
        (
            "from stepgrad.models.detr.transformers import train_for_map; train_for_map(None)",
            "transformers",
            "transformers",
        ),
        ("from stepgrad.models.frameworks.lightning import MAPCallback", "lightning", "lightning"),
        ("from stepgrad.models.yolo import MAPTrainer", "ultralytics", "yolo"),
        ("import stepgrad.models.torchvision.frozen", "torchvision", "train"),
    ],
)
def test_what_needs_more_than_the_core_says_so(code: str, package: str, extra: str) -> None:
    last = run(code).stderr.splitlines()[-1]
    assert "MissingDependencyError" in last
    assert package in last
    assert re.search(rf'pip install .*\[{extra}\]"$', last)


@pytest.mark.parametrize("words", [[], ["--help"], ["demo"]])
def test_without_the_extra_the_command_says_in_one_line_what_to_type(words: list[str]) -> None:
    done = run(f"sys.argv[1:] = {words}\nfrom stepgrad.cli import run\nrun()")
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(r'stepgrad: .*cyclopts.*: pip install .*\[train\]"\n', done.stderr)


def test_the_version_is_told_without_the_extra() -> None:
    done = run("sys.argv[1:] = ['--version']\nfrom stepgrad.cli import run\nrun()")
    assert (done.returncode, done.stderr) == (0, "")
    assert "torchvision" in done.stdout


def test_packages_of_several_extras_are_named_with_all_of_these(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "_is_there", lambda module: module != "yaml")
    extras.need("torch", purpose="nothing in particular")
    monkeypatch.setattr(extras, "_is_there", lambda module: module == "yaml")
    with pytest.raises(MissingDependencyError) as caught:
        extras.need("cv2.ximgproc", "yaml", "PIL", purpose="a search")
    command = extras.install_command(["detector", "train"])
    assert str(caught.value) == (
        f"opencv-contrib-python-headless, pillow: not installed but needed for a search: {command}"
    )


def test_only_torch_numpy_and_numba_are_installed_with_the_core() -> None:
    (listed,) = re.findall(r"^dependencies = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.M | re.S)
    assert re.findall(r'^  "([\w-]+)', listed, re.M) == ["torch", "numpy", "numba"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_packages_named_for_an_extra_are_those_it_installs(extra: str) -> None:
    text = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1]
    (listed,) = re.findall(rf"^{extra} = \[(.*?)\]\n(?=\w|\n)", text, re.M | re.S)
    installed = re.findall(r'"([\w-]+)(?:\[\w+\])?>=', listed)
    assert set(EXTRAS[extra].values()) <= set(installed)
    if extra == "train":
        assert set(EXTRAS[extra].values()) == set(installed)


def test_packages_have_the_names_that_pip_knows() -> None:
    known = packages_distributions()
    for packages in EXTRAS.values():
        for module, name in packages.items():
            if module in known:
                assert name in [found.lower().replace("_", "-") for found in known[module]], module
