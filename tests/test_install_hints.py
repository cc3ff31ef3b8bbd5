"""Every line that says how to install a package can be typed as it stands."""

from __future__ import annotations

import json
import re
from importlib.metadata import metadata
from pathlib import Path

import pytest

from stepgrad import extras
from stepgrad.extras import EXTRAS, install_command

ROOT = Path(__file__).parents[1]
PAGES = [
    *(path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("docs/*.ipynb"),
    *(path for folder in ("src", "examples", "benchmarks", "tests") for path in ROOT.glob(f"{folder}/**/*.py")),
]
HINTS = ROOT / "src/stepgrad/extras.py"  # the code that makes the hints; the package may be installed elsewhere
KNOWN = set(metadata("stepgrad").get_all("Provides-Extra") or ())


def test_every_extra_in_a_page_or_message_is_one_of_the_package() -> None:
    assert set(EXTRAS) <= KNOWN
    for path in PAGES:
        for listed in re.findall(r"(?:stepgrad|pip install \\?\"?\.)\[([a-z,]+)\]", path.read_text(encoding="utf-8")):
            assert set(listed.split(",")) <= KNOWN, (path, listed)


def test_no_page_installs_from_an_index_that_does_not_have_it() -> None:
    for path in PAGES:
        if path not in (Path(__file__), HINTS):
            assert not re.search(r"pip install \\?\"?stepgrad", path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"url": "file:///a%20b/clone", "dir_info": {}}, 'pip install "/a b/clone[train,yolo]"'),
        ({"url": "file:///clone", "dir_info": {"editable": True}}, 'pip install -e "/clone[train,yolo]"'),
        ({"url": "file:///x.whl", "archive_info": {}}, 'pip install "/x.whl[train,yolo]"'),
        (
            {"url": "https://host/s.git", "vcs_info": {"vcs": "git", "commit_id": "0"}},
            'pip install "stepgrad[train,yolo] @ git+https://host/s.git"',
        ),
        (None, 'pip install "stepgrad[train,yolo]"'),
    ],
)
def test_a_hint_installs_from_where_stepgrad_came(
    monkeypatch: pytest.MonkeyPatch, origin: dict[str, object] | None, command: str
) -> None:
    class Installed:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if origin is None else json.dumps(origin)

    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Installed())
    assert install_command(["train", "yolo"]) == command


def test_a_hint_in_the_clone_itself_is_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(extras, "_origin", lambda: {"url": tmp_path.as_uri()})
    monkeypatch.chdir(tmp_path)
    assert install_command(["train"]) == 'pip install ".[train]"'
