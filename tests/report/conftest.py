from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.report.browser import Browser, find_chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("no chromium on PATH; Debian's package is called chromium")
    with Browser(program) as opened:
        yield opened
