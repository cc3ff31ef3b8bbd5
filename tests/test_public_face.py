"""What `import stepgrad as sg` offers, and what the package says of itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import stepgrad as sg

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


@pytest.mark.parametrize("name", sg.__all__)
def test_every_name_is_there_and_listed(name: str) -> None:
    assert getattr(sg, name) is not None
    assert name in dir(sg)


def test_nothing_else_is_listed() -> None:
    """Helpers that the module imports for itself are nobody's business."""
    listed = {name for name in dir(sg) if not name.startswith("__")}
    assert not listed & {"Any", "annotations", "import_module"}
    assert all(hasattr(sg, name) for name in listed)


def test_the_errors_can_be_caught_by_the_name_the_import_gives() -> None:
    code = "import stepgrad as sg; print(sg.errors.StepgradError.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "StepgradError"


def test_the_version_is_told_without_importing_torch() -> None:
    code = "import sys, stepgrad as sg; print(sg.__version__, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\d+\.\d+\.\d+ False", done.stdout.strip())


def test_the_version_stands_in_one_place() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert 'version = { attr = "stepgrad.__version__" }' in project
    assert f'"{sg.__version__}"' not in project


def test_sections_cited_are_those_of_a_page_that_is_here() -> None:
    headings = {page: (ROOT / page).read_text() for page in ("docs/method.md",)}
    for source in SOURCES:
        text = source.read_text()
        for page, section in re.findall(r"(docs/\w+\.md), Sec\. (\d+)", text):
            assert re.search(rf"^## {section}\. ", headings[page], re.MULTILINE), (
                f"{source} cites {page}, Sec. {section}"
            )


def test_the_package_imports_nothing_that_is_not_installed_with_it() -> None:
    for source in SOURCES:
        beside = re.findall(
            r"^\s*(?:from|import) (?:benchmarks|docs|examples|experiments|tests)\b.*", source.read_text(), re.M
        )
        assert beside == [], source


def test_an_extra_named_in_a_message_exists() -> None:
    section = (
        (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1].split("[project.scripts]")[0]
    )
    extras = set(re.findall(r"^(\w+) = \[", section, re.MULTILINE))
    for source in SOURCES:
        assert set(re.findall(r"stepgrad\[(\w+)\]", source.read_text())) <= extras, source


def test_no_numpy_newer_than_the_oldest_allowed_is_needed() -> None:
    """Names that came with NumPy 2, while 1.26 is allowed."""
    assert '"numpy>=1.26"' in (ROOT / "pyproject.toml").read_text()
    new = r"np\.(bitwise_count|astype|concat|unstack|cumulative_sum|vecdot|matvec|trapezoid|isdtype|unique_\w+)\("
    for source in SOURCES:
        assert not re.findall(new, source.read_text()), source


def test_without_matplotlib_plots_say_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from stepgrad.evaluation.plots import plot_curves

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(sg.errors.MissingDependencyError, match=r'pip install .*\[train\]"$'):
        plot_curves([], 0.5, "no classes")  # the package is missed first


def test_the_stub_tells_type_checkers_of_every_name_there_is() -> None:
    stub = (ROOT / "src/stepgrad/__init__.pyi").read_text()
    told = set(re.findall(r" import \w+ as (\w+)$", stub, re.MULTILINE))
    assert told == {*sg.__all__, *sg._MODULES}
    assert all(getattr(sg, name) is not None for name in told)
