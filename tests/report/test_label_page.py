"""The page of wrong labels in a real browser: what is accepted there is what is exported."""

from __future__ import annotations

import json
from pathlib import Path

from tests.data.wrong_labels import listed, review_of, write_wrong_labels
from tests.report.browser import Browser


def test_the_page_exports_what_was_accepted(tmp_path: Path, browser: Browser) -> None:
    page = tmp_path / "review.html"
    listed(write_wrong_labels(tmp_path), "--out", str(page))
    browser.open(page)
    pressed = """[...document.querySelectorAll('.candidate')].forEach(card => {
      const swap = card.textContent.includes(' is ');
      card.querySelectorAll('button')[swap ? 0 : 1].click();
    })"""
    browser.run(pressed)
    address = browser.run("document.getElementById('export-review').href")
    content = browser.run(f"JSON.parse(decodeURIComponent({json.dumps(address)}.split(',').slice(1).join(',')))")
    assert content == review_of(page, "swap")
    assert browser.run("document.getElementById('tally').textContent") == "1 accepted, 3 rejected, 0 left"
    assert browser.run("document.querySelectorAll('.candidate img').length") == 4
    assert "<cat>" in browser.run("document.getElementById('candidates').textContent")
    assert browser.complaints() == []
