"""The documentation tells the truth: its code runs, and its figures show what the library computes."""

import doctest
from pathlib import Path

import pytest
import torch

import stepgrad as sg
from docs import figure_nms, figure_pr, figures
from stepgrad.evaluation.rules import RULES

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES_WITH_CODE = sorted(page for page in DOCS.glob("*.md") if ">>>" in page.read_text())


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: page.name)
def test_code_of_page_runs(page: Path) -> None:
    assert doctest.testfile(str(page), module_relative=False).failed == 0


def test_every_rule_has_an_address() -> None:
    """`--compare` names rules; a maintainer pastes the address of one into a thread."""
    headings = {line[4:] for line in (DOCS / "why_maps_differ.md").read_text().splitlines() if line.startswith("### ")}
    assert {rule[0].upper() + rule[1:] for rule in RULES} <= headings


def test_pages_show_figures_that_exist() -> None:
    shown = [part.split(")")[0] for page in DOCS.glob("*.md") for part in page.read_text().split("](figures/")[1:]]
    assert {f"{name}.svg" for name in figures.FIGURES} <= set(shown)
    assert all((DOCS / "figures" / name).is_file() for name in shown)


def test_every_figure_is_drawn_and_is_the_same_on_every_run(tmp_path: Path) -> None:
    first, second = figures.draw_all(tmp_path / "a"), figures.draw_all(tmp_path / "b")
    assert all(file.read_text().rstrip().endswith("</svg>") for file in first)
    assert [f.read_bytes() for f in first] == [f.read_bytes() for f in second]


def _map_of_list(ranked: str) -> float:
    left = 20.0 * torch.arange(len(ranked))
    boxes = torch.stack([left, torch.zeros_like(left), left + 10, torch.full_like(left, 10)], dim=1)
    hit = torch.tensor([kind == "T" for kind in ranked])
    target = {"boxes": boxes[hit], "labels": torch.zeros(int(hit.sum()), dtype=torch.long)}
    return sg.mean_average_precision([-left[:, None]], [boxes], [target]).map


def test_pr_figure_shows_the_ap_of_the_library() -> None:
    lists = [figure_pr.RANKED, *(move.apply(figure_pr.RANKED) for move in figure_pr.MOVES)]
    for ranked in lists:
        assert figure_pr.average_precision(ranked) == pytest.approx(_map_of_list(ranked), abs=1e-15)


def test_moves_of_the_pr_figure_change_ap_just_as_the_page_says() -> None:
    before = _map_of_list(figure_pr.RANKED)
    changes = [m.name for m in figure_pr.MOVES if _map_of_list(m.apply(figure_pr.RANKED)) != before]
    assert changes == ["d", "e"]


def test_paper_mode_has_the_wrong_sign_on_the_chain_of_the_nms_figure() -> None:
    red, _, _ = figure_nms.pushes("exact")
    red_in_paper, _, _ = figure_nms.pushes("paper")
    assert red > 0 > red_in_paper
