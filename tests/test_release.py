"""What a release is made of agrees: one version everywhere, files that GitHub, pip and pre-commit can read."""

from __future__ import annotations

import importlib.util
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

import stepgrad as sg
from stepgrad.extras import EXTRAS

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
PINS = importlib.util.spec_from_file_location("pins", ROOT / ".ci/pins.py")


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps_of(workflow: Any) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job.get("steps", [])]


def test_citation_and_changelog_have_the_version_of_the_package() -> None:
    assert load(ROOT / "CITATION.cff")["version"] == sg.__version__
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == sg.__version__


def test_citation_names_the_paper() -> None:
    (paper,) = load(ROOT / "CITATION.cff")["references"]
    assert [author["family-names"] for author in paper["authors"]] == ["Henderson", "Ferrari"]
    assert paper["year"] == 2016


def test_there_are_workflows_for_tests_docs_nights_and_releases() -> None:
    assert [path.stem for path in WORKFLOWS] == ["docs", "nightly", "release", "tests"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_job_of_a_workflow_ends_and_has_steps_that_do_one_thing(path: Path) -> None:
    workflow = load(path)
    assert workflow[True]  # `on`, which yaml takes for a truth value
    for job in workflow["jobs"].values():
        assert "uses" in job or (job["runs-on"] and job["timeout-minutes"])
    assert all(("run" in step) != ("uses" in step) for step in steps_of(workflow))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_scripts_that_a_workflow_runs_are_there(path: Path) -> None:
    for script in re.findall(r"(?<![\w/])\.ci/\w+", path.read_text(encoding="utf-8")):
        assert (ROOT / script).stat().st_mode & 0o100, script
    for other in re.findall(r"uses: \./(\S+)", path.read_text(encoding="utf-8")):
        assert (ROOT / other).is_file()


def test_nightly_runs_commands_of_the_contributors_page() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    commands = load(ROOT / ".github/workflows/nightly.yml")["jobs"]["slow"]["strategy"]["matrix"]["command"]
    assert all(re.search(rf"^{re.escape(command)}( +#|$)", page, re.MULTILINE) for command in commands)


def test_every_python_that_is_claimed_is_tested() -> None:
    claimed = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    newest = load(ROOT / ".github/workflows/tests.yml")["jobs"]["newest"]["strategy"]["matrix"]
    assert newest["python"] == claimed
    assert {entry["os"] for entry in newest["include"]} == {"macos-latest", "windows-latest"}


def test_only_the_step_that_publishes_may_write_anything() -> None:
    for path in WORKFLOWS:
        workflow = load(path)
        assert workflow["permissions"] == {"contents": "read"}
        rights = [job["permissions"] for job in workflow["jobs"].values() if "permissions" in job]
        allowed = {"release": [{"id-token": "write"}], "docs": [{"pages": "write", "id-token": "write"}]}
        assert rights == allowed.get(path.stem, [])


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_forms_for_issues_have_what_github_asks_for(path: Path) -> None:
    form = load(path)
    assert {"name", "description", "body"} <= form.keys()
    for part in form["body"]:
        assert part["type"] == "markdown" or (part["id"] and part["attributes"]["label"])


def test_hooks_before_a_commit_are_the_tools_of_the_project() -> None:
    (repo,) = load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repo["repo"] == "local"
    assert [hook["entry"] for hook in repo["hooks"]] == ["ruff check", "ruff format", "mypy"]


def test_every_dependency_has_a_lowest_version_that_can_be_asked_for() -> None:
    assert PINS is not None
    assert PINS.loader is not None
    pins = importlib.util.module_from_spec(PINS)
    PINS.loader.exec_module(pins)
    of_core = pins.lowest()
    assert [pin.partition("==")[0] for pin in of_core] == ["numba", "numpy", "torch"]
    for extra, packages in EXTRAS.items():
        names = {re.split(r"[\[=]", pin)[0] for pin in pins.lowest(extra)}
        assert set(packages.values()) <= names
    assert not any("stepgrad" in pin for pin in pins.lowest("dev", "all"))  # extras of ours have none


def test_links_of_the_package_index_lead_to_files_of_the_repository() -> None:
    """The index shows the README without the files around it; the built metadata is what `setup.py` makes of it."""
    names = runpy.run_path(str(ROOT / "setup.py"))
    home = "https://github.com/someone/something"
    shown = names["with_full_links"]((ROOT / "README.md").read_text(encoding="utf-8"), home)
    links = re.findall(r"\]\(([^)]*)\)", shown)
    assert all(link.startswith("https://") for link in links)
    pictures = [link for link in links if link.endswith(".svg") and not link.endswith("/badge.svg")]
    assert pictures
    assert all(link.startswith("https://raw.githubusercontent.com/someone/something/HEAD/docs/") for link in pictures)
    for link in links:
        if "someone" in link:
            assert (ROOT / link.split("/HEAD/")[1].split("#")[0]).exists(), link
