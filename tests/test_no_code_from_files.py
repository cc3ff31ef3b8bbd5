"""No file that stepgrad reads can hold code that runs, except its own compiled kernels (see SECURITY.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torchvision.models import AlexNet_Weights

import stepgrad
from stepgrad.detector.weights import read_state
from stepgrad.errors import DataError

SOURCES = Path(stepgrad.__file__).parent
MAY_UNPICKLE = {SOURCES / "engine" / "cache.py"}  # in folders that nobody else can write to
NAMES_A_SHELL = {"app.generate_completion"}  # for which a text is made; nothing is run in it
NEVER = {"eval", "exec", "compile", "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.loads", "shelve.open"}
NEVER |= {
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "os.system",
    "os.popen",
    "joblib.load",
    "pandas.read_pickle",
}
MUST_SAY = {
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "load_state_dict_from_url": ("weights_only", True),
    "get_state_dict": ("weights_only", True),
}


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def is_unsafe(name: str, call: ast.Call) -> bool:
    said = {word.arg: getattr(word.value, "value", None) for word in call.keywords}
    if ("shell" in said and name not in NAMES_A_SHELL) or name in NEVER:
        return True
    wanted = next((MUST_SAY[key] for key in MUST_SAY if name == key or name.endswith(f".{key}")), None)
    return wanted is not None and said.get(wanted[0]) is not wanted[1]


def test_nothing_that_runs_code_from_files_is_called() -> None:
    unsafe = [
        f"{path.relative_to(SOURCES)}:{call.lineno}: {name}"
        for path in sorted(SOURCES.rglob("*.py"))
        if path not in MAY_UNPICKLE
        for name, call in calls(path)
        if is_unsafe(name, call)
    ]
    assert unsafe == []


class Planted:
    """Unpickled, it leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.trace,)


def test_code_in_a_weights_file_is_refused(tmp_path: Path) -> None:
    torch.save({"features.0.weight": Planted(tmp_path / "trace")}, tmp_path / "weights.pt")
    with pytest.raises(DataError, match="is not a readable weights file"):
        read_state("alexnet", tmp_path / "weights.pt")
    assert not (tmp_path / "trace").exists()


def test_code_in_an_earlier_download_of_weights_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    name = AlexNet_Weights.IMAGENET1K_V1.url.rpartition("/")[2]
    torch.save({"features.0.weight": Planted(tmp_path / "trace")}, tmp_path / "checkpoints" / name)
    with pytest.raises(DataError, match="cannot be downloaded"):
        read_state("alexnet", "imagenet")
    assert not (tmp_path / "trace").exists()
