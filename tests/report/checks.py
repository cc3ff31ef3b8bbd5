"""What holds for every page, and the tools to look at one."""

from __future__ import annotations

import json
import re
from pathlib import Path

from stepgrad.report.numbers import look_up, number_text
from tests.report.browser import Browser

READ_NUMBERS = """[...document.querySelectorAll("[data-key]")].map(e => ({
  key: e.dataset.key, kind: e.dataset.kind, text: e.textContent,
  value: e.dataset.value ?? e.getAttribute("value"), tag: e.tagName.toLowerCase()}))"""
CUT_CELLS = """[...document.querySelectorAll('.card.scroll')].flatMap(card => {
  const more = card.scrollWidth > card.clientWidth, style = getComputedStyle(card);
  if (more && !style.backgroundAttachment.includes('local')) return ['no mark: ' + card.textContent];
  return [...card.querySelectorAll('th small')].filter(cell => {
    const [inner, outer] = [cell, cell.closest('th')].map(part => part.getBoundingClientRect());
    return cell.scrollWidth > cell.clientWidth || inner.right > outer.right || outer.right > card.getBoundingClientRect().right;
  }).map(cell => cell.textContent); })"""
"""Explanations in tables that are not shown whole, and tables with more to scroll to that do not show it."""
VISIBLE_PANES = "[...document.querySelectorAll('.pane')].map(p => p.offsetHeight > 0)"
NASTY = [
    '<script>alert("x")</script>',
    "a & b",
    "\"quoted\" 'name'",
    "{{ 7 * 7 }}",
    "\x00\x1b[31m",
    "\N{SNOWMAN} 日本 \udc80",
]


def assert_page_is_sound(browser: Browser, page: Path) -> None:
    """No complaint, no request for anything else, nothing wider than a phone, every number as in the JSON."""
    browser.open(page, width=390)
    assert browser.complaints() == []
    assert browser.requests() == [page.resolve().as_uri()]
    assert browser.run("document.documentElement.scrollWidth") <= 390
    numbers = json.loads((page.parent / "report.json").read_text(encoding="utf-8"))
    shown = browser.run(READ_NUMBERS)
    assert len(shown) > 5
    for item in shown:
        value = look_up(numbers, item["key"])
        if item["value"] is None:
            assert (value, item["text"]) == (None, "–"), item
            continue
        assert float(item["value"]) == value, item
        if item["tag"] != "data":
            continue
        assert item["text"] == number_text(value, item["kind"]), item
        if item["kind"] in ("points", "gain"):  # per cent with one decimal
            assert re.fullmatch(r"[+-]?\d{1,3}\.\d", item["text"]), item
            assert abs(float(item["text"]) - 100 * value) <= 0.05 * (1 + 1e-9), item
            assert item["text"].startswith(("+", "-")) == (item["kind"] == "gain"), item


def luminance(colour: str) -> float:
    """Relative luminance of rgb(r, g, b) (WCAG 2)."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted([luminance(a), luminance(b)])
    return (high + 0.05) / (low + 0.05)
