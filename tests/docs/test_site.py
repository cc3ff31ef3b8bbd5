"""The site, as far as it can be judged without mkdocs, which `.ci/docs` runs: its menu, its reference, its links."""

from __future__ import annotations

import doctest
import os
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

import stepgrad as sg
from docs import notebook, site_docstrings, site_hooks
from docs.site_docstrings import fenced

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
OWN_PAGES = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} - {
    "how_to.md"
}  # which is the first page
PAGES = sorted(OWN_PAGES) + sorted(site_hooks.ROOT_PAGES.values())
REPOSITORY = "https://host/owner/name"
each_page = pytest.mark.parametrize("page", PAGES)


class _Loader(yaml.SafeLoader):
    """Reads mkdocs' own tags as the text behind them."""


_Loader.add_multi_constructor("!ENV", lambda loader, _, node: loader.construct_sequence(node))
_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def config() -> dict[str, Any]:
    return yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=_Loader)


def menu(entry: Any) -> Iterator[str]:
    """Pages of the menu, in order."""
    if isinstance(entry, str):
        yield entry
    else:
        for child in entry.values() if isinstance(entry, dict) else entry:
            yield from menu(child)


def read(page: str) -> str:
    return (ROOT / site_hooks.source_of(page)).read_text(encoding="utf-8")


def on_site(page: str) -> str:
    return site_hooks.site_links(read(page), site_hooks.source_of(page), REPOSITORY)


def documented() -> set[str]:
    """Names that the reference has an entry for."""
    return {
        name for page in DOCS.glob("api/*.md") for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    }


def test_every_page_stands_in_the_menu_once_and_every_entry_is_a_page() -> None:
    assert sorted(menu(config()["nav"])) == sorted(PAGES)


def test_files_that_the_configuration_names_exist() -> None:
    settings = config()
    extensions = next(p for p in settings["plugins"] if "mkdocstrings" in p)["mkdocstrings"]["handlers"]["python"]
    named = [*settings["hooks"], *extensions["options"]["extensions"], *extensions["paths"]]
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert [path for path in settings["extra_css"] if not (DOCS / path).is_file()] == []


def test_the_site_is_built_with_every_warning_an_error() -> None:
    assert config()["strict"] is True
    assert "--strict" in (ROOT / ".ci/docs").read_text()


def public_names() -> list[str]:
    """First names, and those in namespaces."""
    spaces = {name: getattr(sg, name) for name in ("layers", "ranking", "reference", "detector")}
    inside = [f"{space}.{name}" for space, module in spaces.items() for name in module.__all__]
    metrics = [f"metrics.{kind.__name__}" for kind in vars(sg.metrics).values() if _is_from(kind, sg.metrics)]
    errors = [f"errors.{kind.__name__}" for kind in vars(sg.errors).values() if _is_from(kind, sg.errors)]
    return [*sg._HOME, *inside, *metrics, *errors]


def _is_from(thing: Any, module: ModuleType) -> bool:
    return isinstance(thing, type) and thing.__module__ == module.__name__


def test_every_public_name_has_an_entry_in_the_reference() -> None:
    shown = {id(pkgutil.resolve_name(name)) for name in documented() if ".models." not in name}
    assert [name for name in public_names() if id(pkgutil.resolve_name(f"stepgrad:{name}")) not in shown] == []


def test_every_integration_has_an_entry_in_the_reference() -> None:
    modules = {path.parent.name for path in (ROOT / "src/stepgrad/models").glob("*/__init__.py")} - {
        "demo",
        "rescore",
    }  # the second is sg.Rescorer
    assert modules == {name.split(".")[2] for name in documented() if ".models." in name}


def test_a_name_has_one_entry_in_the_reference() -> None:
    entries = [
        line for page in DOCS.glob("api/*.md") for line in page.read_text().splitlines() if line.startswith(":::")
    ]
    assert len(entries) == len(set(entries))


@each_page
def test_links_of_the_site_lead_to_pages_files_or_out_of_it(page: str) -> None:
    copied = {
        f"from_repository/{path}" for path in site_hooks.images_from_outside(read(page), site_hooks.source_of(page))
    }
    for target in site_hooks.link_targets(on_site(page)):
        path = os.path.normpath(PurePosixPath(page).parent / target)
        assert "://" in target or path in {*PAGES, *copied} or (DOCS / path).is_file(), target


@each_page
def test_links_out_of_the_site_to_the_repository_lead_to_what_it_has(page: str) -> None:
    for kind, path in re.findall(rf"\]\({REPOSITORY}/(blob|tree)/main/([^)#]+)", on_site(page)):
        assert (ROOT / path).is_dir() if kind == "tree" else (ROOT / path).is_file(), path


@pytest.mark.parametrize("module", [site_hooks, site_docstrings, notebook], ids=lambda module: module.__name__)
def test_examples_of_what_makes_the_site_hold(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


def test_the_notebook_opens_where_it_can_be_run() -> None:
    link = site_hooks.site_links("[run](tutorial.ipynb)", "docs/tutorial.md", "https://github.com/a/b")
    assert link == "[run](https://colab.research.google.com/github/a/b/blob/main/docs/tutorial.ipynb)"


def test_pages_in_folders_link_to_pages_of_the_root() -> None:
    assert site_hooks.site_links("[a](../../CHANGELOG.md)", "docs/api/x.md", REPOSITORY) == "[a](../changelog.md)"


def test_the_page_to_touch_is_in_the_menu_once_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_hooks, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    without = site_hooks.on_config(SimpleNamespace(nav=config()["nav"])).nav
    (tmp_path / "docs" / site_hooks.TOUCH).touch()
    found = site_hooks.on_config(SimpleNamespace(nav=config()["nav"])).nav
    assert list(menu(without)) == list(menu(config()["nav"]))
    assert list(menu(found)).count(site_hooks.TOUCH) == 1


def test_an_example_in_a_docstring_stays_one_block_over_blank_lines_between_prompts() -> None:
    text = "Adds.\n\n>>> a = 1\n>>> a\n1\n\n>>> a + 1\n2\n\nThat is all."
    assert fenced(text) == "Adds.\n\n```pycon\n>>> a = 1\n>>> a\n1\n\n>>> a + 1\n2\n```\n\nThat is all."


def test_a_docstring_without_an_example_is_left_alone() -> None:
    assert fenced("Adds.\n\nArgs:\n    a: a number.") == "Adds.\n\nArgs:\n    a: a number."
