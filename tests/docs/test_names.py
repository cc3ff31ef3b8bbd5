"""The pages name only what there is: files, modules, names of the package, commands, and places on other pages."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

from stepgrad.errors import MissingDependencyError

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src/stepgrad"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    PACKAGE / "engine/README.md",
    *(ROOT / folder / "README.md" for folder in ("experiments", "benchmarks")),
]
FOLDERS = {path.name for place in (ROOT, PACKAGE) for path in place.iterdir() if path.is_dir()}
OUTSIDE_THE_PACKAGE = ("tests/", "experiments/", "benchmarks/", "examples/", "docs/", "src/")
MADE_BY_COMMANDS = {"proposals/"}
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def files_named(text: str) -> set[str]:
    """Paths in backticks that look like ours: Python files, folders with a slash, what begins with a folder of ours.

    >>> sorted(files_named("`engine/nms.py`, `places.py`, `tests/kills`, `train/`, not `train/batch_map`, `VOC2007/test`"))
    ['engine/nms.py', 'places.py', 'tests/kills', 'train/']
    """
    paths = re.findall(r"`([\w.*-]+(?:/[\w.*-]+)*/?)`", text)
    ours = {path for path in paths if path.endswith((".py", "/")) or path.startswith(OUTSIDE_THE_PACKAGE)}
    return (ours | {path for path in paths if path.split("/")[0] in FOLDERS and "." in path}) - MADE_BY_COMMANDS


def exists(path: str) -> bool:
    """Whether there is such a file or folder, from the repository's root, from the package's, or, by its name, anywhere."""
    places = (
        [ROOT, PACKAGE] if "/" in path else [ROOT, *(ROOT / name for name in ("src", "tests", "experiments", "docs"))]
    )
    return any(any(place.glob(path if "/" in path else f"**/{path}")) for place in places)


def names_used(text: str) -> set[str]:
    """Dotted names of the package, `sg.` written out, and what code imports from it.

    >>> sorted(names_used("sg.layers.Round(), stepgrad.errors; `from stepgrad.data import recall, load_dataset`"))
    ['stepgrad.data', 'stepgrad.data.load_dataset', 'stepgrad.data.recall', 'stepgrad.errors', 'stepgrad.layers.Round']
    """
    dotted = {
        f"stepgrad.{name}"
        for name in re.findall(r"(?<![\w/.+~-])(?:sg|stepgrad)\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)", text)
    }
    imported = re.findall(r"from (stepgrad[\w.]*) import ([\w, ]+)", text)
    return dotted | {f"{module}.{name.strip()}" for module, names in imported for name in names.split(",")}


def is_there(name: str) -> bool:
    """Whether a dotted name is a module, or something in one.

    >>> is_there("stepgrad.metric.batch"), is_there("stepgrad.steps.layers.Round"), is_there("stepgrad.steps.layers.Square")
    (True, True, False)
    """
    try:
        pkgutil.resolve_name(name)
    except MissingDependencyError:  # it is, but needs a package that is not installed here
        return True
    except (AttributeError, ImportError):
        return False
    return True


def headings(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@each_page
def test_files_named_on_a_page_exist(page: Path) -> None:
    assert [path for path in sorted(files_named(text_of(page))) if not exists(path)] == []


@each_page
def test_names_of_the_package_used_on_a_page_are_there(page: Path) -> None:
    assert [name for name in sorted(names_used(text_of(page))) if not is_there(name)] == []


@each_page
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text_of(page)):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        assert not anchor or anchor in headings(file), f"{target}#{anchor}"


@each_page
def test_scripts_and_modules_that_a_page_tells_to_run_exist(page: Path) -> None:
    text = text_of(page)
    scripts = re.findall(r"python3? ((?:\w+/)+\w+\.py)", text)
    modules = [name.replace(".", "/") for name in re.findall(r"-m ((?:tests|experiments|benchmarks)\.[\w.]+)", text)]
    tests = [path for line in re.findall(r"pytest [^`\n]*", text) for path in re.findall(r"tests/[\w/.]*", line)]
    assert [script for script in scripts + tests if not (ROOT / script).exists()] == []
    assert [m for m in modules if not ((ROOT / f"{m}.py").is_file() or (ROOT / m / "__main__.py").is_file())] == []


def scripts_run(text: str) -> set[str]:
    """Experiments and benchmarks that a page tells to run.

    >>> sorted(scripts_run("`python -m experiments.yolo.heads choose`, then `python benchmarks/loss.py`"))
    ['benchmarks/loss.py', 'experiments.yolo.heads']
    """
    return set(re.findall(r"python (?:-m )?((?:experiments|benchmarks)[./][\w./]*\w)", text))


def test_every_script_of_a_page_stands_in_the_table_of_its_folder_and_every_script_in_the_table() -> None:
    listed = {folder: scripts_run(text_of(ROOT / folder / "README.md")) for folder in ("experiments", "benchmarks")}
    told = {script for page in PAGES for script in scripts_run(text_of(page))}
    assert told == listed["experiments"] | listed["benchmarks"]
    there = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for folder in listed
        for path in (ROOT / folder).rglob("*.py")
        if "\ndef main(" in text_of(path)
    }
    assert told == there


def test_every_file_of_the_reference_is_named_where_its_mathematics_stand() -> None:
    named = files_named(text_of(ROOT / "docs/method.md"))
    assert {f"reference/{file.name}" for file in PACKAGE.glob("reference/[!_]*.py")} <= named


def test_every_section_of_the_mathematics_names_what_to_read_and_its_fast_twin() -> None:
    sections = re.split(r"^## \d+\. ", text_of(ROOT / "docs/method.md"), flags=re.MULTILINE)[2:-1]  # not: problem, cost
    assert all(
        re.search(r"^To read: .*`reference/.*?Fast: `", section, re.MULTILINE | re.DOTALL) for section in sections
    )
