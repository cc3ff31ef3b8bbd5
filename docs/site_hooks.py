"""What mkdocs does not do by itself: pages from the repository's root, links out of docs/, mathematics without a script.

The pages are written to be read in the repository, too: their links lead to files there. On the site a link out of docs/
leads to the repository on the web, an image from outside comes along, and `$...$` becomes MathML, which browsers draw
themselves: nothing is loaded from elsewhere, and it works from the file system.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = {
    "CHANGELOG.md": "changelog.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "docs/how_to.md": "index.md",
}
"""Files that are pages of the site under another name."""
TOUCH = "touch.html"
NOTEBOOK = "tutorial.ipynb"
_IMAGES = {".svg", ".png", ".jpg"}
_COPIED = "from_repository"
"""Folder of the site with images from outside docs/."""
_LINK = re.compile(r"(!?)(\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
_FENCE = re.compile(r"(^```.*?^```[ ]*$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^`(\w+/[\w/]+\.py)`$")
_MATH = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


def site_links(markdown: str, page: str, repository: str) -> str:
    """The links of a page, given by its path in the repository, as the site needs them; code stays as it is.

    >>> site_links("[a](method.md#ties), [b](../src/stepgrad/errors.py), [c](../CHANGELOG.md)", "docs/x.md", "https://host/r")
    '[a](method.md#ties), [b](https://host/r/blob/main/src/stepgrad/errors.py), [c](changelog.md)'
    >>> site_links("[docs](docs/data.md), `[code](../src)`, [out](https://host)", "CHANGELOG.md", "https://host/r")
    '[docs](data.md), `[code](../src)`, [out](https://host)'
    >>> site_links("see `engine/nms.py`", "docs/x.md", "https://host/r")
    'see [`engine/nms.py`](https://host/r/blob/main/src/stepgrad/engine/nms.py)'
    """

    def moved(match: re.Match[str]) -> str:
        image, text, target, rest = match.groups()
        return f"{image}{text}{site_target(target, page, repository)}{rest}"

    parts = _FENCE.split(markdown)  # every other one is code, which the pattern has caught
    parts[::2] = [_LINK.sub(moved, prose) for prose in parts[::2]]
    for i in range(1, len(parts), 2):
        if not parts[i - 1].endswith("["):  # else it is the text of a link already
            parts[i] = _FILE.sub(lambda file: _link_to_source(file, repository), parts[i])
    return "".join(parts)


def _link_to_source(file: re.Match[str], repository: str) -> str:
    """A file of the package that is named in backticks, as a link; anything else as it is."""
    path = f"src/stepgrad/{file[1]}"
    return f"[{file[0]}]({repository}/blob/main/{path})" if (ROOT / path).is_file() else file[0]


def site_target(target: str, page: str, repository: str) -> str:
    """Where one link leads: `target` as the page has it, from the site's root folder of that page."""
    if "://" in target or target.startswith("mailto:"):
        return target
    path = os.path.normpath(PurePosixPath(page).parent / target).replace(os.sep, "/")
    if path in ROOT_PAGES:
        return _from_page(ROOT_PAGES[path], page)
    if path == f"docs/{NOTEBOOK}":
        return notebook_address(repository)
    if path.startswith("docs/") and not path.endswith(".py"):
        return _from_page(path.removeprefix("docs/"), page)
    if PurePosixPath(path).suffix in _IMAGES:
        return _from_page(f"{_COPIED}/{path}", page)
    return f"{repository}/{'tree' if (ROOT / path).is_dir() else 'blob'}/main/{path}"


def notebook_address(repository: str) -> str:
    """Where the notebook runs in a browser: Colab opens what GitHub has; of another host, the file itself.

    >>> notebook_address("https://github.com/a/b")
    'https://colab.research.google.com/github/a/b/blob/main/docs/tutorial.ipynb'
    """
    colab = repository.replace("https://github.com/", "https://colab.research.google.com/github/")
    return f"{colab}/blob/main/docs/{NOTEBOOK}"


def _from_page(path: str, page: str) -> str:
    """A path of the site, as a page links to it."""
    folder = PurePosixPath(page.removeprefix("docs/")).parent if page.startswith("docs/") else PurePosixPath()
    return os.path.relpath(path, folder).replace(os.sep, "/")


def link_targets(markdown: str) -> list[str]:
    """Where the links and images of a page lead, without anchors; code is not looked at."""
    return [target for _, _, target, _ in _LINK.findall(_FENCE.sub("", markdown))]


def images_from_outside(markdown: str, page: str) -> set[str]:
    """Paths in the repository of the images a page shows that are not in docs/."""
    shown = [
        target for target in link_targets(markdown) if PurePosixPath(target).suffix in _IMAGES and "://" not in target
    ]
    paths = {os.path.normpath(PurePosixPath(page).parent / target).replace(os.sep, "/") for target in shown}
    return {path for path in paths if not path.startswith("docs/")}


def with_mathml(content: str, convert: Callable[..., str]) -> str:
    r"""HTML of a page with each formula drawn by `convert` (TeX, then display="inline" or "block").

    >>> with_mathml('<span class="arithmatex">\\(x &gt; y\\)</span>', lambda tex, display: f"<math>{tex} {display}</math>")
    '<math>x > y inline</math>'
    """

    def drawn(match: re.Match[str]) -> str:
        tag, wrapped = match.groups()
        tex = html.unescape(wrapped).strip()[2:-2].strip()  # without \( \) or \[ \]
        return convert(tex, display="block" if tag == "div" else "inline")

    return _MATH.sub(drawn, content)


def on_config(config: Any) -> Any:
    """The page one can touch stands in the menu where it has been built."""
    if (ROOT / "docs" / TOUCH).is_file():
        config.nav.insert(2, {"Try it by hand": TOUCH})
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for source, name in ROOT_PAGES.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    images: set[str] = set()
    for file in files.documentation_pages():
        images |= images_from_outside(file.content_string, source_of(file.src_uri))
    for path in sorted(images):
        files.append(File.generated(config, f"{_COPIED}/{path}", abs_src_path=str(ROOT / path)))
    return files


def source_of(page: str) -> str:
    """The file of the repository that a page of the site is made from."""
    names = {name: source for source, name in ROOT_PAGES.items()}
    return names.get(page, f"docs/{page}")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    if page.parent is None:  # alone in its tab: the room of the menu is better used for the page
        page.meta["hide"] = ["navigation"]
    return site_links(markdown, source_of(page.file.src_uri), config.repo_url.rstrip("/"))


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    if "arithmatex" not in content:
        return content
    from latex2mathml.converter import convert

    return with_mathml(content, convert)
