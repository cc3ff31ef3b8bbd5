"""Packages that only a part of stepgrad needs, and the line that installs them.

stepgrad without extras brings torch, numpy and numba, which the losses, metrics, layers and the evaluator run on. Whatever else
a part needs comes with an extra; the part asks here first, so that a missing package is named along with its extra.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stepgrad.errors import MissingDependencyError

EXTRAS = {
    "train": {
        "torchvision": "torchvision",
        "PIL": "pillow",
        "rich": "rich",
        "cyclopts": "cyclopts",
        "docstring_parser": "docstring-parser",
        "yaml": "pyyaml",
        "lightning_fabric": "lightning-fabric",
        "safetensors": "safetensors",
        "filelock": "filelock",
        "tensorboard": "tensorboard",
        "jinja2": "jinja2",
        "matplotlib": "matplotlib",
        "contourpy": "contourpy",
    },
    "detector": {
        "cv2": "opencv-contrib-python-headless",
    },
    "transformers": {"transformers": "transformers", "accelerate": "accelerate", "scipy": "scipy"},
    "lightning": {"lightning": "lightning"},
    "torchmetrics": {"torchmetrics": "torchmetrics"},
    "yolo": {"ultralytics": "ultralytics"},
    "onnx": {"onnxruntime": "onnxruntime", "onnx": "onnx"},
}
"""Of each extra, the packages as they are imported, and as pip knows them."""


def need(*modules: str, purpose: str) -> None:
    """Raise MissingDependencyError unless all these modules are installed. Nothing but parents of submodules is imported.

    Args:
        modules: names as an import has them: `PIL`, `cv2.ximgproc`.
        purpose: what they are needed for, as the end of a sentence.
    """
    absent = [module.partition(".")[0] for module in modules if not _is_there(module)]
    if not absent:
        return
    chosen = extras_of(absent)
    known = {module: name for packages in EXTRAS.values() for module, name in packages.items()}
    names = ", ".join(known[package] for package in absent)
    raise MissingDependencyError(f"{names}: not installed but needed for {purpose}: {install_command(chosen)}")


def install_command(extras: Sequence[str]) -> str:
    """The command that adds extras to this installation, from wherever it came: a clone, an archive, a repository or an index."""
    from urllib.parse import urlsplit  # these take as long to import as all else that `stepgrad --help` needs
    from urllib.request import url2pathname

    origin = _origin()
    parts = urlsplit(origin.get("url", ""))
    chosen = f"[{','.join(extras)}]"
    if parts.scheme == "file":
        place = url2pathname(parts.path)
        flag = "-e " if origin.get("dir_info", {}).get("editable") else ""
        return f'pip install {flag}"{"." if place == os.getcwd() else place}{chosen}"'
    if "vcs_info" in origin:
        return f'pip install "stepgrad{chosen} @ {origin["vcs_info"]["vcs"]}+{origin["url"]}"'
    return f'pip install "stepgrad{chosen}"'


def _origin() -> dict[str, Any]:
    """What pip wrote down about the place it installed stepgrad from; nothing if that was an index."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        text = distribution("stepgrad").read_text("direct_url.json")
    except PackageNotFoundError:  # used without an installation, from a clone
        return {"url": Path(__file__).resolve().parents[2].as_uri()}
    return dict(json.loads(text)) if text else {}


def extras_of(modules: list[str]) -> list[str]:
    """Extras that bring all these modules: of several that have one, an extra that is asked for anyway, else the first.

    >>> extras_of(["rich"]), extras_of(["transformers", "scipy"]), extras_of(["PIL", "cv2"])
    (['train'], ['transformers'], ['train', 'detector'])
    """
    chosen: list[str] = []
    for module in modules:
        having = [extra for extra, packages in EXTRAS.items() if module in packages]
        if not set(having) & set(chosen):
            chosen.append(having[0])
    return chosen


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # the package of a submodule is missing, or broken
        return False
    except ValueError:  # imported already, by a loader that keeps no spec
        return True
